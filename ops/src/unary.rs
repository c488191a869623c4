//! Element-wise functions of one operand: `y[i] = f(x[i])`.
//!
//! | op | f(x) | at the ends |
//! |---|---|---|
//! | silu | x / (1 + e^−x) | 0 at −∞ |
//! | sigmoid | 1 / (1 + e^−x) | 0 at −∞, 1 at ∞ |
//! | softplus | max(x, 0) + log1p(e^−\|x\|) | 0 at −∞, ∞ at ∞ |
//! | exp | e^x | 0 at −∞, ∞ at ∞ |
//! | neg | −x | |
//! | relu | max(x, 0) | NaN stays NaN |
//! | tanh | tanh x | ∓1 |
//! | gelu | x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³))) | 0 at −∞ |
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | any real number |
//!
//! The result has the shape and type of x and is packed.
//! Source: the functions of the same names in ggml; softplus and sigmoid in the forms that neither overflow
//! nor lose the left tail.

use crate::case::{Arrangement, Values, fill};
use crate::shape::{FLOATS, expect_dtype};
use crate::tensor::indices;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views, math};
use smallvec::smallvec;

/// Which function is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// x / (1 + e^−x)
    Silu,
    /// 1 / (1 + e^−x)
    Sigmoid,
    /// max(x, 0) + log1p(e^−|x|)
    Softplus,
    /// e^x
    Exp,
    /// −x
    Neg,
    /// max(x, 0)
    Relu,
    /// tanh x
    Tanh,
    /// GELU in its tanh form
    Gelu,
}

impl Function {
    /// Every function.
    pub const ALL: &'static [Function] = &[
        Function::Silu,
        Function::Sigmoid,
        Function::Softplus,
        Function::Exp,
        Function::Neg,
        Function::Relu,
        Function::Tanh,
        Function::Gelu,
    ];

    /// The op's name.
    pub fn name(self) -> &'static str {
        match self {
            Function::Silu => "silu",
            Function::Sigmoid => "sigmoid",
            Function::Softplus => "softplus",
            Function::Exp => "exp",
            Function::Neg => "neg",
            Function::Relu => "relu",
            Function::Tanh => "tanh",
            Function::Gelu => "gelu",
        }
    }

    /// The function itself.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Function::Silu => math::silu(x),
            Function::Sigmoid => math::sigmoid(x),
            Function::Softplus => math::softplus(x),
            Function::Exp => x.exp(),
            Function::Neg => -x,
            Function::Relu if x.is_nan() => x,
            Function::Relu => x.max(0.0),
            Function::Tanh => x.tanh(),
            Function::Gelu => math::gelu(x),
        }
    }
}

/// `y[i] = f(x[i])`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unary {
    /// The function applied to every element.
    pub function: Function,
}

const OPERANDS: &[Operand] = &[Operand::new("x", "any", "f32, f16, bf16", "any real number")];

impl Define for Unary {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        expect_dtype(self.name(), "x", &inputs[0], FLOATS)?;
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        for index in indices(inputs[0].ne()) {
            results[0].set(index, self.function.apply(inputs[0].get(index)));
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (seed, &function) in Function::ALL.iter().enumerate() {
            let op = Unary { function };
            let mut values = Values::new(seed as u64);
            for &arrangement in Arrangement::ALL {
                let x = values.arranged(arrangement, DType::F32, &[37, 3, 2], -6.0, 6.0);
                let name = format!("{}_{}", op.name(), arrangement.name());
                cases.push(Case::new(name, op, vec![x], Tolerance::F32));
            }
            for dtype in [DType::F16, DType::BF16] {
                let x = values.arranged(Arrangement::GappedRows, dtype, &[19, 2], -6.0, 6.0);
                let tolerance = Tolerance { rtol: 1e-2, atol: 1e-3 };
                cases.push(Case::new(format!("{}_{dtype}", op.name()), op, vec![x], tolerance));
            }
            let ends = ends();
            let x = fill(Layout::contiguous(DType::F32, &[ends.len()]).expect("a short row"), |index| {
                ends[index[0]]
            });
            cases.push(Case::new(
                format!("{}_ends", op.name()),
                op,
                vec![x],
                Tolerance { rtol: 2e-6, atol: 1e-30 },
            ));
            for ne in [[0, 3, 1, 1], [3, 0, 1, 1], [3, 1, 0, 1], [3, 1, 1, 0]] {
                let x = values.tensor(DType::F32, &ne, -1.0, 1.0);
                cases.push(Case::new(format!("{}_empty_{ne:?}", op.name()), op, vec![x], Tolerance::EXACT));
            }
        }
        cases
    }
}

/// Values where careless forms overflow, cancel or lose a sign.
fn ends() -> Vec<f64> {
    let mut ends = vec![0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for x in [1e-7, 1e-3, 0.5, 1.0, 11.1, 16.0, 17.0, 20.0, 50.0, 87.0, 88.8, 100.0, 1e4, 3e38] {
        ends.extend([x, -x]);
    }
    ends
}
