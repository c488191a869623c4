//! Random graphs in memory that is used again as soon as its last reader is done, as a host's allocator does it.
//!
//! Each graph is computed there, and once more with every value in room of its own and watched by the host, so that
//! nothing is folded: what the host may look at must be the same. A fusion that reads too late, or writes too early,
//! meets somebody else's bytes in one of some hundred graphs.

use crate::folds::{SIGMOID, SILU, tensor};
use crate::graph::{float, packed};
use crate::plugin::Host;
use crate::sketch::{Id, Placing, Sketch};
use crate::{Add, Hosts};
use ssmgraph::ops::{Layout, Tolerance};
use ssmgraph_ggml::abi;
use std::ops::Range;

const GRAPHS: u64 = 400;
/// The emulator is slow.
const EMULATED_GRAPHS: u64 = 30;
/// What a host aligns to.
const ALIGN_BYTES: usize = 32;
/// Sums in another order, through a few nodes.
const TOLERANCE: Tolerance = Tolerance { rtol: 2e-3, atol: 2e-3 };
const TAPS: usize = 3;
/// Channels are heads times their size.
const HEAD: usize = 2;
const HEADS: usize = 2;
const CHANNELS: usize = HEAD * HEADS;

pub fn add(add: Add<'_>) {
    add("reuse::random_graphs", Hosts::All, random_graphs);
}

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    /// Below a count.
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % count as u64) as usize
    }

    /// True so often in a hundred.
    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn one_of(&mut self, ids: &[Id]) -> Id {
        ids[self.below(ids.len())]
    }
}

fn random_graphs(host: Host) {
    let graphs = if host.setting.cuda { EMULATED_GRAPHS } else { GRAPHS };
    let (mut folded, mut shared) = (0, 0);
    for seed in 0..graphs {
        let mut random = Random(seed << 32);
        let drawn = Drawn::new(&mut random);
        let sketch = drawn.finished(&mut random);
        let order = shuffled(&sketch, &mut random);
        let placing = reused(&sketch, &order, &mut random);
        let computed = order.iter().filter(|&&id| sketch.computes(id)).count();
        let done = sketch.check(&host, &order, &placing, TOLERANCE);
        folded += computed.saturating_sub(done.steps as usize);
        shared += usize::from(placing.bytes < sketch.apart().bytes / 2);
    }
    // What this test is about must occur.
    let graphs = graphs as usize;
    assert!(folded > graphs, "{folded} nodes folded in {graphs} graphs");
    assert!(shared > graphs / 4, "{shared} of {graphs} graphs in less than half the memory");
}

/// A graph that grows. Values that may be operands of others are all of one shape.
struct Drawn {
    sketch: Sketch,
    values: Vec<Id>,
    tokens: usize,
    sequences: usize,
    /// Windows, and states, by rows of one sequence.
    windows: Id,
    states: Id,
}

impl Drawn {
    fn new(random: &mut Random) -> Drawn {
        let (tokens, sequences) = ([1, 2, 5][random.below(3)], 1 + random.below(2));
        let mut sketch = Sketch::default();
        let windows = sketch.cache(tensor(&[4 * (TAPS - 1) * CHANNELS], 0.3, 0.1));
        let states = sketch.cache(tensor(&[4 * HEAD * CHANNELS], 0.2, -0.1));
        let leaf = |index: usize| tensor(&[CHANNELS, tokens, sequences], 0.5 + 0.2 * index as f32, 0.1);
        let values = (0..3).map(|index| sketch.leaf(leaf(index))).collect();
        let mut drawn = Drawn { sketch, values, tokens, sequences, windows, states };
        for _ in 0..2 + random.below(5) {
            match random.below(6) {
                0 | 1 => drawn.gated_norm(random),
                2 | 3 => drawn.convolution(random),
                4 => drawn.delta_net(random),
                _ => drawn.elementwise(random),
            }
        }
        drawn
    }

    /// The graph, with what nobody reads, and some more, watched.
    fn finished(self, random: &mut Random) -> Sketch {
        let mut sketch = self.sketch;
        let read: Vec<Id> = sketch.values.iter().flat_map(|value| value.sources.clone()).collect();
        for id in 0..sketch.values.len() {
            // A value that is watched stays; a copy stays as long as its target does.
            let is_own = sketch.values[id].root == id && sketch.computes(id);
            let chance = if read.contains(&id) { 3 } else { 90 };
            if is_own && random.percent(chance) {
                sketch.output(id);
            }
        }
        sketch
    }

    fn layout(&self) -> Layout {
        packed(&[CHANNELS, self.tokens, self.sequences])
    }

    /// A value, mostly a new one: then fewer have a second reader.
    fn any(&self, random: &mut Random) -> Id {
        let from = if random.percent(60) { self.values.len().saturating_sub(3) } else { 0 };
        random.one_of(&self.values[from..])
    }

    fn node(&mut self, op: i32, params: &[i32], sources: &[Id]) -> Id {
        let layout = self.layout();
        self.sketch.node(op, params, sources, &layout)
    }

