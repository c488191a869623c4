//! Mamba-2: one decay per head and token.
//!
//! Of a prompt, the rows of a head are copied and turned (see [`crate::shared::tile`]), so that a token's sums need no
//! shuffles; a block of two vectors of rows stays in the first-level cache over all tokens. An element takes three
//! operations a token, which bind: two tokens go through the block in one pass, which halves loads and stores, and four
//! lanes of the tree at once, so that loops start and end less often. A single token is computed on the rows where they
//! lie, vectors along them, and written where they go, as fast as memory is. Both add in the same order, so that tokens
//! may be split over calls anywhere without changing a bit.
//!
//! Fewer operations would need several decays in one product, which a single token does not have.

use super::cpu::Scan;
use crate::shared::pool::Worker;
use crate::shared::tile::{self, Halves, LANES_MAX, Order, Tree, Turn, fold, lane_at};
use crate::shared::{math, prefetch, simd};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Most rows of a head that are shared out together: their x of a token is four cache lines.
const ROWS: usize = 64;
/// Rows that are shared out together where there would be few pieces of [`ROWS`]: two of the longest vectors.
const ROWS_OF_FEW: usize = 32;
/// Pieces for each worker that are not few.
const PIECES: usize = 4;
/// Tokens whose inputs are copied and steps computed together.
const TOKENS: usize = 16;
/// Rows of a single token that are computed together: as many as fold in one tree.
const GROUP: usize = 16;

/// Length of a row of state elements with its padding.
fn padded(states: usize) -> usize {
    states.next_multiple_of(LANES_MAX)
}

/// Scratch for rows of `states` elements: the states, rows on their way, and copies of B and C.
pub fn own_floats(states: usize) -> usize {
    padded(states) * (ROWS + LANES_MAX + 2 * TOKENS) + LANES_MAX
}

/// This worker's share: blocks of rows of one head.
pub fn run(scan: &Scan<'_>, worker: &Worker<'_>, own: &mut [f32]) {
    // Vectors that cross cache lines would take twice the time.
    let aligned = own.as_ptr().align_offset(LANES_MAX * size_of::<f32>()).min(LANES_MAX).min(own.len());
    let own = &mut own[aligned..];
    let pieces = scan.sequences * scan.heads * scan.head_dim.div_ceil(ROWS);
    let most = if pieces < PIECES * worker.count { ROWS_OF_FEW } else { ROWS };
    let blocks = scan.head_dim.div_ceil(most);
    for unit in worker.share(scan.sequences * scan.heads * blocks) {
        let first = unit % blocks * most;
        let head = unit / blocks % scan.heads;
        let rows = Rows {
            sequence: unit / (blocks * scan.heads),
            head,
            group: head / (scan.heads / scan.groups),
            first,
            count: most.min(scan.head_dim - first),
        };
        rows.run(scan, own);
    }
}

/// Rows `first..first + count` of one head of one sequence.
struct Rows {
    sequence: usize,
    head: usize,
    group: usize,
    first: usize,
    count: usize,
}

/// Inputs of up to [`TOKENS`] tokens.
struct Tokens<'a> {
    /// x of each row.
    inputs: &'a [[f32; ROWS]],
    /// B and C of each token, padded with zeros.
    projections: [(&'a [f32], &'a [f32]); TOKENS],
    /// After softplus.
    steps: [f32; TOKENS],
    /// Factors of the state.
    decays: [f32; TOKENS],
    count: usize,
}

