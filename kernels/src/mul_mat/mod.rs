//! Matrix products.

mod blocks;
mod cpu;
pub(crate) mod cuda;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vnni;
