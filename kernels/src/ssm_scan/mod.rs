//! The selective scan.

pub(crate) mod cpu;
mod per_channel;
mod per_head;
