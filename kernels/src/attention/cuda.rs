//! Launches of `attention`.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, embedded};
use ssmgraph_ops::attention::{PAST_RULE, SLOT_RULE};
use ssmgraph_ops::{Attention, DType, Layout};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("attention");

const THREADS: usize = 128;
/// Positions of a block: one for each thread.
const BLOCK: usize = THREADS;
/// Dynamic shared memory beside the kernel's own.
const SHARED_BYTES_MAX: usize = 44 << 10;
/// So many queries keep a device busy with a block of threads each.
const QUERIES_UNCUT: usize = 512;
/// Most scratch for cut queries.
const SCRATCH_BYTES_MAX: usize = 64 << 20;

/// How a call is cut.
struct Cut {
    queries: usize,
    /// Blocks of positions of a query that different blocks of threads take; 1 when one takes them all.
    pieces: usize,
    scratch_bytes: usize,
}

impl Cut {
    fn of(inputs: &[Layout]) -> Option<Cut> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let queries = q.ne[1].checked_mul(q.ne[2])?.checked_mul(q.ne[3])?;
        let pieces = k.ne[2].div_ceil(BLOCK);
        let cut = || {
            let partials = queries.checked_mul(pieces)?;
            let bytes = partials.checked_mul(v.ne[0].checked_add(2)?.checked_mul(size_of::<f32>())?)?;
            let fits = queries < QUERIES_UNCUT && pieces > 1 && bytes <= SCRATCH_BYTES_MAX;
            fits.then_some(Cut { queries, pieces, scratch_bytes: bytes })
        };
        Some(cut().unwrap_or(Cut { queries, pieces: 1, scratch_bytes: 0 }))
    }
}

fn shared_bytes(inputs: &[Layout]) -> Option<usize> {
    let floats = inputs[0].ne[0].checked_add(inputs[2].ne[0])?;
    floats.checked_mul(size_of::<f32>())
}

impl CudaKernel for Attention {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        if shared_bytes(inputs).is_none_or(|bytes| bytes > SHARED_BYTES_MAX) {
            return Err(Declined("rows longer than a block's shared memory".into()));
        }
        let blocks = Cut::of(inputs).and_then(|cut| cut.queries.checked_mul(cut.pieces));
        match blocks.is_some_and(|blocks| blocks <= GRID_X_MAX) {
            true => Ok(()),
            false => Err(Declined("more queries than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        match results[0].is_empty() {
            true => 0,
            false => Cut::of(inputs).map_or(0, |cut| cut.scratch_bytes),
        }
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let [q, k, v, slots, past] = call.inputs else { unreachable!("the arity was checked") };
        let y = &call.results[0];
        if y.layout.is_empty() {
            return Vec::new();
        }
        let layouts: Vec<Layout> = call.inputs.iter().map(|tensor| tensor.layout).collect();
        let cut = Cut::of(&layouts).expect("supported");
        let [caches, room] = [k.layout.ne[3], k.layout.ne[2] - q.layout.ne[2] + 1];
        let params = Params::new().tensor(q).tensor(k).tensor(v).tensor(slots).tensor(past).tensor(y);
        let params = params.address(call.scratch).address(call.fault).size(cut.pieces).size(room);
        let params = params.size(q.layout.ne[1] / k.layout.ne[1]).f32(self.scale).i32(0);
        let entry = match (k.layout.dtype, cut.pieces) {
            (DType::F16, 1) => "attention_f16",
            (DType::F16, _) => "attention_f16_pieces",
            (_, 1) => "attention_f32",
            _ => "attention_f32_pieces",
        };
        let shared = shared_bytes(&layouts).expect("supported");
        let main = Launch::line(&IMAGE, entry, cut.queries * cut.pieces, THREADS, params.clone())
            .with_shared(shared)
            .guarded_below("slots", caches, SLOT_RULE)
            .guarded_below("past", room, PAST_RULE);
        match cut.pieces {
            1 => vec![main],
            _ => vec![main, Launch::line(&IMAGE, "attention_join", cut.queries, THREADS, params)],
        }
    }
}
