//! Matrix products.

mod blocks;
mod cpu;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vnni;
