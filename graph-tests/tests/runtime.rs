//! Graph, plan, session and store: what a run must and must not do.

use ssmgraph::backend::Devices;
use ssmgraph::graph::{SlotsSpec, State};
use ssmgraph::ops::case::{Arrangement, Values};
use ssmgraph::ops::{DType, Layout};
use ssmgraph::{Graph, Session, SessionError, Store, Tensor};
use std::sync::Arc;

const F32: DType = DType::F32;

/// The CPU, the reference, and the reference in front of the CPU.
fn all_devices() -> Vec<Devices> {
    vec![Devices::cpu(Some(1)), Devices::cpu(Some(3)), Devices::reference()]
}

#[test]
fn the_same_graph_twice_gives_the_same_answer_and_inputs_survive() {
    for devices in all_devices() {
        let mut graph = Graph::new();
        let x = graph.input("x", F32, &[4]).unwrap();
        let y = graph.scale(x, 2.0, 0.0).unwrap();
        let z = graph.add(y, y).unwrap();
        graph.keep(y).unwrap();
        graph.output(z).unwrap();
        let mut session = Session::new(&graph, &devices).unwrap();
        session.set(x, &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        for _ in 0..3 {
            session.run().unwrap();
            assert_eq!(session.get::<f32>(z).unwrap(), [4.0, 8.0, 12.0, 16.0]);
            assert_eq!(session.get::<f32>(y).unwrap(), [2.0, 4.0, 6.0, 8.0]);
        }
    }
}

#[test]
fn reading_a_tensor_that_was_not_kept_says_how_to_keep_it() {
    let mut graph = Graph::new();
    let x = graph.input("x", F32, &[4]).unwrap();
    let y = graph.scale(x, 2.0, 0.0).unwrap();
    let z = graph.add(y, y).unwrap();
    graph.output(z).unwrap();
    let mut session = Session::new(&graph, &Devices::cpu(Some(1))).unwrap();
    session.set(x, &[0.0f32; 4]).unwrap();
    assert_eq!(session.get::<f32>(z), Err(SessionError::NotRun));
    session.run().unwrap();
    let error = session.get::<f32>(y).unwrap_err().to_string();
    assert_eq!(error, "%1 was not kept; call Graph::keep or Graph::output on it before the session is made");
}

#[test]
fn misuse_is_one_clear_error() {
    let mut graph = Graph::new();
    let x = graph.input("x", F32, &[4]).unwrap();
    let other = Graph::new().input("x", F32, &[4]).unwrap();
    let mut texts = vec![graph.add(x, other).unwrap_err().to_string()];
    texts.push(graph.input("x", F32, &[2]).unwrap_err().to_string());
    texts.push(graph.input("huge", F32, &[1 << 62, 4]).unwrap_err().to_string());
    texts.push(graph.slice(x, 0, 3, 2).unwrap_err().to_string());
    texts.push(Session::new(&graph, &Devices::cpu(Some(1))).err().unwrap().to_string());
    let w = graph.weight("w", Layout::contiguous(F32, &[4]).unwrap()).unwrap();
    let y = graph.add(x, w).unwrap();
    graph.output(y).unwrap();
    texts.push(Session::new(&graph, &Devices::cpu(Some(1))).err().unwrap().to_string());
    let mut plain = Graph::new();
    let x = plain.input("x", F32, &[4]).unwrap();
    let y = plain.neg(x).unwrap();
    plain.output(y).unwrap();
    let mut session = Session::new(&plain, &Devices::cpu(Some(1))).unwrap();
    texts.push(session.run().unwrap_err().to_string());
    texts.push(session.set(x, &[1.0f32]).unwrap_err().to_string());
    texts.push(session.set(x, &[1i32; 4]).unwrap_err().to_string());
    texts.push(session.set(y, &[1.0f32; 4]).unwrap_err().to_string());
    texts.push(session.set(other, &[1.0f32; 4]).unwrap_err().to_string());
    texts.push(session.set_slots(&[0]).unwrap_err().to_string());
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn slices_of_blocks_start_where_they_say() {
    let mut graph = Graph::new();
    let x = graph.input("x", DType::Q8_0, &[96, 2]).unwrap();
    let second = graph.slice(x, 0, 64, 32).unwrap();
    let second = graph.cast(second, F32).unwrap();
    graph.output(second).unwrap();
    let values = Values::new(3).arranged(Arrangement::Contiguous, DType::Q8_0, &[96, 2], -1.0, 1.0);
    let mut session = Session::new(&graph, &Devices::cpu(Some(1))).unwrap();
    session.set_tensor(x, &values).unwrap();
    session.run().unwrap();
    let expected: Vec<f32> = (0..64).map(|i| values.get([64 + i % 32, i / 32, 0, 0]) as f32).collect();
    assert_eq!(session.get::<f32>(second).unwrap(), expected);
    let error = graph.slice(x, 0, 16, 32).unwrap_err().to_string();
    assert_eq!(error, "view: first = 16, expected a multiple of 32 (the blocks of q8_0)");
}

#[test]
fn an_empty_tensor_with_huge_strides_can_be_sliced() {
    let mut graph = Graph::new();
    let layout = Layout::strided(F32, [0, 5, 1, 1], [4, usize::MAX - 3, 4, 4]).unwrap();
    let x = graph.weight("x", layout).unwrap();
    let part = graph.slice(x, 1, 2, 3).unwrap();
    assert_eq!(graph.ne(part).unwrap(), [0, 3, 1, 1]);
}

/// A clone has the nodes that its original had; later ones belong to one of the two alone.
#[test]
fn handles_of_a_graph_that_went_on_are_refused() {
    let mut graph = Graph::new();
    let x = graph.input("x", F32, &[2]).unwrap();
    let y = graph.neg(x).unwrap();
    graph.output(y).unwrap();
    let mut session = Session::new(&graph, &Devices::cpu(Some(1))).unwrap();
    session.set(x, &[1.0f32, 2.0]).unwrap();
    session.run().unwrap();
    let mut before = graph.clone();
    let later = graph.input("later", F32, &[2]).unwrap();
    assert_eq!(session.get::<f32>(later), Err(SessionError::Foreign));
    assert_eq!(session.set(later, &[1.0f32; 2]), Err(SessionError::Foreign));
    assert!(before.add(x, later).is_err() && before.output(later).is_err());
    assert_eq!(before.ne(y).unwrap(), [2, 1, 1, 1]);
    let slots = graph.slots(SlotsSpec { slots: 1, rollback: 0, sequences: 1, tokens: 1 }).unwrap();
    let state = graph.state("s", F32, &[2], &slots).unwrap();
    // The clone has other nodes where the state and the slots would be.
    for _ in 0..9 {
        before.neg(x).unwrap();
    }
    assert!(before.write_state(&state, &slots, 0, x).is_err());
}

#[test]
fn slot_spaces_without_meaning_are_refused() {
    let refused = |slots: usize, rollback: usize, sequences: usize, tokens: usize| {
        let mut graph = Graph::new();
        let error = graph.slots(SlotsSpec { slots, rollback, sequences, tokens }).unwrap_err();
        // Nothing is left behind: names and the slot space are free.
        assert!(graph.is_empty() && graph.find("slots.read").is_none());
        graph.slots(SlotsSpec { slots: 1, rollback: 0, sequences: 1, tokens: 1 }).unwrap();
        error.to_string()
    };
    let huge = usize::MAX;
    let texts = [
        refused(1, huge, 1, 1),
        refused(1 << 31, 0, 1, 1),
        refused(huge, 1, huge, 1),
        refused(1, 1 << 20, 1, 1 << 20),
        refused(1, 0, 2, 1),
    ];
    insta::assert_snapshot!(texts.join("\n"));
}

/// A backend that refuses memory beyond a limit, which happens to any backend some day.
#[test]
fn a_state_without_memory_leaves_its_store_usable() {
    let store = Store::new(&Devices::cpu(Some(1)), Vec::new());
    let spec = SlotsSpec { slots: 4, rollback: 0, sequences: 2, tokens: 1 };
    let mut graph = Graph::new();
    let slots = graph.slots(spec).unwrap();
    let state = graph.state("huge", F32, &[1 << 55], &slots).unwrap();
    graph.output(state.pool).unwrap();
    let error = Session::with_store(&graph, &store).err().unwrap().to_string();
    assert!(error.contains("out of memory"), "{error}");
    let two = counter(2, 1, 0);
    assert_eq!(two.run(&store, &[0, 1], &[1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 4.0]);
    let saved = store.save(1).unwrap();
    assert_eq!(saved.rows.len(), 1);
    store.restore(0, &saved).unwrap();
    assert_eq!(two.run(&store, &[0, 1], &[0.0; 4]), [3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn a_position_that_cannot_be_counted_on_is_an_error() {
    let store = Store::new(&Devices::cpu(Some(1)), Vec::new());
    let two = counter(2, 1, 0);
    two.run(&store, &[0, 1], &[1.0; 4]);
    let mut saved = store.save(0).unwrap();
    saved.position = usize::MAX;
    store.restore(0, &saved).unwrap();
    let mut session = Session::with_store(&two.graph, &store).unwrap();
    session.set(two.input, &[0.0f32; 4]).unwrap();
    session.set_slots(&[0, 1]).unwrap();
    let error = session.run().unwrap_err().to_string();
    assert_eq!(error, "slots: slot 0 has seen 18446744073709551615 tokens and cannot count 1 more");
    store.reset(0).unwrap();
    session.run().unwrap();
}

/// One state of two elements per slot: each token adds its value; the output is the state.
struct Counter {
    graph: Graph,
    input: Tensor,
    output: Tensor,
}

fn counter(sequences: usize, tokens: usize, rollback: usize) -> Counter {
    counter_that_stores(rollback + 1, sequences, tokens, rollback)
}

/// [`counter`], which leaves out all but the newest `most` states of a run.
fn counter_that_stores(most: usize, sequences: usize, tokens: usize, rollback: usize) -> Counter {
    let mut graph = Graph::new();
    let spec = SlotsSpec { slots: 4, rollback, sequences, tokens };
    let slots = graph.slots(spec).unwrap();
    let state: State = graph.state("sum", F32, &[2], &slots).unwrap();
    let input = graph.input("x", F32, &[2, tokens, sequences]).unwrap();
    let old = graph.read_state(&state, &slots).unwrap();
    let old = graph.reshape(old, &[2, 1, sequences]).unwrap();
    let joined = graph.concat(&[old, input], 1).unwrap();
    let turned = graph.transpose(joined).unwrap();
    let sums = graph.cumsum(turned).unwrap();
    let sums = graph.transpose(sums).unwrap();
    for back in 0..slots.spec.stored().min(most) {
        let row = graph.slice(sums, 1, tokens - back, 1).unwrap();
        let row = graph.cont(row).unwrap();
        let row = graph.reshape(row, &[2, 1, 1, sequences]).unwrap();
        graph.write_state(&state, &slots, back, row).unwrap();
    }
    let output = graph.slice(sums, 1, tokens, 1).unwrap();
    graph.output(output).unwrap();
    Counter { graph, input, output }
}

impl Counter {
    fn run(&self, store: &Arc<Store>, slots: &[usize], values: &[f32]) -> Vec<f32> {
        let mut session = Session::with_store(&self.graph, store).unwrap();
        session.set(self.input, values).unwrap();
        session.set_slots(slots).unwrap();
        session.run().unwrap();
        session.get(self.output).unwrap()
    }
}

#[test]
fn states_continue_across_graphs_and_permuted_slots() {
    for devices in all_devices() {
        let store = Store::new(&devices, Vec::new());
        let two = counter(2, 1, 0);
        assert_eq!(two.run(&store, &[0, 3], &[1.0, 10.0, 2.0, 20.0]), [1.0, 10.0, 2.0, 20.0]);
        assert_eq!(two.run(&store, &[3, 0], &[1.0, 1.0, 5.0, 5.0]), [3.0, 21.0, 6.0, 15.0]);
        let three_tokens = counter(1, 3, 0);
        let sum = three_tokens.run(&store, &[3], &[1.0; 6]);
        assert_eq!(sum, [6.0, 24.0]);
        assert_eq!(store.position(3).unwrap(), 5);
        store.reset(3).unwrap();
        assert_eq!(two.run(&store, &[3, 0], &[1.0; 4]), [1.0, 1.0, 7.0, 16.0]);
    }
}

#[test]
fn a_slot_that_held_nan_is_clean_after_a_reset() {
    let store = Store::new(&Devices::cpu(Some(2)), Vec::new());
    let two = counter(2, 1, 0);
    two.run(&store, &[0, 1], &[f32::NAN, f32::INFINITY, 1.0, 2.0]);
    store.reset(0).unwrap();
    assert_eq!(two.run(&store, &[0, 1], &[1.0, 2.0, 1.0, 2.0]), [1.0, 2.0, 2.0, 4.0]);
}

#[test]
fn rollback_is_as_if_the_tokens_had_never_come() {
    let store = Store::new(&Devices::cpu(Some(2)), Vec::new());
    let (one, four) = (counter(1, 1, 3), counter(1, 4, 3));
    one.run(&store, &[1], &[1.0, 1.0]);
    four.run(&store, &[1], &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    store.rollback(1, 2).unwrap();
    assert_eq!(one.run(&store, &[1], &[0.0, 0.0]), [3.0, 5.0]);
    store.rollback(1, 1).unwrap();
    store.rollback(1, 1).unwrap();
    assert_eq!(one.run(&store, &[1], &[0.0, 0.0]), [2.0, 3.0]);
    let error = store.rollback(1, 4).unwrap_err().to_string();
    assert!(error.contains("slot 1 cannot go back 4 tokens"), "{error}");
    assert!(store.rollback(9, 1).is_err());
    // All the way to the start, where the state is zero whatever the ring holds.
    let fresh = Store::new(&Devices::cpu(Some(1)), Vec::new());
    one.run(&fresh, &[2], &[5.0, 5.0]);
    one.run(&fresh, &[2], &[5.0, 5.0]);
    fresh.rollback(2, 2).unwrap();
    assert_eq!(one.run(&fresh, &[2], &[1.0, 1.0]), [1.0, 1.0]);
}

#[test]
fn rows_of_another_size_are_refused_by_the_name_of_the_call() {
    let mut graph = Graph::new();
    let slots = graph.slots(SlotsSpec { slots: 2, rollback: 0, sequences: 2, tokens: 3 }).unwrap();
    let state = graph.state("s", F32, &[4, 3], &slots).unwrap();
    let caches = graph.caches(&slots, 8).unwrap();
    let cache = graph.cache("c", F32, &[4], &slots, &caches).unwrap();
    let x = graph.input("x", F32, &[4, 3]).unwrap();
    let empty = graph.input("empty", F32, &[1 << 40, 0]).unwrap();
    for (rows, shape) in [(x, "[4, 3, 1, 1]"), (empty, "[1099511627776, 0, 1, 1]")] {
        assert_eq!(
            graph.write_state(&state, &slots, 0, rows).unwrap_err().to_string(),
            format!("state: write_state: rows has the shape {shape}, expected 2 rows of [4, 3, 1]")
        );
        assert_eq!(
            graph.append_to_cache(&cache, &caches, rows).unwrap_err().to_string(),
            format!("state: append_to_cache: rows has the shape {shape}, expected 6 rows of [4, 1]")
        );
    }
}

/// A row that a run left out holds what an earlier run put there.
#[test]
fn nobody_goes_back_to_a_state_that_was_not_stored() {
    let store = Store::new(&Devices::cpu(Some(1)), Vec::new());
    let (one, four) = (counter(1, 1, 3), counter_that_stores(2, 1, 4, 3));
    one.run(&store, &[1], &[100.0, 100.0]);
    store.reset(1).unwrap();
    four.run(&store, &[1], &[1.0; 8]);
    let error = store.rollback(1, 2).unwrap_err().to_string();
    assert_eq!(
        error,
        "slots: slot 1 cannot go back 2 tokens: it has seen 4 and remembers 2 states; declare a larger rollback, and \
         store as many states in each run"
    );
    store.rollback(1, 1).unwrap();
    assert_eq!(one.run(&store, &[1], &[0.0, 0.0]), [3.0, 3.0]);
    four.run(&store, &[1], &[1.0; 8]);
    one.run(&store, &[1], &[0.0, 0.0]);
    assert!(store.rollback(1, 3).is_err());
    store.rollback(1, 2).unwrap();
    assert_eq!(one.run(&store, &[1], &[0.0, 0.0]), [6.0, 6.0]);
}

#[test]
fn a_state_that_is_used_must_be_stored() {
    let store = Store::new(&Devices::cpu(Some(1)), Vec::new());
    let refused = Session::with_store(&counter_that_stores(0, 1, 2, 0).graph, &store);
    assert_eq!(
        refused.err().expect("the sum of the first run would be missing in the second").to_string(),
        "state `sum` is used but not written, so it would not know the tokens of a run; call Graph::write_state with \
         back = 0"
    );
    // A look at the states, which moves nothing on.
    let (one, look) = (counter(1, 1, 0), counter_that_stores(0, 1, 0, 0));
    one.run(&store, &[1], &[3.0, 4.0]);
    assert_eq!(look.run(&store, &[1], &[]), [3.0, 4.0]);
    assert_eq!(one.run(&store, &[1], &[3.0, 4.0]), [6.0, 8.0]);
}

#[test]
fn a_saved_slot_continues_elsewhere() {
    let cpu = Store::new(&Devices::cpu(Some(2)), Vec::new());
    let reference = Store::new(&Devices::reference(), Vec::new());
    let one = counter(1, 1, 0);
    one.run(&cpu, &[0], &[1.0, 2.0]);
    let saved = cpu.save(0).unwrap();
    assert_eq!(one.run(&cpu, &[0], &[1.0, 1.0]), [2.0, 3.0]);
    cpu.restore(2, &saved).unwrap();
    assert_eq!(one.run(&cpu, &[2], &[1.0, 1.0]), [2.0, 3.0]);
    // The reference store learns of the state when its first session is made.
    one.run(&reference, &[3], &[0.0, 0.0]);
    reference.restore(1, &saved).unwrap();
    assert_eq!(one.run(&reference, &[1], &[1.0, 1.0]), [2.0, 3.0]);
    assert_eq!(reference.position(1).unwrap(), 2);
}

#[test]
fn slots_are_checked() {
    let store = Store::new(&Devices::cpu(Some(1)), Vec::new());
    let two = counter(2, 1, 0);
    let mut session = Session::with_store(&two.graph, &store).unwrap();
    session.set(two.input, &[0.0f32; 4]).unwrap();
    let mut texts = vec![session.run().unwrap_err().to_string()];
    for slots in [[1, 1], [0, 4]] {
        session.set_slots(&slots).unwrap();
        texts.push(session.run().unwrap_err().to_string());
    }
    texts.push(session.set_slots(&[0]).unwrap_err().to_string());
    let other = counter(1, 1, 2);
    texts.push(Session::with_store(&other.graph, &store).err().unwrap().to_string());
    insta::assert_snapshot!(texts.join("\n"));
}

/// A failed run must not leave a slot that looks healthy: its state may be half written.
#[test]
fn a_run_that_fails_loses_its_slots_and_says_so() {
    let store = Store::new(&Devices::cpu(Some(1)), Vec::new());
    let mut graph = Graph::new();
    let slots = graph.slots(SlotsSpec { slots: 2, rollback: 0, sequences: 1, tokens: 1 }).unwrap();
    let state = graph.state("s", F32, &[2], &slots).unwrap();
    let table = graph.input("table", F32, &[2, 3]).unwrap();
    let ids = graph.input("ids", DType::I32, &[1]).unwrap();
    let row = graph.get_rows(table, ids).unwrap();
    graph.write_state(&state, &slots, 0, row).unwrap();
    let mut session = Session::with_store(&graph, &store).unwrap();
    session.set(table, &[1.0f32; 6]).unwrap();
    session.set_slots(&[1]).unwrap();
    session.set(ids, &[7i32]).unwrap();
    let error = session.run().unwrap_err().to_string();
    assert!(error.contains("get_rows") && error.contains('7'), "{error}");
    session.set(ids, &[0i32]).unwrap();
    let error = session.run().unwrap_err().to_string();
    assert_eq!(error, "slots: slot 1 was being written when a run failed; reset or restore it");
    store.reset(1).unwrap();
    session.run().unwrap();
}

#[test]
fn an_old_value_that_is_read_later_survives_an_update() {
    for devices in all_devices() {
        let mut graph = Graph::new();
        let x = graph.input("x", F32, &[2, 3]).unwrap();
        let table = graph.scale(x, 1.0, 0.0).unwrap();
        let rows = graph.input("rows", F32, &[2, 1]).unwrap();
        let ids = graph.input("ids", DType::I32, &[1]).unwrap();
        let updated = graph.set_rows(table, rows, ids).unwrap();
        let later = graph.sub(updated, table).unwrap();
        graph.output(updated).unwrap();
        graph.output(later).unwrap();
        let mut session = Session::new(&graph, &devices).unwrap();
        session.set(x, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        session.set(rows, &[10.0f32, 10.0]).unwrap();
        session.set(ids, &[1i32]).unwrap();
        session.run().unwrap();
        assert_eq!(session.get::<f32>(updated).unwrap(), [1.0, 2.0, 10.0, 10.0, 5.0, 6.0]);
        assert_eq!(session.get::<f32>(later).unwrap(), [0.0, 0.0, 7.0, 6.0, 0.0, 0.0]);
    }
}

/// The pool before the run, its value between two updates and its new value, each readable as it was then,
/// also after another session has moved the state on.
#[test]
fn kept_values_of_a_state_do_not_follow_its_pool() {
    for devices in all_devices() {
        let store = Store::new(&devices, Vec::new());
        let mut graph = Graph::new();
        let spec = SlotsSpec { slots: 1, rollback: 1, sequences: 1, tokens: 2 };
        let slots = graph.slots(spec).unwrap();
        let state = graph.state("s", F32, &[1], &slots).unwrap();
        let x = graph.input("x", F32, &[1, 1, 1, 2]).unwrap();
        graph.output(state.pool).unwrap();
        let mut values = vec![state.pool];
        for back in [0, 1] {
            let row = graph.slice(x, 3, back, 1).unwrap();
            graph.write_state(&state, &slots, back, row).unwrap();
            let now = graph.states()[0].1;
            graph.keep(now).unwrap();
            values.push(now);
        }
        let run = |values: [f32; 2]| {
            let mut session = Session::with_store(&graph, &store).unwrap();
            session.set(x, &values).unwrap();
            session.set_slots(&[0]).unwrap();
            session.run().unwrap();
            session
        };
        let expect = |session: &Session, wanted: [[f32; 2]; 3]| {
            for (&value, wanted) in values.iter().zip(wanted) {
                assert_eq!(session.get::<f32>(value).unwrap(), wanted);
            }
        };
        // Position 2 lies in row 1 of the ring, position 1 in row 0.
        let first = run([2.0, 1.0]);
        expect(&first, [[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]]);
        let second = run([4.0, 3.0]);
        expect(&second, [[1.0, 2.0], [1.0, 4.0], [3.0, 4.0]]);
        expect(&first, [[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]]);
    }
}

/// The new value is written back after everything else, so nobody may take its memory over before.
#[test]
fn a_state_keeps_its_new_value_when_that_is_updated_further() {
    for devices in all_devices() {
        let mut graph = Graph::new();
        let slots = graph.slots(SlotsSpec { slots: 2, rollback: 0, sequences: 1, tokens: 1 }).unwrap();
        let state = graph.state("s", F32, &[1], &slots).unwrap();
        let x = graph.input("x", F32, &[1]).unwrap();
        graph.write_state(&state, &slots, 0, x).unwrap();
        let now = graph.states()[0].1;
        // Reads the old pool late, so that the update above happens in a copy.
        let old = graph.scale(state.pool, 1.0, 5.0).unwrap();
        let ids = graph.input("ids", DType::I32, &[1]).unwrap();
        let now = graph.reshape(now, &[1, 2]).unwrap();
        let further = graph.set_rows(now, x, ids).unwrap();
        graph.output(old).unwrap();
        graph.output(further).unwrap();
        let store = Store::new(&devices, Vec::new());
        let mut session = Session::with_store(&graph, &store).unwrap();
        session.set(x, &[7.0f32]).unwrap();
        session.set(ids, &[0i32]).unwrap();
        session.set_slots(&[1]).unwrap();
        session.run().unwrap();
        assert_eq!(session.get::<f32>(old).unwrap(), [5.0, 5.0]);
        assert_eq!(session.get::<f32>(further).unwrap(), [7.0, 7.0]);
        assert_eq!(store.save(1).unwrap().rows[0].1.to_f64(), [7.0]);
        // Row 0 belongs to the other slot.
        session.run().unwrap();
        assert_eq!(session.get::<f32>(old).unwrap(), [5.0, 12.0]);
    }
}

#[test]
fn an_input_is_never_updated_in_place() {
    let mut graph = Graph::new();
    let table = graph.input("table", F32, &[2, 2]).unwrap();
    let rows = graph.input("rows", F32, &[2, 1]).unwrap();
    let ids = graph.input("ids", DType::I32, &[1]).unwrap();
    let updated = graph.set_rows(table, rows, ids).unwrap();
    let sum = graph.sum(updated).unwrap();
    graph.output(sum).unwrap();
    let mut session = Session::new(&graph, &Devices::cpu(Some(1))).unwrap();
    session.set(table, &[1.0f32; 4]).unwrap();
    session.set(rows, &[5.0f32; 2]).unwrap();
    for id in [0i32, 1] {
        session.set(ids, &[id]).unwrap();
        session.run().unwrap();
        assert_eq!(session.get::<f32>(sum).unwrap(), [12.0]);
    }
}

/// The convolution's input dies where its result is born, and the result fits into its memory.
#[test]
fn fused_and_unfused_and_kept_chains_agree() {
    let (width, channels, tokens) = (4, 128, 64);
    let build = |keep: bool| {
        let mut graph = Graph::new();
        let x = graph.input("x", F32, &[width - 1 + tokens, channels]).unwrap();
        let sx = graph.scale(x, 0.5, 0.0).unwrap();
        let w = graph.input("w", F32, &[width, channels]).unwrap();
        let bias = graph.input("bias", F32, &[channels]).unwrap();
        let conv = graph.ssm_conv(sx, w, None, false).unwrap();
        let sum = graph.add(conv, bias).unwrap();
        let act = graph.silu(sum).unwrap();
        let weight = graph.input("weight", F32, &[channels]).unwrap();
        let norm = graph.rms_norm(act, None, 1e-5).unwrap();
        let scaled = graph.mul(norm, weight).unwrap();
        let result = graph.add(scaled, act).unwrap();
        graph.output(result).unwrap();
        if keep {
            for tensor in [sx, conv, sum, act, norm, scaled] {
                graph.keep(tensor).unwrap();
            }
        }
        let mut session = Session::new(&graph, &Devices::cpu(Some(2))).unwrap();
        let ramp = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect::<Vec<f32>>();
        session.set(x, &ramp((width - 1 + tokens) * channels)).unwrap();
        session.set(w, &ramp(width * channels)).unwrap();
        session.set(bias, &ramp(channels)).unwrap();
        session.set(weight, &ramp(channels)).unwrap();
        session.run().unwrap();
        let values = session.get::<f32>(result).unwrap();
        (session.plan().graph.to_text(), session.plan().to_text(), values)
    };
    let (fused_graph, fused_plan, fused) = build(false);
    let (_, _, unfused) = build(true);
    let worst = fused.iter().zip(&unfused).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "fused and unfused differ by {worst}");
    insta::assert_snapshot!(format!("{fused_graph}\n{fused_plan}"));
}

/// The gate of a delta net, written in parts, is one op; kept parts stay apart.
#[test]
fn a_decay_gate_in_parts_is_one_op() {
    let (heads, tokens) = (12, 7);
    let build = |keep: Option<usize>| {
        let mut graph = Graph::new();
        let alpha = graph.input("alpha", F32, &[heads, tokens]).unwrap();
        let bias = graph.input("bias", F32, &[heads]).unwrap();
        let a = graph.input("a", F32, &[heads]).unwrap();
        let sum = graph.add(alpha, bias).unwrap();
        let softplus = graph.softplus(sum).unwrap();
        let gate = graph.mul(softplus, a).unwrap();
        graph.output(gate).unwrap();
        if let Some(kept) = keep {
            graph.keep([sum, softplus][kept]).unwrap();
        }
        let mut session = Session::new(&graph, &Devices::cpu(Some(1))).unwrap();
        let ramp = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 10.0).collect::<Vec<f32>>();
        session.set(alpha, &ramp(heads * tokens)).unwrap();
        session.set(bias, &ramp(heads)).unwrap();
        session.set(a, &ramp(heads)).unwrap();
        session.run().unwrap();
        (session.plan().graph.to_text(), session.get::<f32>(gate).unwrap())
    };
    let (text, fused) = build(None);
    assert!(text.contains("decay_gate") && !text.contains("softplus"), "{text}");
    for kept in [0, 1] {
        let (text, unfused) = build(Some(kept));
        assert!(!text.contains("decay_gate"), "{text}");
        let worst = fused.iter().zip(&unfused).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "fused and unfused differ by {worst}");
    }
}

#[test]
fn a_graph_handed_over_twice_is_unchanged_and_a_new_one_is_what_runs() {
    let devices = Devices::cpu(Some(1));
    let mut g = Graph::new();
    let x = g.input("x", F32, &[2]).unwrap();
    let y = g.scale(x, 3.0, 0.0).unwrap();
    g.output(y).unwrap();
    let before = g.to_text();
    let store = Store::new(&devices, Vec::new());
    let mut first = Session::with_store(&g, &store).unwrap();
    let mut second = Session::with_store(&g, &store).unwrap();
    for (session, value) in [(&mut first, 1.0f32), (&mut second, 2.0)] {
        session.set(x, &[value; 2]).unwrap();
        session.run().unwrap();
        assert_eq!(session.get::<f32>(y).unwrap(), [3.0 * value; 2]);
    }
    assert_eq!(g.to_text(), before);
    let mut h = Graph::new();
    let x = h.input("x", F32, &[2]).unwrap();
    let y = h.neg(x).unwrap();
    h.output(y).unwrap();
    let mut third = Session::with_store(&h, &store).unwrap();
    third.set(x, &[7.0f32; 2]).unwrap();
    third.run().unwrap();
    assert_eq!(third.get::<f32>(y).unwrap(), [-7.0; 2]);
}

#[test]
fn a_weight_with_an_impossible_layout_is_an_error() {
    let layout = Layout { dtype: F32, ne: [usize::MAX, 2, 1, 1], nb: [4, 4, 4, 4] };
    let error = Graph::new().weight("w", layout).unwrap_err().to_string();
    assert!(error.contains("more bytes than can be addressed"), "{error}");
}

#[test]
fn more_results_than_handles_can_name_are_an_error() {
    let mut graph = Graph::new();
    let mut input = |name, dtype, ne: &[usize]| graph.input(name, dtype, ne).unwrap();
    let tokens = 65_535;
    let operands = [
        input("s", F32, &[1, 1, 1, 1]),
        input("x", F32, &[1, 1, tokens, 1]),
        input("dt", F32, &[1, tokens, 1]),
        input("a", F32, &[1, 1]),
        input("b", F32, &[1, 1, tokens, 1]),
        input("c", F32, &[1, 1, tokens, 1]),
        input("ids", DType::I32, &[1]),
    ];
    let error = graph.ssm_scan(operands, tokens).unwrap_err().to_string();
    assert!(error.contains("65536 results, at most 65535 can be named"), "{error}");
}

/// A source from outside may be wrong about itself.
#[test]
fn a_weight_with_too_few_bytes_is_refused() {
    struct Short;
    impl ssmgraph::Weights for Short {
        fn find(&self, _name: &str) -> Option<ssmgraph::WeightBytes> {
            let layout = Layout::contiguous(F32, &[4]).unwrap();
            Some(ssmgraph::WeightBytes { layout, bytes: Arc::new(vec![0u8; 64]), range: 0..8 })
        }
    }
    let mut graph = Graph::new();
    let w = graph.weight("w", Layout::contiguous(F32, &[4]).unwrap()).unwrap();
    let y = graph.neg(w).unwrap();
    graph.output(y).unwrap();
    let store = Store::new(&Devices::cpu(Some(1)), vec![Arc::new(Short)]);
    let error = Session::with_store(&graph, &store).err().unwrap().to_string();
    assert_eq!(error, "weight `w` has 8 bytes, expected 16 (the span of its layout)");
}
