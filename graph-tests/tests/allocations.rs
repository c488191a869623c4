//! A run takes no memory once its session has run: every allocation of the process is counted.

use graph_tests::models::tiny;
use ssmgraph::backend::Devices;
use ssmgraph::graph::SlotsSpec;
use ssmgraph::models::{Batch, CacheSpec, load_model};
use ssmgraph::ops::DType;
use ssmgraph::{Graph, Session, Store};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RUNS: usize = 5;

/// Allocations and reallocations while `work` runs. Other threads count too: this file has one test.
fn allocations(work: impl FnOnce()) -> usize {
    let region = Region::new(ALLOCATOR);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

/// Of some runs of a model after the first, with new tokens and slots given before each.
fn of_model(name: &str, tokens: usize, threads: usize) -> usize {
    let gguf = Arc::new(tiny(name));
    let model = load_model(&gguf).unwrap();
    let cache = CacheSpec { capacity: 64, dtype: DType::F32 };
    let cache = (model.info().cache_elements > 0).then_some(cache);
    let mut graph = Graph::new();
    let spec = SlotsSpec { slots: 2, rollback: 1, sequences: 1, tokens };
    let batch = Batch::declare(&mut graph, spec, 1, cache).unwrap();
    let logits = model.forward(&mut graph, &batch).unwrap();
    graph.output(logits).unwrap();
    let store = Store::new(&Devices::cpu(Some(threads)), vec![gguf]);
    let mut session = Session::with_store(&graph, &store).unwrap();
    let ids = vec![7; tokens];
    let mut run = || {
        session.set(batch.tokens, &ids).unwrap();
        session.set(batch.outputs, &[tokens as i32 - 1]).unwrap();
        session.set_slots(&[1]).unwrap();
        session.run().unwrap();
    };
    run();
    allocations(|| (0..RUNS).for_each(|_| run()))
}

#[test]
fn runs_take_no_memory_after_the_first() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 1, "nothing is counted");
    for name in ["mamba1-tiny.f32", "mamba2-g1-tiny.q8_0", "qwen35-tiny.f32", "qwen3next-tiny.q8_0"] {
        for (tokens, threads) in [(1, 1), (1, 3), (9, 1), (9, 3)] {
            let count = of_model(name, tokens, threads);
            assert_eq!(count, 0, "{name}, {tokens} tokens, {threads} threads: {count} in {RUNS} runs");
        }
    }
}
