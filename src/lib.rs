//! Compute graphs for state-space and linear-attention models.
