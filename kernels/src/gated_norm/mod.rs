//! RMS norm in groups, with a gate.

mod cpu;
