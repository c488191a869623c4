//! Softmax of each row, scaled and masked.
//! ```text
//! v[i, …] = x[i, …] · scale + mask[i, …]
//! y[i, …] = exp(v[i, …] − max_i v) / Σ_i exp(v[i, …] − max_i v)
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any | f32, f16, bf16 | scores |
//! | mask | repeats into x | f32, f16 | added after scaling, −∞ removes an element; an operand only when `mask` is set |
//!
//! Result: y, shape and type of x, packed. The mask is repeated along whole axes until it covers x. A row
//! whose v are all −∞, or that holds a NaN or +∞, is NaN throughout, as in PyTorch. Refused: a mask whose
//! counts do not divide x's.
//! Source: ggml's SOFT_MAX without ALiBi and sinks; torch.softmax for the special values.

use crate::case::{Arrangement, Values, row_inputs, rows_of};
use crate::shape::{FLOATS, expect_dtype, expect_repeats, repeated_index};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// Softmax of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftMax {
    /// Factor of x.
    pub scale: f32,
    /// Whether a second operand is added.
    pub mask: bool,
}

const OPERANDS: &[Operand] = &[
    Operand::new("x", "any", "f32, f16, bf16", "scores"),
    Operand::new("mask", "repeats into x", "f32, f16", "added after scaling; −∞ removes an element"),
];

