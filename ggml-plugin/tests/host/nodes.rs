//! Conformance cases of our ops as nodes of a host.

use crate::graph::{Arena, Node, edit, float};
use ssmgraph::ops::binary::{Binary, BinaryFunction};
use ssmgraph::ops::gated_delta_net::Grouping;
use ssmgraph::ops::glu::GluFunction;
use ssmgraph::ops::l2_norm::Form as NormForm;
use ssmgraph::ops::rope::RopeMode;
use ssmgraph::ops::unary::Function;
use ssmgraph::ops::{Case, DType, HostTensor, Layout, MulMat, MulMatId, Op, OpKind};
use ssmgraph_ggml::abi;
use ssmgraph_kernels::{cpu, cuda_kernel};

/// A node that does what a case does.
#[derive(Clone)]
pub struct Form {
    /// Its number.
    pub op: i32,
    /// What it is to us.
    pub ours: Op,
    /// Its parameters.
    pub params: Vec<i32>,
    /// Which operands of the case it has, in its order.
    pub sources: Vec<usize>,
    /// Operands as the host shapes them.
    pub inputs: Vec<HostTensor>,
    /// Its result.
    pub result: Layout,
    /// The operand over which the host puts the result.
    pub over: Option<usize>,
}

/// The conformance cases, and products of operands with themselves.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = OpKind::ALL.iter().flat_map(|kind| kind.cases()).collect();
    let square = |case: &Case| {
        let is_product = case.op == Op::from(Binary { function: BinaryFunction::Mul });
        let x = case.inputs.first()?.clone();
        is_product.then(|| Case { inputs: vec![x.clone(), x], ..case.clone() })
    };
    cases.extend(cases.iter().filter_map(square).collect::<Vec<_>>());
    cases
}

/// Every node that does what a case does; none for what ggml has no node for.
pub fn forms(case: &Case) -> Vec<Form> {
    let Ok(results) = case.op.infer(&case.inputs.iter().map(|input| *input.layout()).collect::<Vec<_>>())
    else {
        return Vec::new();
    };
    // Several results lie one behind the other.
    let elements: usize = results.iter().map(Layout::elements).sum();
    let result = match results.len() {
        1 => results[0],
        _ => Layout::contiguous(results[0].dtype, &[elements]).expect("packed results"),
    };
    let form = |op, params: &[i32]| Form {
        op,
        ours: case.op.clone(),
        params: params.to_vec(),
        sources: (0..case.inputs.len()).collect(),
        inputs: case.inputs.clone(),
        result,
        over: None,
    };
    let dtype = |index: usize| case.inputs[index].layout().dtype;
    match &case.op {
        Op::Unary(op) => vec![form(abi::OP_UNARY, &[unary_number(op.function)])],
        Op::Binary(op) => {
            let mut both = vec![form(binary_number(op.function), &[])];
            let [a, b] = &case.inputs[..] else { unreachable!("two operands") };
            let is_square =
                op.function == BinaryFunction::Mul && (a.layout(), a.bytes()) == (b.layout(), b.bytes());
            both.extend(is_square.then(|| Form { sources: vec![0], ..form(abi::OP_SQR, &[]) }));
            both
        }
        Op::Glu(op) => vec![form(abi::OP_GLU, &[glu_number(op.function), i32::from(op.swapped)])],
        Op::Scale(op) => vec![form(abi::OP_SCALE, &[float(op.scale), float(op.bias)])],
        Op::Sum(_) => vec![form(abi::OP_SUM, &[])],
        Op::SumRows(_) => vec![form(abi::OP_SUM_ROWS, &[])],
        Op::Cumsum(_) => vec![form(abi::OP_CUMSUM, &[])],
        Op::Mean(_) => vec![form(abi::OP_MEAN, &[])],
        Op::Argmax(_) => vec![form(abi::OP_ARGMAX, &[])],
        Op::Norm(op) => vec![form(abi::OP_NORM, &[float(op.eps)])],
        Op::RmsNorm(op) if !op.weight => vec![form(abi::OP_RMS_NORM, &[float(op.eps)])],
        Op::L2Norm(op) if op.form == NormForm::Max => vec![form(abi::OP_L2_NORM, &[float(op.eps)])],
        Op::SoftMax(op) => vec![form(abi::OP_SOFT_MAX, &[float(op.scale), 0])],
        Op::TopK(op) => {
            let mut both = vec![form(abi::OP_TOP_K, &[op.k as i32])];
            let whole = op.k == case.inputs[0].ne()[0];
            both.extend(whole.then(|| form(abi::OP_ARGSORT, &[1])));
            both
        }
        Op::Rope(op) => rope(case, form(abi::OP_ROPE, &[]), op).into_iter().collect(),
        Op::MulMat(op) if *op == MulMat::of(dtype(0)) => vec![form(abi::OP_MUL_MAT, &[])],
        Op::MulMatId(op) if *op == MulMatId::of(dtype(0)) => vec![form(abi::OP_MUL_MAT_ID, &[])],
        Op::Cpy(_) => vec![form(abi::OP_CPY, &[]), form(abi::OP_CONT, &[]), form(abi::OP_DUP, &[])],
        Op::Concat(op) if case.inputs.len() == 2 => vec![form(abi::OP_CONCAT, &[op.axis as i32])],
        Op::Repeat(_) => vec![form(abi::OP_REPEAT, &[])],
        Op::GetRows(_) => vec![form(abi::OP_GET_ROWS, &[])],
        Op::SetRows(_) => {
            vec![Form { sources: vec![1, 2, 0], over: Some(0), ..form(abi::OP_SET_ROWS, &[]) }]
        }
        Op::SsmConv(op) if !op.bias && !op.silu => vec![form(abi::OP_SSM_CONV, &[])],
        Op::SsmScan(op) => vec![form(abi::OP_SSM_SCAN, &[op.snapshots as i32])],
        Op::GatedDeltaNet(op) if op.grouping == Grouping::Tiled => {
            let params = [op.snapshots as i32];
            let mut form = Form { sources: vec![1, 2, 3, 4, 5, 0], ..form(abi::OP_GATED_DELTA_NET, &params) };
            form.inputs[0] = states(&case.inputs[0], &case.inputs[6]);
            vec![form]
        }
        _ => Vec::new(),
    }
}

