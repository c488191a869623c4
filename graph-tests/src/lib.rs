//! What the tests of ssmgraph share.

pub mod arrays;
pub mod random_graph;
