//! From a node of ggml to one of our ops with its operands, by name and number of the node alone: nothing here looks
//! at data, so the same answer serves "do you support this" and "compute this".

mod elementwise;
mod matrix;
mod moves;
mod recurrent;
mod rows;

use crate::abi;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use ssmgraph::backend::Declined;
use ssmgraph_ops::{Layout, Op, OpError};

/// Where an operand or a result lies.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The tensor in whose bytes.
    pub tensor: Tensor<'a>,
    /// From its element 0.
    pub offset_bytes: usize,
    /// How they are read.
    pub layout: Layout,
}

impl<'a> Place<'a> {
    /// A whole tensor.
    ///
    /// Errors: see [`Tensor::layout`].
    pub fn of(tensor: Tensor<'a>) -> Result<Place<'a>, Declined> {
        Ok(Place { tensor, offset_bytes: 0, layout: tensor.layout()? })
    }

    /// The same bytes in another shape.
    ///
    /// Errors: the shape does not fit the layout.
    fn reshaped(self, ne: &[usize]) -> Result<Place<'a>, Declined> {
        Ok(Place { layout: self.layout.reshape(ne).map_err(|error| Declined(error.0))?, ..self })
    }
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Of the host.
    Place(Place<'a>),
    /// The numbers 0, 1, … as many as said, in i32.
    Counting(usize),
}

/// One of our ops over the host's tensors.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The op.
    pub op: Op,
    /// Operands in its order.
    pub inputs: SmallVec<[Source<'a>; 4]>,
    /// Results in its order.
    pub results: SmallVec<[Place<'a>; 2]>,
}

impl<'a> Call<'a> {
    /// A call whose operands are places.
    pub fn of(
        op: impl Into<Op>,
        inputs: impl IntoIterator<Item = Place<'a>>,
        results: impl IntoIterator<Item = Place<'a>>,
    ) -> Call<'a> {
        let inputs = inputs.into_iter().map(Source::Place).collect();
        Call { op: op.into(), inputs, results: results.into_iter().collect() }
    }

    /// Layouts of the operands.
    pub fn input_layouts(&self) -> Vec<Layout> {
        self.inputs.iter().map(Source::layout).collect()
    }
}

impl Source<'_> {
    /// How the operand is read.
    pub fn layout(&self) -> Layout {
        match self {
            Source::Place(place) => place.layout,
            Source::Counting(count) => counting_layout(*count),
        }
    }
}

/// The layout of the numbers 0, 1, …
fn counting_layout(count: usize) -> Layout {
    Layout::contiguous(ssmgraph_ops::DType::I32, &[count]).expect("as many numbers as the host has sequences")
}

/// Whether a node computes nothing: a leaf, or the bytes of another under a new layout.
pub fn is_view(node: Tensor<'_>) -> bool {
    let views = [abi::OP_NONE, abi::OP_RESHAPE, abi::OP_VIEW, abi::OP_PERMUTE, abi::OP_TRANSPOSE];
    views.contains(&node.op())
}

/// The node as one of our ops.
///
/// Errors: why it cannot be one, as a sentence about the node's op, operands or parameters.
pub fn translate(node: Tensor<'_>) -> Result<Call<'_>, Declined> {
    let call = match node.op() {
        abi::OP_ADD | abi::OP_SUB | abi::OP_MUL | abi::OP_DIV => elementwise::binary(node),
        abi::OP_SQR => elementwise::square(node),
        abi::OP_UNARY => elementwise::unary(node),
        abi::OP_GLU => elementwise::glu(node),
        abi::OP_SCALE => elementwise::scale(node),
        abi::OP_SUM | abi::OP_SUM_ROWS | abi::OP_CUMSUM | abi::OP_MEAN | abi::OP_ARGMAX => {
            rows::reduction(node)
        }
        abi::OP_NORM | abi::OP_RMS_NORM | abi::OP_L2_NORM => rows::norm(node),
        abi::OP_SOFT_MAX => rows::soft_max(node),
        abi::OP_ARGSORT | abi::OP_TOP_K => rows::top_k(node),
        abi::OP_ROPE => rows::rope(node),
        abi::OP_MUL_MAT => matrix::mul_mat(node),
        abi::OP_MUL_MAT_ID => matrix::mul_mat_id(node),
        abi::OP_DUP | abi::OP_CONT | abi::OP_CPY => moves::copy(node),
        abi::OP_CONCAT => moves::concat(node),
        abi::OP_REPEAT => moves::repeat(node),
        abi::OP_GET_ROWS => moves::get_rows(node),
        abi::OP_SET_ROWS => moves::set_rows(node),
        abi::OP_SSM_CONV => recurrent::ssm_conv(node),
        abi::OP_SSM_SCAN => recurrent::ssm_scan(node),
        abi::OP_GATED_DELTA_NET => recurrent::gated_delta_net(node),
        _ => Err(Declined("there is no such op".into())),
    }?;
    check_results(&call)?;
    Ok(call)
}

/// Whether the op gives what the node wants.
fn check_results(call: &Call<'_>) -> Result<(), Declined> {
    let refused = |error: OpError| Declined(error.what);
    let expected = call.op.infer(&call.input_layouts()).map_err(refused)?;
    if call.results.len() != expected.len() {
        return Err(Declined(format!("{} results, the op has {}", call.results.len(), expected.len())));
    }
    for (place, expected) in call.results.iter().zip(&expected) {
        if (place.layout.dtype, place.layout.ne) != (expected.dtype, expected.ne) {
            return Err(Declined(format!("the result is {}, the op gives {expected}", place.layout)));
        }
        if place.layout.may_overlap() {
            return Err(Declined(format!("elements of the result {} share bytes", place.layout)));
        }
    }
    Ok(())
}

/// Operands `0..COUNT`, whole.
fn operands<const COUNT: usize>(node: Tensor<'_>) -> Result<[Place<'_>; COUNT], Declined> {
    let places = (0..COUNT).map(|index| Place::of(node.source(index)?)).collect::<Result<Vec<_>, _>>()?;
    Ok(places.try_into().expect("as many as asked for"))
}