impl Form {
    /// The operands in an arena, in the order of the case.
    pub fn leaves(&self, arena: &mut Arena) -> Vec<Node> {
        self.inputs.iter().map(|input| arena.leaf(input)).collect()
    }

    /// The node over these leaves, with its result where the host puts it.
    pub fn node(&self, arena: &mut Arena, leaves: &[Node]) -> Node {
        match self.over {
            None => {
                let address = arena.room(self.result.span_bytes());
                self.node_at(arena, leaves, address)
            }
            Some(operand) => self.node_at(arena, leaves, crate::graph::address_of(leaves[operand])),
        }
    }

    /// The node with its result at an address.
    pub fn node_at(&self, arena: &Arena, leaves: &[Node], address: usize) -> Node {
        let sources: Vec<Node> = self.sources.iter().map(|&index| leaves[index]).collect();
        let node = arena.node_at(address, self.op, &self.params, &sources, &self.result);
        if let Some(operand) = self.over {
            edit(node, |node| node.view_source = leaves[operand]);
        }
        node
    }

    /// Whether devices decline it: ggml's own backends disagree about the sum of rows that are not packed, see
    /// docs/ggml-plugin.md. Blocks of 4 and 6 bits are declined where the device has no kernel for them, and where we
    /// round to them otherwise than ggml.
    pub fn is_declined(&self, cuda: bool) -> bool {
        let layouts: Vec<Layout> = self.inputs.iter().map(|input| *input.layout()).collect();
        let (from, to) = (layouts[0].dtype, self.result.dtype);
        let narrow = |dtype: DType| dtype.is_block() && dtype != DType::Q8_0;
        let declines = || match cuda {
            true => cuda_kernel(&self.ours).is_some_and(|kernel| kernel.supports(&layouts).is_err()),
            false => cpu(&self.ours).is_some_and(|kernel| kernel.supports(&layouts).is_err()),
        };
        let rounds = from != to && narrow(to);
        let sums_gaps = self.op == abi::OP_SUM && !layouts[0].rows_packed();
        sums_gaps || rounds || (narrow(from) && declines())
    }

    /// Bytes that an arena needs for it.
    pub fn bytes(&self) -> usize {
        let operands: usize = self.inputs.iter().map(|input| input.bytes().len() + 1024).sum();
        operands + self.result.span_bytes() + 2048
    }
}

