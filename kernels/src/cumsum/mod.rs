//! Running sums along each row.

mod cpu;
