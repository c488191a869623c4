//! The mean of each row.

mod cpu;
