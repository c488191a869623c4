//! RMS norm of each row.

mod cpu;
