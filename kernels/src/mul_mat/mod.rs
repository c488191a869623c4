//! Matrix products.

mod blocks;
mod cpu;
pub(crate) mod cuda;
pub(crate) mod rows;
#[cfg(target_arch = "x86_64")]
mod vnni;
