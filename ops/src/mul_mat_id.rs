//! Matrix product with a matrix picked for each row: the experts of a mixture.
//! ```text
//! y[m, u, n] = Σ_k a[k, m, ids[u, n]] · b[k, u or 0, n]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | a | K, M, E | f32, f16, bf16, q8_0, q4_0, q4_k, q6_k | weights of E experts, one row per output |
//! | b | K, U or 1, N | f32 | activations; 1 gives all experts of a token the same row |
//! | ids | U, N | i32 | the expert of each result row; −1 gives a row of zeros |
//!
//! The result y {M, U, N} is f32 and packed. A row is formed as `mul_mat` forms it, to the bit; `quantize` means
//! what it means there.
//!
//! Refused: what mul_mat refuses, and any other id outside 0..E, by its place and value.
//! Source: ggml's MUL_MAT_ID; −1 is ours.

use crate::case::{Arrangement, Values, fill};
use crate::mul_mat::{DENSE, activations, dot, expect_weights};
use crate::shape::{checked_row, expect_dtype, expect_ne, expect_shape, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, MulMat, OpError, Operand, Storage, Tolerance, ViewMut, Views};
use smallvec::smallvec;

/// The matrix product with picked matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulMatId {
    /// Whether rows of b are rounded to Q8_0 first.
    pub quantize: bool,
}

impl MulMatId {
    /// The product that suits weights of type `a`, as [`MulMat::of`].
    pub fn of(a: DType) -> MulMatId {
        MulMatId { quantize: MulMat::of(a).quantize }
    }
}

const OPERANDS: &[Operand] = &[
    Operand::new("a", "K, M, E", "f32, f16, bf16, q8_0, q4_0, q4_k, q6_k", "weights of E experts, one row per output"),
    Operand::new("b", "K, U or 1, N", "f32", "activations; 1 gives all experts of a token the same row"),
    Operand::new("ids", "U, N", "i32", "the expert of each result row; −1 gives a row of zeros"),
];

impl Define for MulMatId {
    fn name(&self) -> &'static str {
        "mul_mat_id"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        if self.quantize { "quantize".into() } else { String::new() }
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [a, b, ids] = inputs else { unreachable!("the arity was checked") };
        expect_weights(op, a, self.quantize)?;
        expect_dtype(op, "b", b, &[DType::F32])?;
        expect_dtype(op, "ids", ids, &[DType::I32])?;
        expect_ne(op, "a", a, 3, 1, "experts lie along axis 2")?;
        let [used, tokens, ..] = ids.ne;
        expect_shape(op, "ids", ids, [used, tokens, 1, 1], "experts of each token")?;
        let rows = if b.ne[1] == 1 { 1 } else { used };
        expect_shape(op, "b", b, [a.ne[0], rows, tokens, 1], "row length of a, experts and tokens of ids")?;
        Ok(smallvec![packed(op, "y", DType::F32, &[a.ne[1], used, tokens])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [a, b, ids] = inputs else { unreachable!("the arity was checked") };
        let y = &mut results[0];
        for place @ [u, n, _] in rows(y.ne()) {
            let id = ids.get_int([u, n, 0, 0]);
            let expert = checked_row(self.name(), "ids", place, id, a.ne()[2])?;
            let from = if b.ne()[1] == 1 { 0 } else { u };
            let x = activations(b, [from, n, 0], self.quantize);
            for m in 0..a.ne()[1] {
                let sum = expert.map_or(0.0, |e| dot(&a.row([m, e, 0]), &x));
                y.set([m, u, n, 0], sum);
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, spec: Spec| cases.push(spec.case(&name));
        for &dtype in DENSE {
            let k = |plain: usize| if dtype == DType::Q8_0 { plain.next_multiple_of(32) } else { plain };
            add(format!("{dtype}_one_token"), Spec::new(dtype, [k(67), 33, 8], [2, 1]));
            add(format!("{dtype}_tokens"), Spec::new(dtype, [k(64), 18, 5], [3, 17]));
            add(format!("{dtype}_rows_of_their_own"), Spec { own_rows: true, ..Spec::new(dtype, [k(37), 9, 4], [3, 6]) });
            add(format!("{dtype}_one_expert"), Spec::new(dtype, [k(130), 5, 1], [1, 9]));
            add(format!("{dtype}_more_experts_than_used"), Spec::new(dtype, [k(16), 7, 66], [4, 3]));
            for ne in [[0, 3, 2], [32, 0, 2]] {
                add(format!("{dtype}_empty_{ne:?}"), Spec::new(dtype, ne, [2, 3]));
            }
            add(format!("{dtype}_no_tokens"), Spec::new(dtype, [32, 3, 2], [2, 0]));
            add(format!("{dtype}_none_used"), Spec::new(dtype, [32, 3, 2], [0, 3]));
            add(format!("{dtype}_no_experts"), Spec::new(dtype, [32, 3, 0], [2, 3]));
            for &arrangement in Arrangement::ALL {
                let name = arrangement.name();
                let spec = Spec::new(dtype, [k(37), 6, 3], [2, 4]);
                add(format!("{dtype}_b_{name}"), Spec { b: arrangement, own_rows: true, ..spec });
                if dtype != DType::Q8_0 || Arrangement::PACKED_ROWS.contains(&arrangement) {
                    add(format!("{dtype}_a_{name}"), Spec { a: arrangement, ..spec });
                }
            }
        }
        let rounded = Spec { quantize: true, ..Spec::new(DType::Q8_0, [96, 9, 4], [2, 5]) };
        add("quantize".into(), rounded);
        add("quantize_one_token".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, [160, 35, 6], [3, 1]) });
        add("quantize_no_columns".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, [0, 3, 2], [2, 2]) });
        for &b in Arrangement::ALL {
            add(format!("quantize_b_{}", b.name()), Spec { b, own_rows: true, ..rounded });
        }
        for &a in Arrangement::PACKED_ROWS {
            add(format!("quantize_a_{}", a.name()), Spec { a, ..rounded });
        }
        add("long_rows".into(), Spec { own_rows: true, ..Spec::new(DType::F32, [2100, 6, 3], [2, 21]) });
        add("long_rows_quantize".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, [1056, 5, 3], [2, 9]) });
        for &dtype in &MulMat::WEIGHTS[DENSE.len()..] {
            for quantize in [true, false] {
                let name = |what: &str| format!("{dtype}_{what}{}", if quantize { "_quantize" } else { "" });
                let spec = Spec { quantize, ..Spec::new(dtype, [2 * dtype.block_len(), 9, 4], [2, 5]) };
                add(name("tokens"), spec);
                add(name("one_token"), Spec { weights: [3 * dtype.block_len(), 19, 6], ids: [3, 1], ..spec });
                add(name("gapped"), Spec { a: Arrangement::GappedRows, own_rows: true, ..spec });
            }
        }
        cases
    }
}

