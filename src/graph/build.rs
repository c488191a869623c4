//! One method per op, named as the op. Shapes and meanings stand in the op's file in `ssmgraph-ops`.
//!
//! Errors of every method: a handle of another graph, or what the op's shape rule refuses.

use super::{Graph, GraphError, Tensor};
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph_ops::gated_norm::GatedNorm;
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::qk_norm::QkNorm;
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{
    Argmax, Attention, Concat, Cpy, Cumsum, DType, DecayGate, GetRows, Layout, Mean, MulMat, MulMatId, Norm,
    OpError, Permute, Repeat, Reshape, RmsNorm, Rope, Scale, SetRows, SoftMax, SsmConv, SsmConvStep, SsmScan,
    Sum, SumRows, TopK, Transpose, Window, full_shape,
};

/// Results of the selective scan.
#[derive(Clone, Debug)]
pub struct Scan {
    /// {P, H, T, B}
    pub y: Tensor,
    /// {N, P, H, B} each: after the last token, one token back, and so on; [`Graph::oldest_first`] turns them round.
    pub states: Vec<Tensor>,
}

/// Results of the gated delta rule.
#[derive(Clone, Debug)]
pub struct Delta {
    /// {S, Hv, T, B}
    pub y: Tensor,
    /// {S, S, Hv, B} each: after the last token, one token back, and so on; [`Graph::oldest_first`] turns them round.
    pub states: Vec<Tensor>,
}

/// Results of the convolution with its window.
#[derive(Clone, Debug)]
pub struct ConvStep {
    /// {C, T, B}
    pub y: Tensor,
    /// {k−1, C, 1, B} each: after the last token, one token back, and so on; [`Graph::oldest_first`] turns them round.
    pub states: Vec<Tensor>,
}

/// Methods for ops whose only attribute is which function they apply.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($operand:ident),*) = $op:expr;)*) => {
        impl Graph {
            $($(#[$doc])* pub fn $name(&mut self, $($operand: Tensor),*) -> Result<Tensor, GraphError> {
                self.op1($op, &[$($operand),*])
            })*
        }
    };
}

methods! {
    /// a + b; b is repeated along whole axes to cover a.
    add(a, b) = Binary { function: BinaryFunction::Add };
    /// a − b; b is repeated along whole axes to cover a.
    sub(a, b) = Binary { function: BinaryFunction::Sub };
    /// a · b; b is repeated along whole axes to cover a.
    mul(a, b) = Binary { function: BinaryFunction::Mul };
    /// a / b; b is repeated along whole axes to cover a.
    div(a, b) = Binary { function: BinaryFunction::Div };
    /// x · sigmoid(x)
    silu(x) = Unary { function: Function::Silu };
    /// 1 / (1 + e^−x)
    sigmoid(x) = Unary { function: Function::Sigmoid };
    /// max(x, 0) + log1p(e^−|x|)
    softplus(x) = Unary { function: Function::Softplus };
    /// e^x
    exp(x) = Unary { function: Function::Exp };
    /// −x
    neg(x) = Unary { function: Function::Neg };
    /// max(x, 0)
    relu(x) = Unary { function: Function::Relu };
    /// tanh x
    tanh(x) = Unary { function: Function::Tanh };
    /// GELU in its tanh form.
    gelu(x) = Unary { function: Function::Gelu };
    /// silu(gate) · x, of two tensors of one shape.
    swiglu(gate, x) = Glu { function: GluFunction::Swiglu, split: true, swapped: false };
    /// gelu(gate) · x, of two tensors of one shape.
    geglu(gate, x) = Glu { function: GluFunction::Geglu, split: true, swapped: false };
    /// relu(gate) · x, of two tensors of one shape.
    reglu(gate, x) = Glu { function: GluFunction::Reglu, split: true, swapped: false };
    /// Rows of a table {D, R} by ids {N}: {D, N}; id −1 gives zeros.
    get_rows(table, ids) = GetRows {};
    /// A table {D, R} with rows {D, N} written at ids {N}; id −1 skips.
    set_rows(table, rows, ids) = SetRows {};
    /// Inclusive prefix sums along axis 0.
    cumsum(x) = Cumsum {};
    /// a · softplus(alpha + bias); a and bias are repeated along whole axes to cover alpha.
    decay_gate(alpha, a, bias) = DecayGate {};
    /// Index of the largest element of each row, I32.
    argmax(x) = Argmax {};
    /// Mean of each row.
    mean(x) = Mean {};
    /// Sum of all elements.
    sum(x) = Sum {};
    /// Sum of each row.
    sum_rows(x) = SumRows {};
    /// Axes 0 and 1 swapped; a view.
    transpose(x) = Transpose {};
}

impl Graph {
    /// Rows of x {D, H, T, B} turned by their tokens' positions {T, B}, or {T, 4 or 1, B} with sections.
    pub fn rope(&mut self, op: Rope, x: Tensor, positions: Tensor) -> Result<Tensor, GraphError> {
        self.op1(op, &[x, positions])
    }