/// The results of a case, as the node's result holds them.
pub fn expected(case: &Case) -> Vec<HostTensor> {
    case.expected().unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

/// Takes a node's result apart.
pub fn parts(got: &HostTensor, like: &[HostTensor]) -> Vec<HostTensor> {
    if like.len() == 1 {
        return vec![got.clone()];
    }
    let mut offset = 0;
    let part = |like: &HostTensor| {
        let layout = like.layout().to_contiguous();
        let bytes = got.bytes()[offset..][..layout.span_bytes()].to_vec();
        offset += layout.span_bytes();
        HostTensor::from_bytes(layout, bytes).expect("as many bytes")
    };
    like.iter().map(part).collect()
}

/// What is wrong with a result; `None` when it is right.
pub fn wrong(case: &Case, got: &HostTensor, want: &[HostTensor]) -> Option<String> {
    let parts = parts(got, want);
    parts.iter().zip(want).find_map(|(got, want)| case.tolerance.mismatch(got, want))
}

/// The state from which each sequence starts, one after the other, as ggml's node has them.
fn states(pool: &HostTensor, ids: &HostTensor) -> HostTensor {
    let [size, _, heads, rows] = pool.ne();
    let (all, length) = (pool.to_f64(), size * size * heads);
    let row = |id: f64| {
        let row = (0.0..rows as f64).contains(&id).then(|| &all[id as usize * length..][..length]);
        row.map_or_else(|| vec![0.0; length], |row| row.iter().map(|&value| value as f32).collect())
    };
    let ids = ids.to_f64();
    let values: Vec<f32> = ids.iter().flat_map(|&id| row(id)).collect();
    HostTensor::from_f32(&[size, size, heads, ids.len()], &values).expect("as many values")
}

/// Positions are one packed list for all sequences in ggml.
fn rope(case: &Case, form: Form, op: &ssmgraph::ops::Rope) -> Option<Form> {
    let positions = &case.inputs[1];
    let [tokens, streams, ..] = positions.ne();
    let (mode, sections, per_token) = match op.mode {
        RopeMode::Normal => (0, [0; 4], 1),
        RopeMode::Neox => (2, [0; 4], 1),
        RopeMode::Sections { sections, interleaved } => (if interleaved { 40 } else { 8 }, sections, 4),
    };
    let wanted = [tokens, if per_token == 4 { 4 } else { 1 }, 1, 1];
    if case.inputs[0].ne()[3] != 1 || positions.ne() != wanted || (per_token == 1 && streams != 1) {
        return None;
    }
    let values: Vec<i32> = positions.to_f64().iter().map(|&position| position as i32).collect();
    let mut params = vec![0; abi::PARAMS];
    (params[1], params[2]) = (op.n_rot as i32, mode);
    (params[5], params[6], params[8]) = (float(op.freq_base), float(op.freq_scale), float(1.0));
    for (param, section) in params[11..15].iter_mut().zip(sections) {
        *param = section as i32;
    }
    let list = HostTensor::from_i32(&[tokens * per_token], &values).expect("as many");
    Some(Form { params, inputs: vec![case.inputs[0].clone(), list], ..form })
}

/// A case in a message.
pub fn words(case: &Case) -> String {
    let inputs: Vec<String> = case.inputs.iter().map(|input| input.layout().to_string()).collect();
    format!("{} {} of {}", case.op.name(), case.name, inputs.join(", "))
}

/// An F32 tensor whose values follow one another, none equal.
pub fn ramp(ne: &[usize]) -> Vec<f32> {
    let count: usize = ne.iter().product();
    (0..count).map(|index| ((index * 37 % 101) as f32 - 50.0) / 25.0).collect()
}

/// The number of a type, as tensors hold it.
pub fn type_number(dtype: DType) -> i32 {
    dtype.gguf_id() as i32
}

fn unary_number(function: Function) -> i32 {
    match function {
        Function::Neg => 2,
        Function::Tanh => 4,
        Function::Relu => 6,
        Function::Sigmoid => 7,
        Function::Gelu => 8,
        Function::Silu => 10,
        Function::Exp => 13,
        Function::Softplus => 15,
    }
}

fn binary_number(function: BinaryFunction) -> i32 {
    match function {
        BinaryFunction::Add => abi::OP_ADD,
        BinaryFunction::Sub => abi::OP_SUB,
        BinaryFunction::Mul => abi::OP_MUL,
        BinaryFunction::Div => abi::OP_DIV,
    }
}

fn glu_number(function: GluFunction) -> i32 {
    match function {
        GluFunction::Reglu => 0,
        GluFunction::Geglu => 1,
        GluFunction::Swiglu => 2,
    }
}
