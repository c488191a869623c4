//! One random call of the builder.

use super::{ELEMENTS_MAX, Maker};
use ssmgraph::Tensor;
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{
    Argmax, Concat, Cumsum, DType, GetRows, Layout, Mean, MulMat, Op, Permute, Repeat, Reshape, RmsNorm,
    Scale, SetRows, SoftMax, SsmConv, SsmConvStep, SsmScan, Sum, SumRows, Transpose, Window,
};

/// Most multiplications of one matrix product.
pub(super) const PRODUCTS_MAX: usize = 100_000;
pub(super) const F32: DType = DType::F32;

impl Maker<'_> {
    /// One call; refusals are fine.
    pub(super) fn call(&mut self) {
        match self.choices.below(40) {
            0 | 1 => self.unary(),
            2..=4 => self.binary(),
            5 => self.glu(),
            6 => self.get_rows(),
            7..=9 => self.set_rows(),
            10 => self.reduce(),
            11 => self.turn(),
            12 | 13 => self.reshape(),
            14 | 15 => self.slice(),
            16 => self.view(),
            17 => self.mul_mat(),
            18 => self.norm(),
            19 => self.conv(),
            20 => self.scan(),
            21 => self.copy(),
            22 => self.concat(),
            23 => self.repeat(),
            24..=27 => self.state(),
            28 | 29 => self.flag(),
            30 => self.new_leaf(),
            31 => self.nonsense(),
            32 => self.delta(),
            33 => self.decay_gate(),
            34 => self.rope(),
            35 => self.attention(),
            36 => self.experts(),
            37 => self.top_k(),
            38 => self.gated_norm_in_parts(),
            _ => self.conv_in_parts(),
        }
    }

    pub(super) fn op(&mut self, op: impl Into<Op>, operands: &[Tensor]) -> Option<Tensor> {
        let results = self.made.graph.op(op, operands);
        let first = results.as_ref().ok().and_then(|results| results.first().copied());
        self.take_all(results);
        first
    }

    fn unary_function(&mut self) -> Function {
        use Function::{Exp, Gelu, Neg, Relu, Sigmoid, Silu, Softplus, Tanh};
        [Silu, Sigmoid, Softplus, Exp, Neg, Relu, Tanh, Gelu][self.choices.below(8)]
    }

    fn unary(&mut self) {
        let x = self.any_float();
        if self.choices.rarely(3) {
            self.op(Scale { scale: 0.75, bias: 0.5 }, &[x]);
        } else {
            let function = self.unary_function();
            self.op(Unary { function }, &[x]);
        }
    }

    fn binary_function(&mut self) -> BinaryFunction {
        use BinaryFunction::{Add, Div, Mul, Sub};
        [Add, Sub, Mul, Div][self.choices.below(4)]
    }

    fn binary(&mut self) {
        let a = self.any_float();
        let shape = self.divisors(self.layout(a).ne);
        let dtype = self.choices.float();
        let b = self.fit(dtype, shape);
        let function = self.binary_function();
        self.op(Binary { function }, &[a, b]);
    }

    fn glu(&mut self) {
        use GluFunction::{Geglu, Reglu, Swiglu};
        let function = [Swiglu, Geglu, Reglu][self.choices.below(3)];
        let a = self.any_float();
        let layout = self.layout(a);
        if self.choices.rarely(2) {
            let b = self.fit(layout.dtype, layout.ne);
            let swapped = self.choices.rarely(9);
            self.op(Glu { function, split: true, swapped }, &[a, b]);
        } else {
            let swapped = self.choices.rarely(2);
            self.op(Glu { function, split: false, swapped }, &[a]);
        }
    }

    fn get_rows(&mut self) {
        let table = match self.choices.below(4) {
            0 => {
                let ne = self.choices.shape();
                self.weight(DType::Q8_0, [32, ne[0].min(40), 1, 1])
            }
            _ => self.any(),
        };
        let [_, rows, a2, a3] = self.layout(table).ne;
        let count = self.choices.count();
        let ids = self.ids(DType::I32, [count, a2, a3, 1], rows);
        self.op(GetRows, &[table, ids]);
    }

    /// Updates of what was computed, of leaves, of states and of views of all of them, and more than once.
    fn set_rows(&mut self) {
        let table = self.any_float();
        let [row, places, a2, a3] = self.layout(table).ne;
        let count = self.choices.count().min(17);
        let source = self.fit(F32, [row, count, a2, a3]);
        let dtype = [DType::I32, DType::I64][self.choices.below(2)];
        let lists = if self.choices.rarely(2) { [1.min(a2), 1.min(a3)] } else { [a2, a3] };
        let ids = self.ids(dtype, [count, lists[0], lists[1], 1], places);
        self.op(SetRows, &[table, source, ids]);
    }

    fn reduce(&mut self) {
        let x = self.any_float();
        match self.choices.below(5) {
            0 => self.op(Cumsum, &[x]),
            1 => self.op(Argmax, &[x]),
            2 => self.op(Mean, &[x]),
            3 => self.op(Sum, &[x]),
            _ => self.op(SumRows, &[x]),
        };
    }

    fn turn(&mut self) {
        let x = self.any();
        if self.choices.rarely(3) {
            self.op(Transpose, &[x]);
        } else {
            let mut axes = self.choices.permutation();
            if self.choices.rarely(30) {
                axes[0] = self.choices.below(6);
            }
            self.op(Permute { axes }, &[x]);
        }
    }

    /// Axes merged or split, or something that does not fit.
    fn reshape(&mut self) {
        let x = self.any();
        let ne = self.layout(x).ne;
        let [a, b, c, d] = ne;
        let shape = match self.choices.below(8) {
            0 => [a * b * c * d, 1, 1, 1],
            1 => [a * b, c, d, 1],
            2 => [a, b * c, d, 1],
            3 => [a, 1, b, c * d],
            4 if a % 2 == 0 => [a / 2, 2, b, c * d],
            5 if b % 2 == 0 => [a, b / 2, 2 * c, d],
            6 => [1, a, b * c, d],
            7 if self.choices.rarely(8) => [a + 1, b, c, d],
            _ => [a, b, c * d, 1],
        };
        self.op(Reshape { ne: shape }, &[x]);
    }

    fn slice(&mut self) {
        let x = self.any();
        let axis = self.choices.axis();
        let there = self.layout(x).ne.get(axis).copied().unwrap_or(1);
        let first = self.choices.below(there + 1);
        let count = self.choices.below(there - first + 1) + usize::from(self.choices.rarely(40));
        let result = self.made.graph.slice(x, axis, first, count);
        if result.is_ok() {
            let wanted = self.layout(x).ne[axis].min(count);
            assert_eq!(self.layout(result.clone().expect("just made")).ne[axis], wanted);
        }
        self.take_all(result.map(Some));
    }

    /// Strides of any kind: those of the tensor, repeated elements, overlapping windows.
    fn view(&mut self) {
        let x = self.any();
        let layout = self.layout(x);
        let size = layout.dtype.block_bytes();
        let mut ne = self.choices.shape();
        if !self.choices.rarely(3) {
            (0..4).for_each(|axis| ne[axis] = ne[axis].min(layout.ne[axis]));
        }
        ne[0] = ne[0].next_multiple_of(layout.dtype.block_len());
        let mut nb = layout.nb;
        // Bytes between elements have no meaning, so nothing may be seen of them.
        if layout.span_bytes() != layout.blocks().iter().product::<usize>() * size {
            (0..4).for_each(|axis| ne[axis] = ne[axis].min(layout.ne[axis]));
            self.op(Window { ne, nb, offset_bytes: 0 }, &[x]);
            return;
        }
        for stride in &mut nb {
            match self.choices.below(12) {
                0 => *stride = 0,
                1 => *stride = size,
                2 => *stride = size * self.choices.below(9),
                3 if self.choices.rarely(8) => *stride = usize::MAX - 7,
                _ => {}
            }
        }
        let offset_bytes = size * self.choices.below(6) / (1 + usize::from(self.choices.rarely(30)));
        self.op(Window { ne, nb, offset_bytes }, &[x]);
    }

    fn mul_mat(&mut self) {
        let mut b = self.any_f32();
        let dtype = match self.choices.below(5) {
            0 => DType::Q8_0,
            _ => self.choices.float(),
        };
        if dtype == DType::Q8_0 && !self.layout(b).ne[0].is_multiple_of(32) {
            let ne = self.choices.shape();
            b = self.fit(F32, [64, ne[1].min(9), ne[2].min(3), 1]);
        }
        let [k, n, b2, b3] = self.layout(b).ne;
        let rows = self.choices.count();
        if k.max(1) * n.max(1) * b2.max(1) * b3.max(1) * rows > PRODUCTS_MAX {
            return;
        }
        let shape = match self.choices.below(3) {
            0 => [k, rows, 1, 1],
            1 => [k, rows, b2, b3],
            _ => [k, rows, b2, 1],
        };
        let a = self.fit(dtype, shape);
        let quantize = MulMat::of(self.layout(a).dtype).quantize && !self.choices.rarely(4);
        self.op(MulMat { quantize }, &[a, b]);
    }

    fn norm(&mut self) {
        let x = self.any_float();
        let layout = self.layout(x);
        let eps = [1e-5, 0.5, 1e-3][self.choices.below(3)];
        match self.choices.below(6) {
            0 => {
                self.op(RmsNorm { eps, weight: false }, &[x]);
            }
            1 => {
                let shape = self.divisors(layout.ne);
                let weight = self.fit(F32, shape);
                self.op(RmsNorm { eps, weight: true }, &[x, weight]);
            }
            2 => {
                let form = [Form::Max, Form::Add][self.choices.below(2)];
                self.op(L2Norm { eps, form }, &[x]);
            }
            3 => {
                let z = self.fit(layout.dtype, layout.ne);
                let group_size = [layout.ne[0], 1, 2, 16, 0][self.choices.below(5)];
                let w = self.fit(F32, [layout.ne[0], 1, 1, 1]);
                let order = [Order::NormThenGate, Order::GateThenNorm][self.choices.below(2)];
                let gate = [Gate::Silu, Gate::Sigmoid][self.choices.below(2)];
                self.op(GatedNorm { eps, group_size, order, gate }, &[x, z, w]);
            }
            4 => {
                let mask = if self.choices.rarely(2) {
                    let shape = self.divisors(layout.ne);
                    let dtype = [F32, DType::F16][self.choices.below(2)];
                    Some(self.fit(dtype, shape))
                } else {
                    None
                };
                let operands: Vec<Tensor> = [x].into_iter().chain(mask).collect();
                self.op(SoftMax { scale: 0.5, mask: mask.is_some() }, &operands);
            }
            // What the planner folds into one op.
            _ => {
                let Some(norm) = self.op(RmsNorm { eps, weight: false }, &[x]) else { return };
                let shape = self.divisors(layout.ne);
                let dtype = self.choices.float();
                let weight = if self.choices.rarely(6) { norm } else { self.fit(dtype, shape) };
                self.op(Binary { function: BinaryFunction::Mul }, &[norm, weight]);
            }
        }
    }

    /// A convolution that keeps its window.
    fn conv_step(&mut self) {
        let (taps, channels) = (1 + self.choices.below(5), [16, 1, 33, 0][self.choices.below(4)]);
        let (tokens, sequences) = (self.choices.below(5), self.choices.below(3));
        let (rows, bias) = (1 + self.choices.below(3), self.choices.rarely(2));
        let pool = match self.states.last().copied() {
            Some(state) if self.choices.rarely(3) => state.pool,
            _ => self.fit(F32, [taps - 1, channels, 1, rows]),
        };
        let mut operands = vec![
            pool,
            self.fit(F32, [channels, tokens, sequences, 1]),
            self.fit(F32, [taps, channels, 1, 1]),
        ];
        if bias {
            operands.push(self.fit(F32, [channels, 1, 1, 1]));
        }
        operands.push(self.ids(DType::I32, [sequences, 1, 1, 1], rows));
        let (silu, snapshots) = (self.choices.rarely(2), self.choices.below(4));
        self.op(SsmConvStep { bias, silu, snapshots }, &operands);
    }

    /// A convolution, and what the planner folds into it.
    fn conv(&mut self) {
        if self.choices.rarely(3) {
            return self.conv_step();
        }
        let shape = self.choices.shape();
        let (columns, channels, sequences) = (shape[0], shape[1].min(33), shape[2].min(3));
        let taps = 1 + self.choices.below(4);
        let sx = self.fit(F32, [columns, channels, sequences, 1]);
        let w = self.fit(F32, [taps, channels, 1, 1]);
        let (bias, silu) = (self.choices.rarely(4), self.choices.rarely(4));
        let mut operands = vec![sx, w];
        if bias {
            operands.push(self.fit(F32, [channels, 1, 1, 1]));
        }
        let Some(mut y) = self.op(SsmConv { bias, silu }, &operands) else { return };
        if self.choices.rarely(2) {
            let dtype = self.choices.float();
            let bias = self.fit(dtype, [channels, 1, 1, 1]);
            match self.op(Binary { function: BinaryFunction::Add }, &[y, bias]) {
                Some(sum) => y = sum,
                None => return,
            }
        }
        if self.choices.rarely(2) {
            self.op(Unary { function: Function::Silu }, &[y]);
        }
    }

    fn scan(&mut self) {
        let per_state = self.choices.rarely(2);
        let states = [4, 16, 1, 17, 0][self.choices.below(5)];
        let head_dim = if per_state { 1 } else { [3, 1, 16, 0][self.choices.below(4)] };
        let (heads, groups) = [(2, 1), (4, 2), (1, 1), (3, 3), (6, 3), (4, 3)][self.choices.below(6)];
        let (tokens, sequences) = (self.choices.below(5), self.choices.below(3));
        let rows = 1 + self.choices.below(3);
        let decay = if per_state { states } else { 1 };
        let pool = match self.states.last().copied() {
            Some(state) if self.choices.rarely(3) => state.pool,
            _ => self.fit(F32, [states, head_dim, heads, rows]),
        };
        let operands = [
            pool,
            self.fit(F32, [head_dim, heads, tokens, sequences]),
            self.fit(F32, [heads, tokens, sequences, 1]),
            self.fit(F32, [decay, heads, 1, 1]),
            self.fit(F32, [states, groups, tokens, sequences]),
            self.fit(F32, [states, groups, tokens, sequences]),
            self.ids(DType::I32, [sequences, 1, 1, 1], rows),
        ];
        let snapshots = self.choices.below(4);
        self.op(SsmScan { snapshots }, &operands);
    }

    fn copy(&mut self) {
        let x = self.any();
        let layout = self.layout(x);
        let result = match self.choices.below(3) {
            0 => self.made.graph.cont(x),
            1 => {
                let all = [F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::Q8_0];
                let dtype = all[self.choices.below(all.len())];
                self.made.graph.cast(x, dtype)
            }
            _ => {
                let mut nb = layout.to_contiguous().nb;
                let gap = 1 + self.choices.below(3);
                let from = self.choices.below(4);
                (from..4).for_each(|axis| nb[axis] *= gap);
                match Layout::strided(layout.dtype, layout.ne, nb) {
                    Ok(to) => self.made.graph.copy_to(x, to),
                    Err(_) => return,
                }
            }
        };
        self.take_all(result.map(Some));
    }

    fn concat(&mut self) {
        let first = self.any();
        let axis = self.choices.axis();
        let layout = self.layout(first);
        let mut parts = vec![first];
        for _ in 0..self.choices.below(3) {
            let mut ne = layout.ne;
            if axis < 4 && !layout.dtype.is_block() {
                ne[axis] = self.choices.below(4);
            }
            if !layout.dtype.is_readable() {
                break;
            }
            parts.push(self.fit(layout.dtype, ne));
        }
        self.op(Concat { axis }, &parts);
    }

    fn repeat(&mut self) {
        let x = self.any();
        let mut ne = self.layout(x).ne;
        let axis = self.choices.below(4);
        ne[axis] = match self.choices.below(20) {
            0 => usize::MAX / 2,
            1 => 1 << 20,
            times => ne[axis] * (times % 4),
        };
        self.op(Repeat { ne }, &[x]);
    }

    fn state(&mut self) {
        let slots = self.slots();
        if self.states.is_empty() || self.choices.rarely(8) {
            let ne = self.choices.shape();
            let name = format!("state.{}", self.states.len());
            let row = [ne[0].min(17), ne[1].min(5), ne[2].min(3)];
            let state = self.made.graph.state(&name, F32, &row, &slots).expect("a small state");
            self.take(state.pool);
            self.states.push(state);
        }
        let state = self.states[self.choices.below(self.states.len())];
        if self.choices.rarely(3) {
            let read = self.made.graph.read_state(&state, &slots);
            self.take_all(read.map(Some));
            return;
        }
        let [a, b, c, _] = self.layout(state.pool).ne;
        let rows = self.fit(F32, [a, b, c, slots.spec.sequences]);
        let back = self.choices.below(3);
        // The new value of the pool is a tensor like any other.
        if self.made.graph.write_state(&state, &slots, back, rows).is_ok() && self.choices.rarely(3) {
            let now = self.made.graph.states().iter().find(|(pool, _)| *pool == state.pool);
            let now = now.expect("a state of this graph").1;
            self.take(now);
        }
    }

    fn flag(&mut self) {
        let tensor = self.any();
        match self.choices.below(4) {
            0 => assert!(self.made.graph.output(self.foreign).is_err()),
            1 => self.made.graph.keep(tensor).expect("a tensor of this graph"),
            _ => self.mark_output(tensor),
        }
    }

    fn new_leaf(&mut self) {
        let all = [F32, F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::Q8_0];
        let dtype = all[self.choices.below(all.len())];
        let ne = self.choices.shape();
        let elements = ne.iter().product::<usize>() * dtype.block_len();
        if elements <= ELEMENTS_MAX {
            if self.choices.rarely(2) {
                self.weight(dtype, ne)
            } else {
                self.leaf(dtype, ne)
            };
        }
    }

    /// Any op on any operands.
    fn nonsense(&mut self) {
        let count = self.choices.below(8);
        let mut operands: Vec<Tensor> = (0..count).map(|_| self.any()).collect();
        if self.choices.rarely(10) {
            operands.push(self.foreign);
        }
        // The largest of the products that two operands can make.
        let cost = operands.iter().filter_map(|&t| self.made.graph.layout(t).ok());
        if cost.map(|layout| layout.elements().max(1)).fold(1, usize::saturating_mul) > 1 << 40 {
            return;
        }
        let size = self.choices.count();
        let op: Op = match self.choices.below(13) {
            0 => SetRows.into(),
            1 => GetRows.into(),
            2 => SsmScan { snapshots: size }.into(),
            3 => SsmConv { bias: size > 3, silu: true }.into(),
            4 => Binary { function: self.binary_function() }.into(),
            5 => Unary { function: self.unary_function() }.into(),
            6 => Concat { axis: size }.into(),
            7 => SoftMax { scale: 1.0, mask: size > 3 }.into(),
            8 => RmsNorm { eps: -1.0 + size as f32, weight: size > 3 }.into(),
            9 => Reshape { ne: [size, 1 << 40, 1 << 40, 0] }.into(),
            10 => Cumsum.into(),
            11 => Window { ne: [size; 4], nb: [usize::MAX - 3; 4], offset_bytes: usize::MAX }.into(),
            _ => Transpose.into(),
        };
        self.op(op, &operands);
    }
}