/// The sizes of one case.
#[derive(Clone, Copy)]
struct Spec {
    dtype: DType,
    quantize: bool,
    /// K, M, E.
    weights: [usize; 3],
    /// U, N.
    ids: [usize; 2],
    own_rows: bool,
    a: Arrangement,
    b: Arrangement,
}

impl Spec {
    fn new(dtype: DType, weights: [usize; 3], ids: [usize; 2]) -> Spec {
        let plain = Arrangement::Contiguous;
        Spec { dtype, quantize: false, weights, ids, own_rows: false, a: plain, b: plain }
    }

    fn case(self, name: &str) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let [k, _, experts] = self.weights;
        let [used, tokens] = self.ids;
        let a = values.arranged(self.a, self.dtype, &self.weights, -1.0, 1.0);
        let rows = if self.own_rows { used } else { 1 };
        let b = values.arranged(self.b, DType::F32, &[k, rows, tokens], -1.0, 1.0);
        let mut id = 0;
        let ids = fill(self.b.layout(DType::I32, &self.ids), |_| {
            // Different experts for a token, and none now and then.
            id += 1 + values.below(2);
            (id % (experts + 1)) as f64 - 1.0
        });
        let wide = k > 1000 || !DENSE.contains(&self.dtype);
        let tolerance = if wide { Tolerance { rtol: 1e-5, atol: 1e-4 } } else { Tolerance::F32_SUM };
        Case::new(name, MulMatId { quantize: self.quantize }, vec![a, b, ids], tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn each_row_meets_its_expert() {
        // Experts of one weight: 10 and 100.
        let a = HostTensor::from_f32(&[1, 1, 2], &[10.0, 100.0]).unwrap();
        let ids = HostTensor::from_i32(&[2, 2], &[1, 0, -1, 1]).unwrap();
        let y = |b: HostTensor| {
            let op = Op::from(MulMatId { quantize: false });
            op.evaluate(&[a.clone(), b, ids.clone()]).unwrap()[0].to_f64()
        };
        assert_eq!(y(HostTensor::from_f32(&[1, 1, 2], &[1.0, 2.0]).unwrap()), [100.0, 10.0, 0.0, 200.0]);
        let own = HostTensor::from_f32(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(y(own), [100.0, 20.0, 0.0, 400.0]);
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |b: &[usize], ids: &[usize]| {
            let inputs = [layout(DType::F32, &[8, 3, 4]), layout(DType::F32, b), layout(DType::I32, ids)];
            Op::from(MulMatId { quantize: false }).infer(&inputs).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[7, 1, 5], &[2, 5]),
            "mul_mat_id: b has ne[0] = 7, expected 8 (row length of a, experts and tokens of ids)"
        );
        assert_eq!(
            refused(&[8, 3, 5], &[2, 5]),
            "mul_mat_id: b has ne[1] = 3, expected 2 (row length of a, experts and tokens of ids)"
        );
        let a = HostTensor::from_f32(&[1, 1, 2], &[0.0; 2]).unwrap();
        let b = HostTensor::from_f32(&[1, 1, 1], &[0.0]).unwrap();
        let ids = HostTensor::from_i32(&[2, 1], &[0, 2]).unwrap();
        assert_eq!(
            Op::from(MulMatId { quantize: false }).evaluate(&[a, b, ids]).unwrap_err().to_string(),
            "mul_mat_id: ids[1, 0, 0] = 2, expected −1 or a row below 2"
        );
    }
}
