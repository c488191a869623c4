//! A tensor repeated along whole axes.

mod cpu;
pub(crate) mod cuda;
