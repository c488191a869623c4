//! Multiplication by one number and addition of another.

mod cpu;
