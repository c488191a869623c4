//! What the tests of ssmgraph share.

pub mod arrays;
