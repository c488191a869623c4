//! Each row without its mean, divided by its standard deviation.

pub(crate) mod cpu;
pub(crate) mod cuda;
