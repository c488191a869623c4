//! The logarithm of a decay.

mod cpu;
