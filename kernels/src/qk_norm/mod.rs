//! Queries and keys divided by their lengths.

mod cpu;