impl Rows {
    fn run(&self, scan: &Scan<'_>, own: &mut [f32]) {
        let length = padded(scan.states);
        let (state, own) = own.split_at_mut(length * ROWS);
        let (staged, own) = own.split_at_mut(length * LANES_MAX);
        let (buffers, _) = own.split_at_mut(2 * TOKENS * length);
        let staged = &mut staged[..length * tile::lanes()];
        let mut rate = [0.0];
        scan.call.inputs[3].load([self.head, 0, 0], 0, &mut rate);
        if let Some((before, after)) = self.in_place(scan) {
            let (mut inputs, mut sums) = ([[0.0; ROWS]], [0.0; ROWS]);
            let tokens = self.load_tokens(scan, 0..1, rate[0], &mut inputs, buffers);
            simd::arch().dispatch(One { before, after, tokens: &tokens, sums: &mut sums });
            self.store_sums(scan, 0, &sums);
            return;
        }
        self.load_state(scan, state, staged);
        self.store_state(scan, 0, state, staged);
        let (mut inputs, mut sums) = ([[0.0; ROWS]; TOKENS], [[0.0; ROWS]; TOKENS]);
        let mut first = 0;
        while first < scan.tokens {
            let end = scan.first_snapshot().max(first + 1).min(scan.tokens).min(first + TOKENS);
            let tokens = self.load_tokens(scan, first..end, rate[0], &mut inputs, buffers);
            self.ask_for(scan, first..end);
            let blocks = self.count.div_ceil(2 * tile::lanes());
            let state = &mut state[..blocks * 2 * tile::lanes() * length];
            simd::arch().dispatch(Advance { state, length, tokens: &tokens, sums: &mut sums });
            for (token, sums) in (first..end).zip(&sums) {
                self.store_sums(scan, token, sums);
            }
            self.store_state(scan, end, state, staged);
            first = end;
        }
    }

