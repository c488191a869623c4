//! Softmax attention over caches.

mod cpu;
pub(crate) mod cuda;