impl Define for SoftMax {
    fn name(&self) -> &'static str {
        "soft_max"
    }

    fn operands(&self) -> &'static [Operand] {
        if self.mask { OPERANDS } else { &OPERANDS[..1] }
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("scale={}{}", self.scale, if self.mask { ", mask" } else { "" })
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        expect_dtype(op, "x", &inputs[0], FLOATS)?;
        if let Some(mask) = inputs.get(1) {
            expect_dtype(op, "mask", mask, &[DType::F32, DType::F16])?;
            expect_repeats(op, "mask", mask, &inputs[0], "x")?;
        }
        Ok(smallvec![inputs[0].to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let layout = inputs[0].layout();
        for [i1, i2, i3] in rows(layout.ne) {
            let value = |i: usize| {
                let index = [i, i1, i2, i3];
                let added = inputs.get(1).map_or(0.0, |mask| mask.get(repeated_index(mask.ne(), index)));
                inputs[0].get(index) * f64::from(self.scale) + added
            };
            let values: Vec<f64> = (0..layout.ne[0]).map(value).collect();
            let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = values.iter().map(|v| (v - largest).exp()).sum();
            for (i, v) in values.iter().enumerate() {
                results[0].set([i, i1, i2, i3], (v - largest).exp() / sum);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let plain = |scale| SoftMax { scale, mask: false };
        let masked = SoftMax { scale: 0.125, mask: true };
        for (name, x) in row_inputs(40) {
            let tolerance = small_values(x.layout().dtype);
            cases.push(Case::new(name, plain(1.5), vec![x], tolerance));
        }
        let mut values = Values::new(41);
        for mask_type in [DType::F32, DType::F16] {
            for &arrangement in Arrangement::ALL {
                for mask_ne in [[34, 4, 1, 1], [34, 4, 3, 2], [17, 2, 1, 2], [34, 1, 1, 1]] {
                    let x = values.arranged(arrangement, DType::F32, &[34, 4, 3, 2], -20.0, 20.0);
                    let mask = values.arranged(arrangement, mask_type, &mask_ne, -3.0, 3.0);
                    let name = format!("mask_{mask_type}_{mask_ne:?}_{}", arrangement.name());
                    cases.push(Case::new(name, masked, vec![x, mask], small_values(DType::F32)));
                }
            }
        }
        for (name, length, mask_length) in [("medium", 700, 700), ("long", 1400, 1400), ("long_repeated", 1400, 350)] {
            let x = values.tensor(DType::F32, &[length, 3], -20.0, 20.0);
            let mask = values.tensor(DType::F32, &[mask_length, 1], -3.0, 3.0);
            cases.push(Case::new(format!("{name}_masked_rows"), masked, vec![x, mask], small_values(DType::F32)));
        }
        let causal = causal_mask(19);
        let x = values.tensor(DType::F32, &[19, 19, 2], -8.0, 8.0);
        cases.push(Case::new("causal", masked, vec![x, causal], small_values(DType::F32)));
        for (name, low, high) in [("large", 1e4, 3e4), ("far_below_zero", -3e4, -1e4), ("wide", -90.0, 90.0)] {
            // Eighths, so that the difference to the largest is exact in f32.
            let x = values.tensor(DType::F32, &[65, 3], low, high);
            let eighths = crate::case::fill(*x.layout(), |index| (x.get(index) * 8.0).round() / 8.0);
            cases.push(Case::new(name, plain(1.0), vec![eighths], small_values(DType::F32)));
        }
        cases.push(Case::new("special_values", plain(1.0), vec![special_rows()], small_values(DType::F32)));
        let x = values.tensor(DType::F32, &[4, 3], -1.0, 1.0);
        let gone = [[f64::NEG_INFINITY; 4], [0.0, f64::NEG_INFINITY, 0.0, 0.0], [0.0; 4]];
        let mask = rows_of(4, gone.as_flattened());
        cases.push(Case::new("fully_masked_row", masked, vec![x, mask], small_values(DType::F32)));
        cases
    }
}

/// Probabilities are small: a tolerance that is mostly relative.
fn small_values(dtype: DType) -> Tolerance {
    match dtype {
        DType::F32 => Tolerance { rtol: 5e-6, atol: 1e-9 },
        other => Tolerance { rtol: Tolerance::rounded_to(other).rtol, atol: 1e-6 },
    }
}

/// −∞ above the diagonal, 0 elsewhere.
fn causal_mask(length: usize) -> crate::HostTensor {
    let layout = Layout::contiguous(DType::F16, &[length, length]).expect("a small shape");
    crate::case::fill(layout, |[key, query, ..]| if key > query { f64::NEG_INFINITY } else { 0.0 })
}

/// Rows whose largest element is no ordinary number, and one that is ordinary.
fn special_rows() -> crate::HostTensor {
    let infinity = f64::INFINITY;
    let rows = [
        [-infinity, -infinity, -infinity, -infinity],
        [-infinity, 1.0, -infinity, 1.0],
        [1.0, infinity, 2.0, 3.0],
        [f64::NAN, 1.0, 2.0, 3.0],
        [1.0, 2.0, 3.0, f64::NAN],
        [0.0, -0.0, 0.0, -0.0],
    ];
    rows_of(4, rows.as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn special_rows_behave_as_in_pytorch() {
        let y = &Op::from(SoftMax { scale: 1.0, mask: false }).evaluate(&[special_rows()]).unwrap()[0];
        let rows: Vec<Vec<f64>> = y.to_f64().chunks(4).map(<[f64]>::to_vec).collect();
        for nan in [0, 2, 3, 4] {
            assert!(rows[nan].iter().all(|v| v.is_nan()), "row {nan}: {:?}", rows[nan]);
        }
        assert_eq!(rows[1], [0.0, 0.5, 0.0, 0.5]);
        assert_eq!(rows[5], [0.25; 4]);
    }

    #[test]
    fn mask_is_added_after_the_scale_and_repeats() {
        let x = HostTensor::from_f32(&[2, 2], &[0.0, 4.0, 4.0, 4.0]).unwrap();
        let mask = HostTensor::from_f32(&[2], &[1.0, 0.0]).unwrap();
        let y = &Op::from(SoftMax { scale: 0.25, mask: true }).evaluate(&[x, mask]).unwrap()[0];
        let share = |a: f64, b: f64| (a.exp() / (a.exp() + b.exp())) as f32 as f64;
        assert_eq!(y.to_f64(), [0.5, 0.5, share(2.0, 1.0), share(1.0, 2.0)]);
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let layout = |dtype, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let op = Op::from(SoftMax { scale: 1.0, mask: true });
        let x = layout(DType::F32, &[6, 4]);
        assert_eq!(
            op.infer(&[x, layout(DType::F32, &[6, 3])]).unwrap_err().to_string(),
            "soft_max: mask has ne[1] = 3, which does not divide 4 (ne[1] of x)"
        );
        assert_eq!(
            op.infer(&[x, layout(DType::BF16, &[6, 4])]).unwrap_err().to_string(),
            "soft_max: mask has type bf16, expected f32 or f16"
        );
    }
}