    /// The rows before and after the call, where a single token may be computed on them as they lie.
    fn in_place<'a>(&self, scan: &Scan<'a>) -> Option<(&'a [f32], &'a mut [f32])> {
        let whole = scan.tokens == 1
            && scan.call.results.len() == 2
            && scan.states != 0
            && scan.states == padded(scan.states)
            && self.count.is_multiple_of(GROUP);
        let slot = scan.slot(self.sequence).filter(|_| whole)?;
        let before = scan.call.inputs[0].f32_rows([self.first, self.head, slot], self.count)?;
        let place = [self.first, self.head, self.sequence];
        // SAFETY: blocks are shared out among the workers, each to one.
        let after = unsafe { scan.call.results[1].f32_rows(place, self.count)? };
        Some((before, after))
    }

    fn load_tokens<'a>(
        &self,
        scan: &'a Scan<'_>,
        tokens: Range<usize>,
        rate: f32,
        inputs: &'a mut [[f32; ROWS]],
        buffers: &'a mut [f32],
    ) -> Tokens<'a> {
        for (token, inputs) in tokens.clone().zip(&mut *inputs) {
            let place = [self.head, token, self.sequence];
            scan.call.inputs[1].load(place, self.first, &mut inputs[..self.count]);
        }
        let mut loaded = Tokens {
            inputs,
            projections: [(&[], &[]); TOKENS],
            steps: [0.0; TOKENS],
            decays: [0.0; TOKENS],
            count: tokens.len(),
        };
        // With the tokens innermost, a head's steps are a row.
        let dt = scan.call.inputs[2].permuted([1, 0, 2, 3]);
        dt.load([self.head, self.sequence, 0], tokens.start, &mut loaded.steps[..tokens.len()]);
        let length = (buffers.len() / (2 * TOKENS)).max(1);
        let buffers = buffers.chunks_exact_mut(2 * length);
        for ((token, target), buffer) in tokens.zip(&mut loaded.projections).zip(buffers) {
            *target = scan.projections([self.group, token, self.sequence], length, buffer);
        }
        let (steps, decays) = (&mut loaded.steps, &mut loaded.decays);
        simd::vectorize(
            #[inline(always)]
            || {
                for (step, decay) in steps.iter_mut().zip(decays) {
                    *step = math::softplus(*step);
                    *decay = math::exp(*step * rate);
                }
            },
        );
        loaded
    }

    /// Asks memory for where y of these tokens goes, and for x of as many after them: rows of a head lie far apart, and
    /// the processor would not foresee them.
    fn ask_for(&self, scan: &Scan<'_>, tokens: Range<usize>) {
        let rows = self.first..self.first + self.count;
        for token in tokens.end..(tokens.end + TOKENS).min(scan.tokens) {
            if let Some(x) = scan.call.inputs[1].f32_row([self.head, token, self.sequence]) {
                prefetch::to_read(&x[rows.clone()]);
            }
        }
        for token in tokens {
            // SAFETY: blocks are shared out among the workers, each to one.
            let y = unsafe { scan.call.results[0].f32_row([self.head, token, self.sequence], rows.clone()) };
            prefetch::to_write(y);
        }
    }

    fn store_sums(&self, scan: &Scan<'_>, token: usize, sums: &[f32; ROWS]) {
        let place = [self.head, token, self.sequence];
        // SAFETY: blocks are shared out among the workers, each to one.
        unsafe { scan.call.results[0].store(place, self.first, &sums[..self.count]) }
    }

    fn load_state(&self, scan: &Scan<'_>, state: &mut [f32], staged: &mut [f32]) {
        let Some(slot) = scan.slot(self.sequence) else {
            state.fill(0.0);
            return;
        };
        let (lanes, order) = (tile::lanes(), Order::Tree);
        let length = staged.len() / lanes;
        for (first, block, vector) in tile::vectors(self.count, lanes) {
            let block = &mut state[block * 2 * lanes * length..][..2 * lanes * length];
            let count = lanes.min(self.count.saturating_sub(first));
            let place = [self.first + first, self.head, slot];
            let direct = scan.call.inputs[0].f32_rows(place, count);
            if let Some(rows) = direct.filter(|rows| rows.len() == staged.len()) {
                prefetch::to_read(rows);
                simd::arch().dispatch(Turn::In { rows, block, vectors: 2, vector, order });
                continue;
            }
            staged.fill(0.0);
            for (row, target) in staged.chunks_exact_mut(length.max(1)).take(count).enumerate() {
                let place = [place[0] + row, self.head, slot];
                scan.call.inputs[0].load(place, 0, &mut target[..scan.states]);
            }
            simd::arch().dispatch(Turn::In { rows: staged, block, vectors: 2, vector, order });
        }
    }

    /// Writes the states to the result that wants them after `tokens_done` tokens, if one does.
    fn store_state(&self, scan: &Scan<'_>, tokens_done: usize, state: &[f32], staged: &mut [f32]) {
        let Some(index) = scan.snapshot_after(tokens_done) else { return };
        let result = &scan.call.results[index];
        let (lanes, order) = (tile::lanes(), Order::Tree);
        let length = staged.len() / lanes;
        for (first, block, vector) in
            tile::vectors(self.count, lanes).filter(|(first, ..)| *first < self.count)
        {
            let block = &state[block * 2 * lanes * length..][..2 * lanes * length];
            let count = lanes.min(self.count - first);
            let place = [self.first + first, self.head, self.sequence];
            // SAFETY: blocks are shared out among the workers, each to one.
            let direct = unsafe { result.f32_rows(place, count) };
            if let Some(rows) = direct.filter(|rows| rows.len() == staged.len()) {
                prefetch::to_write(rows);
                simd::arch().dispatch(Turn::Out { rows, block, vectors: 2, vector, order });
                continue;
            }
            simd::arch().dispatch(Turn::Out { rows: &mut *staged, block, vectors: 2, vector, order });
            for (row, values) in staged.chunks_exact(length.max(1)).take(count).enumerate() {
                let place = [place[0] + row, self.head, self.sequence];
                // SAFETY: blocks are shared out among the workers, each to one.
                unsafe { result.store(place, 0, &values[..scan.states]) }
            }
        }
    }
}

/// Tokens on turned blocks: updates the states and writes y. A step of 0 leaves the states alone to the bit.
struct Advance<'a> {
    state: &'a mut [f32],
    /// Elements of a row with its padding.
    length: usize,
    tokens: &'a Tokens<'a>,
    sums: &'a mut [[f32; ROWS]; TOKENS],
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Several lanes at once start and end the loop over a row less often.
        match S::F32_LANES {
            16 => advance::<S, 4>(simd, self),
            1 => advance::<S, 1>(simd, self),
            _ => advance::<S, 2>(simd, self),
        }
    }
}

