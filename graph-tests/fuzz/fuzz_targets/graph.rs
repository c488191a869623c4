//! Any bytes as calls of the graph builder: the graph must give the same answer on every list of devices.
#![no_main]

use graph_tests::random_graph::{build, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check(&build(bytes)));
