//! Softmax of each row.

mod cpu;