#[inline(always)]
fn advance<S: Simd, const K: usize>(simd: S, advance: Advance<'_>) {
    let Advance { state, length, tokens, sums } = advance;
    let blocks = S::as_mut_simd_f32s(state).0.as_chunks_mut::<2>().0;
    for (number, pairs) in blocks.chunks_exact_mut(length.max(1)).enumerate() {
        let mut token = 0;
        while token < tokens.count {
            let stays = |token: usize| tokens.steps[token] == 0.0;
            if token + 1 < tokens.count && !stays(token) && !stays(token + 1) {
                tokens_at::<S, K, 2, true>(simd, pairs, tokens, number, token, sums);
                token += 2;
            } else {
                match stays(token) {
                    true => tokens_at::<S, K, 1, false>(simd, pairs, tokens, number, token, sums),
                    false => tokens_at::<S, K, 1, true>(simd, pairs, tokens, number, token, sums),
                }
                token += 1;
            }
        }
    }
}

/// T tokens on the block with this number: one pass over its states for all of them.
#[inline(always)]
fn tokens_at<S: Simd, const K: usize, const T: usize, const MOVES: bool>(
    simd: S,
    pairs: &mut [[S::f32s; 2]],
    tokens: &Tokens<'_>,
    number: usize,
    first: usize,
    sums: &mut [[f32; ROWS]; TOKENS],
) {
    // Loops, not closures: those are not compiled for the instruction set unless they happen to be inlined.
    let mut moves = [Move::<S> { inputs: [simd.splat_f32s(0.0); 2], decay: simd.splat_f32s(0.0) }; T];
    let mut projections: [(&[f32], &[f32]); T] = [(&[], &[]); T];
    for (token, (moved, projections)) in (first..).zip(moves.iter_mut().zip(&mut projections)) {
        let step = simd.splat_f32s(tokens.steps[token]);
        moved.inputs = S::as_simd_f32s(&tokens.inputs[token]).0.as_chunks::<2>().0[number];
        for input in &mut moved.inputs {
            *input = simd.mul_f32s(*input, step);
        }
        moved.decay = simd.splat_f32s(tokens.decays[token]);
        *projections = tokens.projections[token];
    }
    let whole = pass::<S, K, T, MOVES>(simd, pairs, projections, &moves);
    for (sums, whole) in sums[first..].iter_mut().zip(whole) {
        S::as_mut_simd_f32s(sums).0.as_chunks_mut::<2>().0[number] = whole;
    }
}

/// How a token changes the states of two vectors of rows.
#[derive(Clone, Copy)]
struct Move<S: Simd> {
    /// x times the step.
    inputs: [S::f32s; 2],
    decay: S::f32s,
}

/// For one token after another s ← s · decay + b · input, where the states move; returns Σ s · c of each.
#[inline(always)]
fn pass<S: Simd, const K: usize, const T: usize, const MOVES: bool>(
    simd: S,
    pairs: &mut [[S::f32s; 2]],
    projections: [(&[f32], &[f32]); T],
    moves: &[Move<S>; T],
) -> [[S::f32s; 2]; T] {
    let across = pairs.len() / S::F32_LANES;
    let zero = [simd.splat_f32s(0.0); 2];
    let mut trees = [Tree::<S, 2>::new(simd); T];
    let mut whole = [zero; T];
    // Of equal length, so that one check serves all.
    let mut wide: [[&[S::f32s]; 2]; T] = [[&[]; 2]; T];
    for (wide, (b, c)) in wide.iter_mut().zip(projections) {
        *wide = [&S::as_simd_f32s(b).0[..across], &S::as_simd_f32s(c).0[..across]];
    }
    for (place, pairs) in pairs.chunks_exact_mut((K * across).max(1)).enumerate() {
        let lanes: [usize; K] = std::array::from_fn(|part| lane_at::<S>(place * K + part));
        let mut pairs = pairs.chunks_exact_mut(across);
        let pairs: [&mut [[S::f32s; 2]]; K] = std::array::from_fn(|_| pairs.next().expect("K parts"));
        let mut sums = [[zero; K]; T];
        for index in 0..across {
            for part in 0..K {
                let mut values = pairs[part][index];
                for token in 0..T {
                    let b = lane_of::<S>(simd, &wide[token][0][index], lanes[part]);
                    let c = lane_of::<S>(simd, &wide[token][1][index], lanes[part]);
                    for row in 0..2 {
                        if MOVES {
                            let decayed = simd.mul_f32s(values[row], moves[token].decay);
                            values[row] = simd.mul_add_e_f32s(b, moves[token].inputs[row], decayed);
                        }
                        sums[token][part][row] = simd.mul_add_e_f32s(values[row], c, sums[token][part][row]);
                    }
                }
                if MOVES {
                    pairs[part][index] = values;
                }
            }
        }
        for token in 0..T {
            // The tree's levels over the lanes that went together.
            let mut joined = sums[token];
            let mut width = 1;
            while width < K {
                for part in (0..K).step_by(2 * width) {
                    let later = joined[part + width];
                    for (sum, later) in joined[part].iter_mut().zip(later) {
                        *sum = simd.add_f32s(*sum, later);
                    }
                }
                width *= 2;
            }
            whole[token] = trees[token].add(simd, place, joined[0]);
        }
    }
    whole
}