    /// A part that others may read, now and then.
    fn part(&mut self, id: Id, random: &mut Random) -> Id {
        if random.percent(6) {
            self.values.push(id);
        }
        id
    }

    fn gated_norm(&mut self, random: &mut Random) {
        let (x, z) = (self.any(random), self.any(random));
        let weight = self.sketch.leaf(tensor(&[CHANNELS], 0.3, 1.0));
        let norm = self.node(abi::OP_RMS_NORM, &[float(1e-2)], &[x]);
        let norm = self.part(norm, random);
        let scaled = self.node(abi::OP_MUL, &[], &[norm, weight]);
        let scaled = self.part(scaled, random);
        let gate = self.node(abi::OP_UNARY, &[[SILU, SIGMOID][random.below(2)]], &[z]);
        let gate = self.part(gate, random);
        let both = if random.percent(50) { [scaled, gate] } else { [gate, scaled] };
        let product = self.node(abi::OP_MUL, &[], &both);
        self.values.push(product);
    }

    fn elementwise(&mut self, random: &mut Random) {
        let (a, b) = (self.any(random), self.any(random));
        let value = match random.below(3) {
            0 => self.node(abi::OP_ADD, &[], &[a, b]),
            1 => self.node(abi::OP_SCALE, &[float(0.7), float(0.1)], &[a]),
            _ => self.node(abi::OP_UNARY, &[SIGMOID], &[a]),
        };
        self.values.push(value);
    }

    /// Rows of a cache of `row` elements each, from a random one on, in a shape.
    fn rows(&mut self, cache: Id, row: usize, layout: &Layout, random: &mut Random) -> Id {
        let first = random.below(4 - self.sequences + 1);
        self.sketch.view(cache, layout, 4 * first * row)
    }

    /// What a recurrent node starts from: rows of a cache, or a copy of them as `ggml_get_rows` makes it.
    fn start(&mut self, cache: Id, row: usize, layout: &Layout, random: &mut Random) -> Id {
        let rows = self.rows(cache, row, layout, random);
        if random.percent(30) { rows } else { self.sketch.node(abi::OP_CONT, &[], &[rows], layout) }
    }

    /// Copies to rows of the cache, or to memory of the graph that is read afterwards.
    fn keep(&mut self, from: Id, cache: Id, row: usize, random: &mut Random) {
        let layout = packed(&[row * self.sequences]);
        if random.percent(75) {
            let target = self.rows(cache, row, &layout, random);
            let copy = self.sketch.copy(from, target);
            if random.percent(20) {
                let reader = self.sketch.node(abi::OP_SCALE, &[float(2.0), 0], &[copy], &layout);
                self.sketch.output(reader);
            }
            return;
        }
        let target = self.sketch.scratch(&layout);
        let copy = self.sketch.copy(from, target);
        let reader = self.sketch.node(abi::OP_SCALE, &[float(2.0), 0], &[copy], &layout);
        self.sketch.output(reader);
    }

    fn convolution(&mut self, random: &mut Random) {
        let (tokens, sequences, row) = (self.tokens, self.sequences, (TAPS - 1) * CHANNELS);
        let window = packed(&[TAPS - 1, CHANNELS, sequences]);
        let window = self.start(self.windows, row, &window, random);
        let x = self.any(random);
        let turned = self.sketch.transpose(x);
        let weight = self.sketch.leaf(tensor(&[TAPS, CHANNELS], 0.3, 0.05));
        let whole = packed(&[TAPS - 1 + tokens, CHANNELS, sequences]);
        let joined = self.sketch.node(abi::OP_CONCAT, &[0], &[window, turned], &whole);
        let mut y = self.node(abi::OP_SSM_CONV, &[], &[joined, weight]);
        let last = self.sketch.view(
            joined,
            &Layout { ne: [TAPS - 1, CHANNELS, sequences, 1], ..whole },
            // Now and then these are not the last ones.
            4 * tokens.saturating_sub(usize::from(random.percent(5))),
        );
        self.keep(last, self.windows, row, random);
        if random.percent(4) {
            self.keep(last, self.windows, row, random);
        }
        if random.percent(50) {
            let bias = self.sketch.leaf(tensor(&[CHANNELS], 0.2, 0.1));
            y = self.part(y, random);
            y = self.node(abi::OP_ADD, &[], &[y, bias]);
        }
        if random.percent(70) {
            y = self.part(y, random);
            y = self.node(abi::OP_UNARY, &[SILU], &[y]);
        }
        self.values.push(y);
    }

