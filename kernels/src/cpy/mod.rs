//! Copies into another layout, shape or type.

mod cpu;
