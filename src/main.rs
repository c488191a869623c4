//! The `ssmgraph` command.
fn main() {}
