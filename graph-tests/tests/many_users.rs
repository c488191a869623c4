//! Laws of many users on the CPU and on emulated CUDA, to the bit: in whatever way sequences join, leave, go back,
//! move between slots or fill with NaN and infinities, each other one computes what it computes alone.

use graph_tests::crowd::{Crowd, Event};
use graph_tests::cuda;
use graph_tests::hybrids::mixed;
use graph_tests::models::tiny;
use proptest::prelude::*;
use ssmgraph::backend::Devices;
use ssmgraph::formats::Gguf;
use ssmgraph::models::{Batch, CacheSpec, load_model};
use ssmgraph::ops::DType;
use ssmgraph::{Engine, EngineOptions, Graph, Logits, Session};
use std::sync::Arc;

const SLOTS: usize = 4;
/// Few enough that sequences run out of room.
const CONTEXT: usize = 40;

fn event() -> impl Strategy<Value = Event> {
    let slot = || 0..SLOTS;
    let number = prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY)];
    prop_oneof![
        4 => proptest::collection::vec((slot(), 0usize..10), 1..=SLOTS).prop_map(Event::Feed),
        4 => slot().prop_map(Event::Decode),
        1 => slot().prop_map(Event::Reset),
        2 => (slot(), 0usize..6).prop_map(|(slot, tokens)| Event::Rollback(slot, tokens)),
        1 => (slot(), number).prop_map(|(slot, number)| Event::Poison(slot, number)),
        1 => (slot(), slot()).prop_map(|(from, to)| Event::Copy(from, to)),
    ]
}

fn options() -> impl Strategy<Value = EngineOptions> {
    let (pieces, kept) = (prop_oneof![Just(1usize), Just(5), Just(512)], prop_oneof![Just(2usize), Just(16)]);
    let cache = prop_oneof![Just(DType::F32), Just(DType::F16)];
    (0usize..4, pieces, kept, cache).prop_map(|(rollback, prompt_piece_max, sessions_max, cache_dtype)| {
        let context = Some(CONTEXT);
        EngineOptions { slots: SLOTS, rollback, prompt_piece_max, sessions_max, context, cache_dtype }
    })
}

/// A model by name: one of the fixtures, or a hybrid made of them.
fn model(name: &str) -> Arc<Gguf> {
    match mixed().into_iter().find(|(hybrid, _)| *hybrid == name) {
        Some((_, file)) => file.gguf(),
        None => Arc::new(tiny(&format!("{name}.f32"))),
    }
}

fn check(
    name: &str,
    devices: &Devices,
    alone_piece: usize,
    options: EngineOptions,
    seed: u64,
    events: &[Event],
) {
    let gguf = model(name);
    let single =
        EngineOptions { slots: 1, rollback: 0, prompt_piece_max: 512, sessions_max: 16, ..options.clone() };
    let engine = Engine::load(gguf.clone(), devices, options).unwrap();
    let alone = Engine::load(gguf, devices, single).unwrap();
    let mut crowd = Crowd::new(engine, alone, alone_piece, seed);
    events.iter().for_each(|event| crowd.act(event));
    crowd.check_all();
}

macro_rules! crowds {
    ($($module:ident: $cases:literal cases of $events:literal events on $devices:expr, alone by $piece:literal;)*) => {$(
        mod $module {
            use super::*;

            crowds!(@models $cases, $events, $devices, $piece:
                mamba1 = "mamba1-tiny", mamba2 = "mamba2-g1-tiny", qwen35 = "qwen35-tiny", qwen3next = "qwen3next-tiny",
                jamba = "jamba", granite_hybrid = "granitehybrid", falcon_h1 = "falcon-h1");
        }
    )*};
    (@models $cases:literal, $events:literal, $devices:expr, $piece:literal: $($test:ident = $name:literal),*) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: $cases, failure_persistence: None, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $test(options in options(), seed in 0u64..1000, events in proptest::collection::vec(event(), $events)) {
                    check($name, &$devices, $piece, options, seed, &events);
                }
            )*
        }
    };
}

crowds! {
    on_the_cpu: 12 cases of 24 events on Devices::cpu(Some(2)), alone by 1;
    on_cuda: 2 cases of 16 events on cuda::devices(), alone by 3;
}

/// A run of no tokens copies every state through, whatever else is in the slots.
#[test]
fn a_run_of_no_tokens_changes_nothing() {
    for name in [
        "mamba1-tiny",
        "mamba2-g1-tiny",
        "qwen35-tiny",
        "qwen3next-tiny",
        "jamba",
        "granitehybrid",
        "falcon-h1",
    ] {
        for devices in [Devices::reference(), Devices::cpu(Some(2)), cuda::devices()] {
            let gguf = model(name);
            let options =
                EngineOptions { slots: 3, rollback: 1, context: Some(8), ..EngineOptions::default() };
            let mut engine = Engine::load(gguf.clone(), &devices, options).unwrap();
            engine.step(&[(2, &[1, 2, 3]), (0, &[4])], Logits::None).unwrap();
            let slots = |engine: &Engine| [0, 1, 2].map(|slot| engine.save(slot).unwrap());
            let before = slots(&engine);

            let mut graph = Graph::new();
            let cache = engine.context().map(|capacity| CacheSpec { capacity, dtype: DType::F32 });
            let batch = Batch::declare(&mut graph, engine.slots_spec(0, 3), 0, cache).unwrap();
            load_model(&gguf).unwrap().forward(&mut graph, &batch).unwrap();
            let mut session = Session::with_store(&graph, engine.store()).unwrap();
            session.set::<i32>(batch.tokens, &[]).unwrap();
            session.set::<i32>(batch.outputs, &[]).unwrap();
            session.set_slots(&[1, 2, 0]).unwrap();
            session.run().unwrap();
            assert!(slots(&engine) == before, "{name}");
            engine.rollback(2, 1).unwrap();
        }
    }
}
