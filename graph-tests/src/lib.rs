//! What the tests of ssmgraph share.

pub mod arrays;
pub mod case_grid;
pub mod crowd;
pub mod cuda;
pub mod cuda_images;
pub mod hybrids;
pub mod laws;
pub mod model_file;
pub mod models;
#[cfg(feature = "peer-ggml")]
pub mod peer;
pub mod random_graph;
pub mod random_model;
