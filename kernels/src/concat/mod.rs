//! Tensors put one after another along an axis.

mod cpu;
