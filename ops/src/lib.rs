//! What each op of ssmgraph *means*.
//!
//! One file per op holds its equation, operand table, attributes, shape rule, reference function and
//! conformance cases. This crate knows no device, no thread and no graph; `ssmgraph-kernels` makes the ops
//! fast, and every kernel is compared with the reference functions here.
//!
//! Adding an op: write its file, add one line to the `ops!` list below, and follow the compiler.
#![forbid(unsafe_code)]

pub mod case;
mod define;
mod dtype;
mod error;
mod layout;
pub mod math;
pub mod quant;
pub mod shape;
pub mod snapshots;
pub mod tensor;
pub mod workload;

pub use case::{Case, Tolerance};
pub use define::{Define, Layouts, Operand, Storage, Views};
pub use dtype::DType;
pub use error::{LayoutError, OpError};
pub use layout::{AXES, Layout, full_shape};
pub use tensor::{HostTensor, View, ViewMut};

/// Declares the closed set of ops: for each line a module, a variant of [`Op`] and of [`OpKind`], and the
/// forwarding of everything [`Define`] asks for.
macro_rules! ops {
    ($($module:ident: $name:ident,)*) => {
        $(pub mod $module;)*
        $(pub use $module::$name;)*

        /// One op with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("See the module `", stringify!($module), "`.")] $name($name),)*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*

        /// An op without its attributes: one file of this crate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind {
            $(#[doc = concat!("See the module `", stringify!($module), "`.")] $name,)*
        }

        impl OpKind {
            /// Every op, in the order of the list.
            pub const ALL: &'static [OpKind] = &[$(OpKind::$name,)*];

            /// The name of the op's file.
            pub fn module(self) -> &'static str {
                match self { $(OpKind::$name => stringify!($module),)* }
            }

            /// The op's conformance cases.
            pub fn cases(self) -> Vec<Case> {
                match self { $(OpKind::$name => <$name as Define>::cases(),)* }
            }
        }

        impl Op {
            /// Which file of this crate defines the op.
            pub fn kind(&self) -> OpKind {
                match self { $(Op::$name(_) => OpKind::$name,)* }
            }

            /// See [`Define::name`].
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(op) => op.name(),)* }
            }

            /// See [`Define::operands`].
            pub fn operands(&self) -> &'static [Operand] {
                match self { $(Op::$name(op) => op.operands(),)* }
            }

            /// See [`Define::result_name`].
            pub fn result_name(&self, index: usize) -> String {
                match self { $(Op::$name(op) => op.result_name(index),)* }
            }

            /// See [`Define::attributes`].
            pub fn attributes(&self) -> String {
                match self { $(Op::$name(op) => op.attributes(),)* }
            }

            /// The layouts of the results for operands of these layouts: arity first, then
            /// [`Define::infer`].
            ///
            /// Errors: a missing or surplus operand, or whatever the op's shape rule refuses.
            pub fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
                shape::check_arity(self.name(), self.operands(), inputs.len())?;
                match self { $(Op::$name(op) => op.infer(inputs),)* }
            }

            /// See [`Define::storage`].
            pub fn storage(&self) -> Storage {
                match self { $(Op::$name(op) => op.storage(),)* }
            }

            /// See [`Define::reference`].
            ///
            /// Errors: a value the op cannot accept, such as an index outside the table.
            pub fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
                match self { $(Op::$name(op) => op.reference(inputs, results),)* }
            }
        }
    };
}

ops! {
    unary: Unary,
    ssm_scan: SsmScan,
    gated_delta_net: GatedDeltaNet,
    decay_gate: DecayGate,
    qk_norm: QkNorm,
    ssm_conv: SsmConv,
    ssm_conv_step: SsmConvStep,
    gated_norm: GatedNorm,
    norm: Norm,
    rms_norm: RmsNorm,
    l2_norm: L2Norm,
    soft_max: SoftMax,
    rope: Rope,
    attention: Attention,
    cumsum: Cumsum,
    argmax: Argmax,
    top_k: TopK,
    mean: Mean,
    sum: Sum,
    sum_rows: SumRows,
    mul_mat: MulMat,
    mul_mat_id: MulMatId,
    binary: Binary,
    scale: Scale,
    glu: Glu,
    get_rows: GetRows,
    set_rows: SetRows,
    cpy: Cpy,
    concat: Concat,
    repeat: Repeat,
    reshape: Reshape,
    view: Window,
    permute: Permute,
    transpose: Transpose,
}

impl Op {
    /// Runs the reference function on owned tensors and returns owned results, laid out as
    /// [`Op::infer`] says. A view becomes a packed copy, since its elements may share bytes.
    ///
    /// Errors: whatever the shape rule or the reference function refuses.
    pub fn evaluate(&self, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, OpError> {
        let layouts: Vec<Layout> = inputs.iter().map(|tensor| *tensor.layout()).collect();
        let views: Vec<View<'_>> = inputs.iter().map(HostTensor::view).collect();
        let is_view = matches!(self.storage(), Storage::View { .. });
        let mut results: Vec<HostTensor> = Vec::new();
        for layout in self.infer(&layouts)? {
            results.push(HostTensor::zeros(if is_view { layout.to_contiguous() } else { layout }));
        }
        let mut writable = Vec::new();
        for (index, result) in results.iter_mut().enumerate() {
            let name = self.result_name(index);
            writable.push(result.view_mut().map_err(|error| error.of(self.name(), &name))?);
        }
        self.reference(&views, &mut writable)?;
        Ok(results)
    }
}
