//! Matrix products.

mod blocks;
mod cpu;
mod rows;