    /// Softmax attention of q {D, H, T, B} over caches {D or E, G, L, R}: {E, H, T, B}. `slots` {B} says which
    /// cache a sequence has, and `past` {B} how many positions it held before these T tokens, whose keys and
    /// values it holds too.
    pub fn attention(
        &mut self,
        q: Tensor,
        [k_cache, v_cache]: [Tensor; 2],
        slots: Tensor,
        past: Tensor,
        scale: f32,
    ) -> Result<Tensor, GraphError> {
        self.op1(Attention { scale }, &[q, k_cache, v_cache, slots, past])
    }

    /// a {K, M, …} by b {K, N, …} → {M, N, …}. With weights in blocks the activations are rounded to Q8_0
    /// blocks first, as [`MulMat::of`] says.
    pub fn mul_mat(&mut self, a: Tensor, b: Tensor) -> Result<Tensor, GraphError> {
        let dtype = self.checked(a, "mul_mat", "a")?.dtype;
        self.op1(MulMat::of(dtype), &[a, b])
    }

    /// Experts a {K, M, E}, picked by `ids` {U, N}, by b {K, U or 1, N} → {M, U, N}; id −1 gives zeros. With
    /// weights in blocks as [`Graph::mul_mat`].
    pub fn mul_mat_id(&mut self, a: Tensor, b: Tensor, ids: Tensor) -> Result<Tensor, GraphError> {
        let dtype = self.checked(a, "mul_mat_id", "a")?.dtype;
        self.op1(MulMatId::of(dtype), &[a, b, ids])
    }

    /// Indices of the k largest elements of each row, the largest first, I32.
    pub fn top_k(&mut self, x: Tensor, k: usize) -> Result<Tensor, GraphError> {
        self.op1(TopK { k }, &[x])
    }

    /// Indices of each row's elements in falling order, I32.
    pub fn argsort(&mut self, x: Tensor) -> Result<Tensor, GraphError> {
        let k = self.checked(x, "top_k", "x")?.ne[0];
        self.op1(TopK { k }, &[x])
    }

    /// x · scale + bias
    pub fn scale(&mut self, x: Tensor, scale: f32, bias: f32) -> Result<Tensor, GraphError> {
        self.op1(Scale { scale, bias }, &[x])
    }

    /// x / √(mean x² + eps) along axis 0, times `weight` if there is one.
    pub fn rms_norm(&mut self, x: Tensor, weight: Option<Tensor>, eps: f32) -> Result<Tensor, GraphError> {
        let op = RmsNorm { eps, weight: weight.is_some() };
        match weight {
            Some(weight) => self.op1(op, &[x, weight]),
            None => self.op1(op, &[x]),
        }
    }

    /// (x − mean) / √(variance + eps) along axis 0.
    pub fn norm(&mut self, x: Tensor, eps: f32) -> Result<Tensor, GraphError> {
        self.op1(Norm { eps }, &[x])
    }

    /// x / ‖x‖ along axis 0, with eps as `form` says.
    pub fn l2_norm(&mut self, x: Tensor, eps: f32, form: Form) -> Result<Tensor, GraphError> {
        self.op1(L2Norm { eps, form }, &[x])
    }

    /// RMS norm of x by groups, gated by z.
    pub fn gated_norm(
        &mut self,
        op: GatedNorm,
        x: Tensor,
        z: Tensor,
        weight: Tensor,
    ) -> Result<Tensor, GraphError> {
        self.op1(op, &[x, z, weight])
    }

    /// softmax(x · scale + mask) along axis 0.
    pub fn soft_max(&mut self, x: Tensor, mask: Option<Tensor>, scale: f32) -> Result<Tensor, GraphError> {
        let op = SoftMax { scale, mask: mask.is_some() };
        match mask {
            Some(mask) => self.op1(op, &[x, mask]),
            None => self.op1(op, &[x]),
        }
    }

    /// Causal depthwise convolution of sx {k−1+T, C, B} with weight {k, C}: {C, T, B}; plus bias {C}, then
    /// SiLU, where asked for.
    pub fn ssm_conv(
        &mut self,
        sx: Tensor,
        weight: Tensor,
        bias: Option<Tensor>,
        silu: bool,
    ) -> Result<Tensor, GraphError> {
        let op = SsmConv { bias: bias.is_some(), silu };
        match bias {
            Some(bias) => self.op1(op, &[sx, weight, bias]),
            None => self.op1(op, &[sx, weight]),
        }
    }

    /// The same convolution with its window as state, in one op: the operands of its table s, x, w and ids,
    /// plus a bias where there is one. `snapshots` windows are results, newest first, but no more than there are tokens.
    pub fn ssm_conv_step(
        &mut self,
        [s, x, w, ids]: [Tensor; 4],
        bias: Option<Tensor>,
        silu: bool,
        snapshots: usize,
    ) -> Result<ConvStep, GraphError> {
        let op = SsmConvStep { bias: bias.is_some(), silu, snapshots };
        let results = match bias {
            Some(bias) => self.op(op, &[s, x, w, bias, ids])?,
            None => self.op(op, &[s, x, w, ids])?,
        };
        Ok(ConvStep { y: results[0], states: results[1..].to_vec() })
    }

