//! Matrix products.

pub(crate) mod blocks;
pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod rows;
#[cfg(target_arch = "x86_64")]
mod vnni;
