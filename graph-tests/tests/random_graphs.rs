//! Random graphs give the same answer on every list of devices, whatever the plan does with their memory.

use graph_tests::random_graph::{build, check};
use ssmgraph::Graph;
use ssmgraph::plan::{fuse, prune};
use std::path::Path;

/// Bytes that depend on the seed alone.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Whether the planner puts parts of the graph together.
fn has_parts(graph: &Graph) -> bool {
    prune(graph).is_ok_and(|(wanted, _)| fuse(&wanted).0.to_text() != wanted.to_text())
}

#[test]
fn random_graphs_agree_on_all_devices() {
    let seeds = 200;
    let (mut calls, mut in_parts) = (0, 0);
    for seed in 0..seeds {
        let random = build(&bytes(seed, 40 + (seed % 160) as usize));
        calls += random.graph.len();
        in_parts += usize::from(has_parts(&random.graph));
        check(&random);
    }
    assert!(calls as u64 > 5 * seeds, "{calls} nodes in {seeds} graphs");
    assert!(in_parts >= 10, "{in_parts} of {seeds} graphs have parts to put together");
}

#[test]
fn the_fuzz_corpus_of_graphs_agrees_on_all_devices() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/graph");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        check(&build(&std::fs::read(entry.unwrap().path()).unwrap()));
        files += 1;
    }
    assert!(files > 0);
}