    /// The selective scan, with the operands of its table in order: s, x, dt, A, B, C, ids. `snapshots`
    /// states are results, newest first, but no more than there are tokens.
    pub fn ssm_scan(&mut self, operands: [Tensor; 7], snapshots: usize) -> Result<Scan, GraphError> {
        let results = self.op(SsmScan { snapshots }, &operands)?;
        Ok(Scan { y: results[0], states: results[1..].to_vec() })
    }

    /// The gated delta rule, with the operands of its table in order: state, q, k, v, g, beta, ids.
    /// `grouping` says which key head a value head reads; `snapshots` states are results, newest first, but no more
    /// than there are tokens.
    pub fn gated_delta_net(
        &mut self,
        operands: [Tensor; 7],
        grouping: Grouping,
        snapshots: usize,
    ) -> Result<Delta, GraphError> {
        let results = self.op(GatedDeltaNet { grouping, snapshots }, &operands)?;
        Ok(Delta { y: results[0], states: results[1..].to_vec() })
    }

    /// q and k {S, Hk, T, B}, each row divided by its length with eps as `form` says, in one op. Both keep
    /// their heads; [`QkNorm`] itself can also repeat them.
    pub fn qk_norm(
        &mut self,
        q: Tensor,
        k: Tensor,
        eps: f32,
        form: Form,
    ) -> Result<(Tensor, Tensor), GraphError> {
        let heads = self.checked(q, "qk_norm", "q")?.ne[1];
        let results = self.op(QkNorm { eps, form, heads, grouping: Grouping::Tiled }, &[q, k])?;
        Ok((results[0], results[1]))
    }

    /// A packed copy.
    pub fn cont(&mut self, x: Tensor) -> Result<Tensor, GraphError> {
        let layout = self.checked(x, "cpy", "x")?;
        self.op1(Cpy::cont(&layout), &[x])
    }

    /// A packed copy with another element type.
    pub fn cast(&mut self, x: Tensor, dtype: DType) -> Result<Tensor, GraphError> {
        let layout = self.checked(x, "cpy", "x")?;
        let to = layout.to_dtype(dtype).map_err(|error| error.of("cpy", "y"))?;
        self.op1(Cpy { to }, &[x])
    }

    /// A copy with the given layout: any strides without overlap, any shape with as many elements.
    pub fn copy_to(&mut self, x: Tensor, to: Layout) -> Result<Tensor, GraphError> {
        self.op1(Cpy { to }, &[x])
    }

    /// Tensors joined along an axis.
    pub fn concat(&mut self, parts: &[Tensor], axis: usize) -> Result<Tensor, GraphError> {
        self.op1(Concat { axis }, parts)
    }

    /// x tiled to a larger shape, whose counts are multiples.
    pub fn repeat(&mut self, x: Tensor, ne: &[usize]) -> Result<Tensor, GraphError> {
        let ne = full_shape(ne).map_err(|error| error.of("repeat", "ne"))?;
        self.op1(Repeat { ne }, &[x])
    }

    /// The same elements under another shape; a view.
    pub fn reshape(&mut self, x: Tensor, ne: &[usize]) -> Result<Tensor, GraphError> {
        let ne = full_shape(ne).map_err(|error| error.of("reshape", "ne"))?;
        self.op1(Reshape { ne }, &[x])
    }

    /// Elements of x from a byte offset on, under other counts and byte strides; must lie inside x.
    pub fn view(
        &mut self,
        x: Tensor,
        ne: [usize; 4],
        nb: [usize; 4],
        offset_bytes: usize,
    ) -> Result<Tensor, GraphError> {
        self.op1(Window { ne, nb, offset_bytes }, &[x])
    }

    /// `count` elements of axis `axis`, from `first` on; a view. Axis 0 of a block type is cut between blocks.
    pub fn slice(
        &mut self,
        x: Tensor,
        axis: usize,
        first: usize,
        count: usize,
    ) -> Result<Tensor, GraphError> {
        let layout = self.checked(x, "view", "x")?;
        let refused = |what: String| Err(OpError::new("view", what).into());
        let mut ne = layout.ne;
        if axis > 3 || first.checked_add(count).is_none_or(|end| end > ne[axis]) {
            let got = ne.get(axis).copied().unwrap_or(0);
            return refused(format!(
                "x has ne[{axis}] = {got}, expected at least {first} + {count} (the slice)"
            ));
        }
        let block = if axis == 0 { layout.dtype.block_len() } else { 1 };
        if !first.is_multiple_of(block) {
            let dtype = layout.dtype;
            return refused(format!(
                "first = {first}, expected a multiple of {block} (the blocks of {dtype})"
            ));
        }
        ne[axis] = count;
        // Without elements there are no strides to follow, and theirs may be of any size.
        let offset_bytes = if ne.contains(&0) { 0 } else { first / block * layout.nb[axis] };
        self.view(x, ne, layout.nb, offset_bytes)
    }

    /// Axis i of x becomes axis `axes[i]`; a view.
    pub fn permute(&mut self, x: Tensor, axes: [usize; 4]) -> Result<Tensor, GraphError> {
        self.op1(Permute { axes }, &[x])
    }
}
