//! Gated linear units.

mod cpu;
