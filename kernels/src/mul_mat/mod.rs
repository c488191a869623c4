//! Matrix products.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod blocks;
mod columns;
pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod dots;
pub(crate) mod floats;
mod formats;
mod interleave;
pub(crate) mod panels;
#[cfg(target_arch = "x86_64")]
mod vnni;