    fn delta_net(&mut self, random: &mut Random) {
        let (tokens, sequences, row) = (self.tokens, self.sequences, HEAD * CHANNELS);
        let snapshots = 1 + random.below(2);
        let heads = packed(&[HEAD, HEADS, tokens, sequences]);
        let mut operands: Vec<Id> = (0..3)
            .map(|_| {
                let value = self.any(random);
                let gate = self.node(abi::OP_UNARY, &[SIGMOID], &[value]);
                self.sketch.view(gate, &heads, 0)
            })
            .collect();
        let gates = [1, HEADS, tokens, sequences];
        operands.push(self.sketch.leaf(tensor(&gates, 0.1, -0.5)));
        operands.push(self.sketch.leaf(tensor(&gates, 0.1, 0.5)));
        let state = packed(&[HEAD, HEAD, HEADS, sequences]);
        operands.push(self.start(self.states, row, &state, random));
        let (y, one) = (CHANNELS * tokens * sequences, row * sequences);
        let node = self.sketch.node(
            abi::OP_GATED_DELTA_NET,
            &[snapshots as i32],
            &operands,
            &packed(&[y + snapshots * one]),
        );
        for index in 0..snapshots.min(tokens) {
            let shown = self.sketch.view(node, &packed(&[one]), 4 * (y + index * one));
            self.keep(shown, self.states, row, random);
        }
        let layout = self.layout();
        let y = self.sketch.view(node, &layout, 0);
        self.values.push(y);
    }
}

/// An order in which operands come first, else by chance. What reads or writes a cache comes in any order.
fn shuffled(sketch: &Sketch, random: &mut Random) -> Vec<Id> {
    let mut rest = sketch.order();
    let mut order = Vec::new();
    while !rest.is_empty() {
        let is_ready = |id: Id| sketch.values[id].sources.iter().all(|source| !rest.contains(source));
        let ready: Vec<usize> = (0..rest.len()).filter(|&place| is_ready(rest[place])).collect();
        // Near to the order of drawing, as hosts do, or not.
        let place = if random.percent(50) { ready[0] } else { ready[random.below(ready.len())] };
        order.push(rest.remove(place));
    }
    order
}

/// Places each value when it is first needed, where nothing lies that is still to be read.
fn reused(sketch: &Sketch, order: &[Id], random: &mut Random) -> Placing {
    let first = |root: Id| order.iter().position(|&id| touches(sketch, id, root));
    let last = |root: Id| order.iter().rposition(|&id| touches(sketch, id, root));
    let mut starts = vec![0; sketch.values.len()];
    let mut living: Vec<(Id, Range<usize>)> = Vec::new();
    let mut bytes = 0;
    let mut place = |root: Id, living: &mut Vec<(Id, Range<usize>)>, start: usize| {
        starts[root] = start;
        let end = start + sketch.values[root].layout.span_bytes();
        living.push((root, start..end));
        bytes = bytes.max(end);
    };
    let roots: Vec<Id> = (0..sketch.values.len()).filter(|&id| sketch.values[id].root == id).collect();
    // Inputs are written before the graph starts.
    for &root in roots.iter().filter(|&&root| sketch.is_input(root)) {
        let start = free(sketch, root, &living, random);
        place(root, &mut living, start);
    }
    for (time, &id) in order.iter().enumerate() {
        for &root in roots.iter().filter(|&&root| !sketch.is_input(root) && first(root) == Some(time)) {
            let over = sketch.values[id].sources.iter().copied().find(|&source| {
                root == id
                    && random.percent(70)
                    && may_take_over(sketch, id, source)
                    && last(source) == Some(time)
            });
            match over {
                Some(source) => {
                    let taken = living.iter().position(|(living, _)| *living == source).expect("still read");
                    let start = living.remove(taken).1.start;
                    place(root, &mut living, start);
                }
                None => {
                    let start = free(sketch, root, &living, random);
                    place(root, &mut living, start);
                }
            }
        }
        let outlives = |root: Id| {
            let is_seen = sketch.results().any(|id| sketch.values[id].root == root);
            is_seen || last(root).is_none_or(|last| last > time)
        };
        living.retain(|(root, _)| outlives(*root));
    }
    Placing { starts, bytes: bytes.next_multiple_of(4) }
}

/// Whether a node writes to the bytes of a root, or reads them.
fn touches(sketch: &Sketch, id: Id, root: Id) -> bool {
    let value = &sketch.values[id];
    value.root == root || value.sources.iter().any(|&source| sketch.values[source].root == root)
}

/// Whether a host puts the result over this operand when nobody reads it later.
fn may_take_over(sketch: &Sketch, id: Id, source: Id) -> bool {
    let ops = [abi::OP_RMS_NORM, abi::OP_UNARY, abi::OP_ADD, abi::OP_MUL, abi::OP_SCALE];
    let (value, operand) = (&sketch.values[id], &sketch.values[source]);
    let is_alone = sketch.values.iter().filter(|other| other.root == source).count() == 1;
    let is_free = operand.root == source && is_alone && !operand.is_output && !operand.is_cache;
    ops.contains(&value.op) && is_free && operand.layout == value.layout
}

/// A place where nothing lives: at the start, or behind something.
fn free(sketch: &Sketch, root: Id, living: &[(Id, Range<usize>)], random: &mut Random) -> usize {
    let length = sketch.values[root].layout.span_bytes();
    let ends = living.iter().map(|(_, range)| range.end.next_multiple_of(ALIGN_BYTES));
    let is_free =
        |start: &usize| living.iter().all(|(_, range)| start + length <= range.start || range.end <= *start);
    let mut places: Vec<usize> = ends.chain([0]).filter(is_free).collect();
    places.sort_unstable();
    // Mostly the first that fits.
    if random.percent(70) { places[0] } else { places[random.below(places.len())] }
}