#[inline(always)]
fn lane_of<S: Simd>(simd: S, vector: &S::f32s, lane: usize) -> S::f32s {
    simd.splat_f32s(bytemuck::cast_slice::<S::f32s, f32>(std::slice::from_ref(vector))[lane])
}

/// One token of whole groups of rows, each of whole vectors.
struct One<'a> {
    before: &'a [f32],
    after: &'a mut [f32],
    tokens: &'a Tokens<'a>,
    sums: &'a mut [f32; ROWS],
}

impl WithSimd for One<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.tokens.steps[0] == 0.0 {
            true => one::<S, false>(simd, self),
            false => one::<S, true>(simd, self),
        }
    }
}

#[inline(always)]
fn one<S: Simd, const MOVES: bool>(simd: S, one: One<'_>) {
    let One { before, after, tokens, sums } = one;
    let (b, c) = tokens.projections[0];
    let length = b.len();
    let ((bs, _), (cs, _)) = (S::as_simd_f32s(b), S::as_simd_f32s(c));
    let decay = simd.splat_f32s(tokens.decays[0]);
    let halves = Halves::new(simd);
    let group = GROUP * length;
    let ahead_bytes = group * size_of::<f32>();
    let groups = before.chunks_exact(group).zip(after.chunks_exact_mut(group));
    let places = sums.as_chunks_mut::<GROUP>().0.iter_mut().zip(tokens.inputs[0].as_chunks::<GROUP>().0);
    for ((from, to), (sums, inputs)) in groups.zip(places) {
        let mut wide = [simd.splat_f32s(0.0); LANES_MAX];
        let rows = from.chunks_exact(length).zip(to.chunks_exact_mut(length));
        for ((from, to), (sum, &input)) in rows.zip(wide.iter_mut().zip(inputs)) {
            let input = simd.splat_f32s(input * tokens.steps[0]);
            let values = S::as_simd_f32s(from).0.iter().zip(S::as_mut_simd_f32s(to).0);
            for ((from, to), (&b, &c)) in values.zip(bs.iter().zip(cs)) {
                // The processor's own prefetching ends with the page, of which a group is two. Line by line, since
                // requests wait where there are many; past the end is where other rows of the state usually are.
                prefetch::ahead(from, ahead_bytes);
                prefetch::ahead_to_write(&raw mut *to, ahead_bytes);
                let moved = match MOVES {
                    true => simd.mul_add_e_f32s(b, input, simd.mul_f32s(*from, decay)),
                    false => *from,
                };
                *to = moved;
                *sum = simd.mul_add_e_f32s(moved, c, *sum);
            }
        }
        if S::F32_LANES == LANES_MAX {
            let folded = [halves.fold_all(simd, &mut wide)];
            sums.copy_from_slice(bytemuck::cast_slice::<S::f32s, f32>(&folded));
        } else {
            sums.iter_mut().zip(wide).for_each(|(sum, wide)| *sum = fold(simd, wide));
        }
    }
}
