//! What the laws of recurrent ops share: numbers, and one run of a graph for some slots of a store.

use ssmgraph::{Graph, Session, Store, Tensor};
use std::sync::Arc;

/// Numbers in −1..1 that depend on the seed and the place alone.
pub fn noise(seed: u64, index: usize) -> f32 {
    let mut z =
        (seed ^ 0x9E37_79B9).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_add(index as u64 * 0x94D0_49BB);
    z = (z ^ (z >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z >> 40) as f32 / (1u32 << 24) as f32) * 2.0 - 1.0
}

/// `count` numbers of [`noise`], scaled and shifted.
pub fn values(seed: u64, count: usize, scale: f32, shift: f32) -> Vec<f32> {
    (0..count).map(|index| noise(seed, index) * scale + shift).collect()
}

/// The bits of each number, so that a comparison tells zeros and NaN apart.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs a graph once with these inputs on these slots, and cuts y into the parts of the sequences.
///
/// Panics when the session refuses: laws are about graphs that run.
pub fn run_on_slots(
    graph: &Graph,
    store: &Arc<Store>,
    slots: &[usize],
    inputs: &[(Tensor, Vec<f32>)],
    y: Tensor,
) -> Vec<Vec<f32>> {
    let mut session = Session::with_store(graph, store).unwrap();
    for (tensor, values) in inputs {
        session.set(*tensor, values).unwrap();
    }
    session.set_slots(slots).unwrap();
    session.run().unwrap();
    let y = session.get::<f32>(y).unwrap();
    let each = y.len() / slots.len();
    y.chunks(each.max(1)).map(<[f32]>::to_vec).collect()
}
