//! Compute graphs for state-space and linear-attention models.
//!
//! Build a [`Graph`] of ops, make a [`Session`] of it on some [`backend::Devices`], set inputs, run, read
//! results. Every op's meaning stands in `ssmgraph_ops`.

pub mod backend;
pub mod conformance;
pub mod engine;
pub mod formats;
pub mod graph;
pub mod models;
pub mod plan;
mod report;
pub mod sample;
mod session;
mod store;

pub use engine::{Engine, EngineError, EngineOptions, Logits};
pub use graph::{Graph, GraphError, Tensor};
pub use report::{NodeReport, Report};
pub use session::{Element, NodeObserver, Session, SessionError};
pub use ssmgraph_ops as ops;
pub use store::{SavedSlot, Store, StoreError, WeightBytes, Weights};

/// The README's code is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
