//! The selective scan.

pub(crate) mod cpu;
pub(crate) mod cuda;
mod per_channel;
mod per_head;
