//! The logarithm of a decay, from a projection and two learned vectors.
//! ```text
//! y[i, …] = a[i mod …] · softplus( alpha[i, …] + bias[i mod …] )
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | alpha | any, often H, T, B | f32 | projection of the tokens |
//! | a | repeats into alpha, often H | f32 | −exp(A_log), below 0 |
//! | bias | repeats into alpha, often H | f32 | added before softplus |
//!
//! Result: y, shape of alpha, packed. With alpha {H, T, B} it is the g of `gated_delta_net` once reshaped to
//! {1, H, T, B}. One decay per key index is alpha {S, H, T, B} with a {1, H} and bias {S, H}. −∞ gives −0, no
//! decay, if a is finite and below 0.
//! Source: Yang, Kautz & Hatamizadeh 2024 (arXiv 2412.06464), the parametrisation of α taken over from Mamba-2.

use crate::case::{Arrangement, Values, rows_of};
use crate::shape::{expect_dtype, expect_repeats, repeated_index};
use crate::tensor::indices;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views, math};
use smallvec::smallvec;

/// The logarithm of a decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecayGate {}

const OPERANDS: &[Operand] = &[
    Operand::new("alpha", "any", "f32", "projection of the tokens"),
    Operand::new("a", "repeats into alpha", "f32", "−exp(A_log), below 0"),
    Operand::new("bias", "repeats into alpha", "f32", "added before softplus"),
];

impl Define for DecayGate {
    fn name(&self) -> &'static str {
        "decay_gate"
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
        for (operand, layout) in OPERANDS.iter().zip(inputs) {
            expect_dtype(self.name(), operand.name, layout, &[DType::F32])?;
        }
        expect_repeats(self.name(), "a", &inputs[1], &inputs[0], "alpha")?;
        expect_repeats(self.name(), "bias", &inputs[2], &inputs[0], "alpha")?;
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [alpha, a, bias] = inputs else { unreachable!("the arity was checked") };
        for index in indices(alpha.ne()) {
            let sum = alpha.get(index) + bias.get(repeated_index(bias.ne(), index));
            results[0].set(index, a.get(repeated_index(a.ne(), index)) * math::softplus(sum));
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, arrangement: Arrangement, [alpha, a, bias]: [&[usize]; 3]| {
            let mut values = Values::new(name.bytes().map(u64::from).sum());
            let mut tensor =
                |ne: &[usize], low, high| values.arranged(arrangement, DType::F32, ne, low, high);
            let inputs = vec![tensor(alpha, -6.0, 4.0), tensor(a, -8.0, -0.01), tensor(bias, -4.0, 2.0)];
            cases.push(Case::new(name, DecayGate {}, inputs, Tolerance::F32));
        };
        for &arrangement in Arrangement::ALL {
            let name = arrangement.name();
            add(name.into(), arrangement, [&[32, 5, 3], &[32], &[32]]);
            add(format!("per_key_{name}"), arrangement, [&[16, 3, 4, 2], &[1, 3], &[16, 3]]);
        }
        for heads in [1, 2, 15, 16, 17, 33, 48, 64, 130] {
            add(format!("heads_{heads}"), Arrangement::Contiguous, [&[heads, 3, 2], &[heads], &[heads]]);
        }
        let plain = Arrangement::Contiguous;
        add("inner_axis_of_one".into(), plain, [&[1, 12, 5, 2], &[1, 12], &[1, 12]]);
        add("same_shapes".into(), plain, [&[7, 3, 2], &[7, 3, 2], &[7, 3, 2]]);
        add("one_for_all".into(), plain, [&[7, 3, 2], &[1], &[1]]);
        add("repeats_in_a_row".into(), plain, [&[12, 4, 2], &[3], &[4, 2]]);
        add("long".into(), plain, [&[40, 700], &[40], &[40]]);
        for ne in [[0, 2, 2, 2], [4, 0, 2, 2], [4, 2, 0, 2], [4, 2, 2, 0]] {
            let vector = [ne[0].max(1)];
            let vector: &[usize] = if ne[0] == 0 { &[1] } else { &vector };
            add(format!("empty_{ne:?}"), plain, [&ne, vector, vector]);
        }
        let alpha = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN, -90.0, -20.0, 0.0, -0.0, 88.8, 1e30];
        let inputs = vec![rows_of(9, &alpha), rows_of(1, &[-2.0]), rows_of(1, &[0.0])];
        cases.push(Case::new("special_values", DecayGate {}, inputs, Tolerance::F32));
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn each_head_has_its_own_rate() {
        let f32s = |ne: &[usize], values: &[f32]| HostTensor::from_f32(ne, values).unwrap();
        let inputs = [f32s(&[2, 2], &[0.0, 1.0, -1.0, 3.0]), f32s(&[2], &[-1.0, -2.0]), f32s(&[2], &[0.5, 0.0])];
        let got = Op::from(DecayGate {}).evaluate(&inputs).unwrap()[0].to_f64();
        let want = [-math::softplus(0.5), -2.0 * math::softplus(1.0), -math::softplus(-0.5)];
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?}");
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let layout = |ne: &[usize]| Layout::contiguous(DType::F32, ne).unwrap();
        let refusal = |a: &[usize], bias: &[usize]| {
            let inputs = [layout(&[6, 4]), layout(a), layout(bias)];
            Op::from(DecayGate {}).infer(&inputs).unwrap_err().to_string()
        };
        let want = "decay_gate: a has ne[0] = 4, which does not divide 6 (ne[0] of alpha)";
        assert_eq!(refusal(&[4], &[6]), want);
        let want = "decay_gate: bias has ne[1] = 3, which does not divide 4 (ne[1] of alpha)";
        assert_eq!(refusal(&[6], &[6, 3]), want);
    }
}
