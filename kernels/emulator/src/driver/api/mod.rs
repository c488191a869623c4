//! The exported C functions. Each says which kind of call it is and what it does to the driver; the way in
//! (`state.rs`) counts it, fails it when that is planned, and stops panics from crossing into C.

mod context;
mod control;
mod event;
mod graph;
mod memory;
mod module;
mod place;
mod stream;
