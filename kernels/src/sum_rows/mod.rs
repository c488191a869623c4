//! The sum of each row.

pub(crate) mod cpu;
