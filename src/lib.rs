//! Compute graphs for state-space and linear-attention models.

pub mod formats;
pub mod sample;
