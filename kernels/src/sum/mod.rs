//! The sum of all elements.

mod cpu;
