//! Random calls of what layers are made of, whole and in parts that the planner puts together.

use super::ops::{F32, PRODUCTS_MAX};
use super::{Maker, check::RUNS};
use ssmgraph::Tensor;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::qk_norm::QkNorm;
use ssmgraph_ops::rope::{Rope, RopeMode};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{Attention, DType, DecayGate, HostTensor, MulMatId, Repeat, RmsNorm, SsmConv, TopK};

const I32: DType = DType::I32;
const MUL: Binary = Binary { function: BinaryFunction::Mul };

impl Maker<'_> {
    /// The gated delta rule, of q and k that were normed and repeated in one way or another.
    pub(super) fn delta(&mut self) {
        let size = [4, 16, 1, 5, 0][self.choices.below(5)];
        let (key_heads, heads) = [(1, 1), (2, 4), (1, 3), (2, 2), (3, 6), (4, 3)][self.choices.below(6)];
        let (tokens, sequences) = (self.choices.below(5), self.choices.below(3));
        let rows = 1 + self.choices.below(3);
        let grouping = [Grouping::Tiled, Grouping::Interleaved][self.choices.below(2)];
        let shape = [size, key_heads, tokens, sequences];
        let [q, k] = [(); 2].map(|()| self.fit(F32, shape));
        let Some([q, k]) = self.prepared([q, k], heads, grouping) else { return };
        let pool = match self.states.last().copied() {
            Some(state) if self.choices.rarely(3) => state.pool,
            _ => self.fit(F32, [size, size, heads, rows]),
        };
        let gates = if self.choices.rarely(3) { size } else { 1 };
        let operands = [
            pool,
            q,
            k,
            self.fit(F32, [size, heads, tokens, sequences]),
            self.fit(F32, [gates, heads, tokens, sequences]),
            self.fit(F32, [1, heads, tokens, sequences]),
            self.ids(I32, [sequences, 1, 1, 1], rows),
        ];
        let snapshots = self.choices.below(4);
        self.op(GatedDeltaNet { grouping, snapshots }, &operands);
    }

    fn prepared(&mut self, qk: [Tensor; 2], heads: usize, grouping: Grouping) -> Option<[Tensor; 2]> {
        let form = [Form::Max, Form::Add][self.choices.below(2)];
        let eps = [1e-6, 1e-3][self.choices.below(2)];
        let [size, key_heads, tokens, sequences] = self.layout(qk[0]).ne;
        let repeat = Repeat { ne: [size, heads, tokens, sequences] };
        let steps: &[u8] = [&b""[..], b"q", b"n", b"r", b"nr", b"rn", b"Q"][self.choices.below(7)];
        let [mut q, mut k] = qk;
        for step in steps {
            if let b'q' | b'Q' = step {
                let heads = if *step == b'q' { key_heads } else { heads };
                let results = self.made.graph.op(QkNorm { eps, form, heads, grouping }, &[q, k]).ok()?;
                (q, k) = (results[0], results[1]);
                continue;
            }
            for x in [&mut q, &mut k] {
                *x = match step {
                    b'n' => self.op(L2Norm { eps, form }, &[*x])?,
                    _ => self.op(repeat, &[*x])?,
                };
            }
        }
        Some([q, k])
    }

    /// The decay, in one op or in three.
    pub(super) fn decay_gate(&mut self) {
        let alpha = self.any_f32();
        let ne = self.layout(alpha).ne;
        let shapes = [self.divisors(ne), self.divisors(ne)];
        let [a, bias] = shapes.map(|shape| self.fit(F32, shape));
        if self.choices.rarely(2) {
            self.op(DecayGate {}, &[alpha, a, bias]);
            return;
        }
        let Some(sum) = self.op(Binary { function: BinaryFunction::Add }, &[alpha, bias]) else { return };
        let Some(gate) = self.op(Unary { function: Function::Softplus }, &[sum]) else { return };
        self.op(MUL, &[gate, a]);
    }

    pub(super) fn rope(&mut self) {
        let (row, heads) = ([8, 2, 17, 5][self.choices.below(4)], 1 + self.choices.below(3));
        let (tokens, sequences) = (self.choices.below(5), self.choices.below(3));
        let sections = RopeMode::Sections { sections: [1, 1, 2, 0], interleaved: self.choices.rarely(2) };
        let (mode, lists) = match self.choices.below(4) {
            0 => (RopeMode::Neox, [sequences, 1]),
            1 => (RopeMode::Normal, [sequences, 1]),
            2 => (sections, [4, sequences]),
            _ => (sections, [1, sequences]),
        };
        let x = self.fit(F32, [row, heads, tokens, sequences]);
        let positions = self.ids(I32, [tokens, lists[0], lists[1], 1], 100);
        let n_rot = [2, 4, row][self.choices.below(3)];
        self.op(Rope { mode, n_rot, freq_base: 1e4, freq_scale: 1.0 }, &[x, positions]);
    }

    /// Attention over leaves, or over caches that the graph appends to.
    pub(super) fn attention(&mut self) {
        let (row, groups) = ([8, 16, 5, 1][self.choices.below(4)], 1 + self.choices.below(2));
        let heads = groups * (1 + self.choices.below(2)) + usize::from(self.choices.rarely(30));
        if self.choices.rarely(2) {
            let (tokens, sequences) = (self.choices.below(4), self.choices.below(3));
            let caches = [row, groups, 4 + self.choices.below(9), 2];
            let dtype = [F32, DType::F16][self.choices.below(2)];
            let operands = [
                self.fit(F32, [row, heads, tokens, sequences]),
                self.fit(dtype, caches),
                self.fit(dtype, caches),
                self.leaf_of_zeros([sequences, 1, 1, 1]),
                self.leaf_of_zeros([sequences, 1, 1, 1]),
            ];
            self.op(Attention { scale: 0.25 }, &operands);
            return;
        }
        let slots = self.slots();
        let caches = match &self.caches {
            Some(caches) => caches.clone(),
            None => {
                let capacity = RUNS * slots.spec.tokens + self.choices.below(3);
                let caches = self.made.graph.caches(&slots, capacity).expect("caches are declared once");
                self.caches.insert(caches).clone()
            }
        };
        let (tokens, sequences) = (slots.spec.tokens, slots.spec.sequences);
        let dtype = [F32, DType::F16][self.choices.below(2)];
        let pools = ["k", "v"].map(|which| {
            let rows = self.fit(F32, [row, groups, tokens * sequences, 1]);
            let graph = &mut self.made.graph;
            let name = format!("cache.{which}.{}", graph.len());
            let cache = graph.cache(&name, dtype, &[row, groups], &slots, &caches).expect("a fresh name");
            graph.append_to_cache(&cache, &caches, rows).ok()
        });
        let [Some(k), Some(v)] = pools else { return };
        let q = self.fit(F32, [row, heads, tokens, sequences]);
        self.op(Attention { scale: 0.25 }, &[q, k, v, caches.slots, caches.past]);
    }

    fn leaf_of_zeros(&mut self, ne: [usize; 4]) -> Tensor {
        let name = format!("zeros.{}", self.made.graph.len());
        let tensor = self.made.graph.input(&name, I32, &ne).expect("a small input of a fresh name");
        self.made.inputs.push((tensor, HostTensor::zeros(self.layout(tensor))));
        tensor
    }

    /// Products with picked matrices.
    pub(super) fn experts(&mut self) {
        let dtype = if self.choices.rarely(4) { DType::Q8_0 } else { self.choices.float() };
        let row = if dtype == DType::Q8_0 { 32 } else { self.choices.count() };
        let (outputs, experts) = (self.choices.count().min(17), 1 + self.choices.below(4));
        let (used, tokens) = (self.choices.below(4), self.choices.below(4));
        if row * outputs * used * tokens > PRODUCTS_MAX {
            return;
        }
        let a = self.fit(dtype, [row, outputs, experts, 1]);
        let rows = if self.choices.rarely(2) { 1 } else { used };
        let b = self.fit(F32, [row, rows, tokens, 1]);
        let ids = self.ids(I32, [used, tokens, 1, 1], experts);
        let quantize = MulMatId::of(self.layout(a).dtype).quantize && !self.choices.rarely(4);
        self.op(MulMatId { quantize }, &[a, b, ids]);
    }

    pub(super) fn top_k(&mut self) {
        let x = self.any_float();
        let k = self.choices.below(self.layout(x).ne[0].min(200) + 2);
        self.op(TopK { k }, &[x]);
    }

    /// Norm and gate in either order, with or without groups.
    pub(super) fn gated_norm_in_parts(&mut self) {
        let (group, groups) = ([4, 1, 17, 0][self.choices.below(4)], 1 + self.choices.below(3));
        let tokens = self.choices.below(4);
        let (grouped, shared) = (self.choices.rarely(2), self.choices.rarely(2));
        let (inner, row) = ([group, groups, tokens, 1], [group * groups, tokens, 1, 1]);
        let mut x = self.fit(F32, row);
        let gate_first = self.choices.rarely(2);
        if gate_first {
            let Some(gated) = self.gated(x) else { return };
            x = gated;
        }
        if grouped {
            x = self.made.graph.reshape(x, &inner).unwrap_or(x);
        }
        let Some(mut y) = self.op(RmsNorm { eps: 1e-5, weight: false }, &[x]) else { return };
        let weights = match (grouped, shared) {
            (false, _) => [group * groups, 1, 1, 1],
            (true, true) => [group, 1, 1, 1],
            (true, false) => [group, groups, 1, 1],
        };
        let w = self.fit(F32, weights);
        match self.op(MUL, &[y, w]) {
            Some(scaled) => y = scaled,
            None => return,
        }
        y = self.made.graph.reshape(y, &row).unwrap_or(y);
        self.take(y);
        if !gate_first {
            self.gated(y);
        }
    }

    fn gated(&mut self, x: Tensor) -> Option<Tensor> {
        let ne = self.layout(x).ne;
        let z = self.fit(F32, ne);
        if self.choices.rarely(3) {
            return self.op(Glu { function: GluFunction::Swiglu, split: true, swapped: false }, &[z, x]);
        }
        let function = [Function::Silu, Function::Sigmoid, Function::Gelu][self.choices.below(3)];
        let act = self.op(Unary { function }, &[z])?;
        let factors = if self.choices.rarely(2) { [act, x] } else { [x, act] };
        self.op(MUL, &factors)
    }

    /// Window and new inputs joined, windows written back, and the convolution.
    pub(super) fn conv_in_parts(&mut self) {
        let slots = self.slots();
        let (window, channels) = (1 + self.choices.below(3), [16, 1, 5][self.choices.below(3)]);
        let (tokens, sequences) = (slots.spec.tokens, slots.spec.sequences);
        let name = format!("window.{}", self.made.graph.len());
        let state = self.made.graph.state(&name, F32, &[window, channels], &slots).expect("a small state");
        let x = self.fit(F32, [channels, tokens, sequences, 1]);
        let w = self.fit(F32, [window + 1, channels, 1, 1]);
        let graph = &mut self.made.graph;
        let joined = graph.read_state(&state, &slots).and_then(|old| {
            let old = graph.reshape(old, &[window, channels, sequences])?;
            let turned = graph.transpose(x)?;
            graph.concat(&[old, turned], 0)
        });
        let Ok(joined) = joined else { return };
        for back in 0..slots.spec.stored() {
            // Without the newest window a session refuses the graph.
            if self.choices.rarely(5) && back > 0 {
                continue;
            }
            let first = (tokens - back.min(tokens)).saturating_sub(usize::from(self.choices.rarely(9)));
            let graph = &mut self.made.graph;
            let written = graph
                .slice(joined, 0, first, window)
                .and_then(|window| graph.cont(window))
                .and_then(|window| graph.write_state(&state, &slots, back, window));
            written.expect("a window of the joined inputs");
        }
        let conv = SsmConv { bias: false, silu: self.choices.rarely(2) };
        self.op(conv, &[joined, w]);
        if self.choices.rarely(5) {
            self.take(joined);
        }
    }
}
