//! Matrix product: every row of a with every row of b.
//! ```text
//! y[m, n, i2, i3] = Σ_k a[k, m, i2 div (B2/A2), i3 div (B3/A3)] · b[k, n, i2, i3]
//! ```
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | a | K, M, A2, A3 | f32, f16, bf16, q8_0, q4_0, q4_k, q6_k | weights, one row per output; A2 divides B2 and A3 divides B3 |
//! | b | K, N, B2, B3 | f32 | activations, one row per token |
//!
//! The result y {M, N, B2, B3} is f32 and packed. Neighbouring matrices of b share one of a.
//!
//! With `quantize`, which weights in blocks alone allow, rows of b are first rounded to Q8_0 blocks of 32
//! ([`crate::quant::quantize_q8_0`]), and what is left is a sum of integers times scales: q8_0 weights add
//! `d_a · d_b · Σ q_a · q_b` for each pair of blocks. For q8_0 and q4_0 that is the arithmetic of ggml's CPU backend.
//! For q4_k and q6_k ggml rounds b to blocks of 256 with one scale; ours are finer, so results lie closer to those of
//! unrounded activations. Without `quantize`, weights are expanded exactly and b is taken as it is.
//!
//! Refused: other types, K that differs, batches of a that do not divide those of b.
//! Source: ggml's MUL_MAT; its f16 weights round activations to f16 there, here they do not.

use crate::case::{Arrangement, Values};
use crate::quant::{Q8_0_BLOCK, quantize_q8_0};
use crate::shape::{expect_dtype, expect_ne, packed};
use crate::tensor::indices;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, View, ViewMut, Views};
use smallvec::smallvec;

/// The matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulMat {
    /// Whether rows of b are rounded to Q8_0 first.
    pub quantize: bool,
}

impl MulMat {
    /// The types that weights may have.
    pub const WEIGHTS: &[DType] =
        &[DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K];

    /// The product that suits weights of type `a`: as ggml does, activations are rounded for weights in blocks.
    pub fn of(a: DType) -> MulMat {
        MulMat { quantize: a.is_quantized() }
    }
}

const OPERANDS: &[Operand] = &[
    Operand::new("a", "K, M, A2, A3", "f32, f16, bf16, q8_0, q4_0, q4_k, q6_k", "weights; A2 divides B2 and A3 divides B3"),
    Operand::new("b", "K, N, B2, B3", "f32", "activations, one row per token"),
];

impl Define for MulMat {
    fn name(&self) -> &'static str {
        "mul_mat"
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
        let [a, b] = inputs else { unreachable!("the arity was checked") };
        expect_weights(op, a, self.quantize)?;
        expect_dtype(op, "b", b, &[DType::F32])?;
        expect_ne(op, "b", b, 0, a.ne[0], "the row length of a")?;
        for axis in [2, 3] {
            let (ours, theirs) = (a.ne[axis], b.ne[axis]);
            if theirs != ours && (ours == 0 || theirs % ours != 0) {
                let what = format!("a has ne[{axis}] = {ours}, which does not divide {theirs} (ne[{axis}] of b)");
                return Err(OpError::new(op, what));
            }
        }
        Ok(smallvec![packed(op, "y", DType::F32, &[a.ne[1], b.ne[1], b.ne[2], b.ne[3]])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [a, b] = inputs else { unreachable!("the arity was checked") };
        let y = &mut results[0];
        if y.layout().is_empty() {
            return Ok(());
        }
        let share = |axis: usize| b.ne()[axis] / a.ne()[axis];
        for [_, _, i2, i3] in indices([1, 1, y.ne()[2], y.ne()[3]]) {
            let columns: Vec<Vec<f64>> =
                (0..y.ne()[1]).map(|n| activations(b, [n, i2, i3], self.quantize)).collect();
            for m in 0..y.ne()[0] {
                let weights = a.row([m, i2 / share(2), i3 / share(3)]);
                for (n, column) in columns.iter().enumerate() {
                    y.set([m, n, i2, i3], dot(&weights, column));
                }
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, spec: Spec| cases.push(spec.case(name));
        for &dtype in DENSE {
            let wide = 32 * usize::from(dtype == DType::Q8_0);
            // Rows of blocks have whole blocks; the others get lengths that are multiples of nothing.
            let k = |plain: usize| if wide == 0 { plain } else { plain.next_multiple_of(wide) };
            add(format!("{dtype}_one_token"), Spec::new(dtype, k(67), 33, 1));
            add(format!("{dtype}_one_output"), Spec::new(dtype, k(33), 1, 5));
            add(format!("{dtype}_16_tokens"), Spec::new(dtype, k(64), 17, 16));
            add(format!("{dtype}_65_tokens"), Spec::new(dtype, k(31), 15, 65));
            add(format!("{dtype}_130_outputs"), Spec::new(dtype, k(130), 130, 3));
            add(format!("{dtype}_broadcast_2_and_3"), Spec::new(dtype, k(5), 3, 2).batches([2, 1], [4, 3]));
            add(format!("{dtype}_broadcast_3"), Spec::new(dtype, k(5), 2, 2).batches([1, 3], [1, 6]));
            add(format!("{dtype}_one_matrix_per_batch"), Spec::new(dtype, k(9), 4, 2).batches([3, 2], [3, 2]));
            for ne in [[0, 3, 2, 1], [32, 0, 2, 1], [32, 3, 0, 1]] {
                add(format!("{dtype}_empty_{}_{}_{}", ne[0], ne[1], ne[2]), Spec::new(dtype, ne[0], ne[1], ne[2]));
            }
            add(format!("{dtype}_no_batches"), Spec::new(dtype, 32, 3, 2).batches([1, 0], [2, 0]));
            for &arrangement in Arrangement::ALL {
                let name = arrangement.name();
                let spec = Spec::new(dtype, k(37), 6, 3).batches([2, 1], [4, 2]);
                add(format!("{dtype}_b_{name}"), Spec { b: arrangement, ..spec });
                if wide == 0 || Arrangement::PACKED_ROWS.contains(&arrangement) {
                    add(format!("{dtype}_a_{name}"), Spec { a: arrangement, ..spec });
                }
            }
        }
        for &size in &[1, 2, 15, 16, 17, 31, 33, 65] {
            add(format!("f32_k_{size}"), Spec::new(DType::F32, size, 5, 3));
            add(format!("f32_m_{size}"), Spec::new(DType::F32, 18, size, 2));
            add(format!("f32_n_{size}"), Spec::new(DType::F32, 18, 7, size));
        }
        let spec = Spec { quantize: true, ..Spec::new(DType::Q8_0, 96, 9, 2) };
        add("quantize_two_tokens".into(), spec);
        add("quantize_one_token".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, 160, 35, 1) });
        add("quantize_33_tokens".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, 64, 17, 33) });
        add("quantize_no_columns".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, 0, 3, 2) });
        add("quantize_batches".into(), Spec { quantize: true, ..spec.batches([2, 1], [4, 3]) });
        for &b in Arrangement::ALL {
            add(format!("quantize_b_{}", b.name()), Spec { b, ..spec.batches([1, 2], [3, 2]) });
        }
        for &a in Arrangement::PACKED_ROWS {
            add(format!("quantize_a_{}", a.name()), Spec { a, ..spec.batches([2, 1], [4, 1]) });
        }
        // Rows longer and columns more than a cache-blocked kernel keeps at hand.
        add("long_rows".into(), Spec::new(DType::F32, 2100, 5, 130));
        add("long_rows_f16".into(), Spec::new(DType::F16, 1030, 7, 3));
        add("long_rows_quantize".into(), Spec { quantize: true, ..Spec::new(DType::Q8_0, 1056, 5, 9) });
        for &dtype in &Self::WEIGHTS[DENSE.len()..] {
            for quantize in [true, false] {
                let name = |what: &str| format!("{dtype}_{what}{}", if quantize { "_quantize" } else { "" });
                let new = |blocks, m, n| Spec { quantize, ..Spec::new(dtype, blocks * dtype.block_len(), m, n) };
                add(name("one_token"), new(3, 33, 1));
                add(name("9_tokens"), new(1, 17, 9));
                add(name("batches"), new(2, 5, 3).batches([2, 1], [4, 2]));
                add(name("no_columns"), new(0, 3, 2));
                for &a in Arrangement::PACKED_ROWS {
                    add(name(&format!("a_{}", a.name())), Spec { a, ..new(1, 6, 2).batches([2, 1], [2, 3]) });
                }
                let b = Arrangement::Transposed;
                add(name("b_transposed"), Spec { b, ..new(1, 16, 5) });
            }
        }
        cases
    }
}

/// Types of weights with cases for every shape.
pub(crate) const DENSE: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::Q8_0];

/// Requires weights that can be multiplied, in blocks where activations are to be rounded.
pub(crate) fn expect_weights(op: &'static str, a: &Layout, quantize: bool) -> Result<(), OpError> {
    expect_dtype(op, "a", a, MulMat::WEIGHTS)?;
    if quantize && !a.dtype.is_quantized() {
        let what = "expected q8_0 or q4_0 or q4_k or q6_k (quantize rounds b for weights in blocks)";
        return Err(OpError::new(op, format!("a has type {}, {what}", a.dtype)));
    }
    Ok(())
}

/// A row of b as the products see it.
pub(crate) fn activations(b: &View<'_>, [n, i2, i3]: [usize; 3], quantize: bool) -> Vec<f64> {
    let x = (0..b.ne()[0]).map(|k| b.get([k, n, i2, i3]));
    if !quantize {
        return x.collect();
    }
    let x: Vec<f32> = x.map(|x| x as f32).collect();
    let blocks = x.as_chunks::<Q8_0_BLOCK>().0.iter().map(quantize_q8_0);
    blocks.flat_map(|block| block.q.map(|q| block.scale.to_f64() * f64::from(q))).collect()
}

/// The sum of the products.
pub(crate) fn dot(weights: &[f64], x: &[f64]) -> f64 {
    weights.iter().zip(x).map(|(weight, x)| weight * x).sum()
}

/// The sizes of one case.
#[derive(Clone, Copy)]
struct Spec {
    dtype: DType,
    quantize: bool,
    k: usize,
    m: usize,
    n: usize,
    a_batches: [usize; 2],
    b_batches: [usize; 2],
    a: Arrangement,
    b: Arrangement,
}

impl Spec {
    fn new(dtype: DType, k: usize, m: usize, n: usize) -> Spec {
        let plain = Arrangement::Contiguous;
        Spec { dtype, quantize: false, k, m, n, a_batches: [1, 1], b_batches: [1, 1], a: plain, b: plain }
    }

    fn batches(self, a_batches: [usize; 2], b_batches: [usize; 2]) -> Spec {
        Spec { a_batches, b_batches, ..self }
    }

    fn case(self, name: String) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let [a2, a3] = self.a_batches;
        let [b2, b3] = self.b_batches;
        let a = values.arranged(self.a, self.dtype, &[self.k, self.m, a2, a3], -1.0, 1.0);
        let b = values.arranged(self.b, DType::F32, &[self.k, self.n, b2, b3], -1.0, 1.0);
        let wide = self.k > 1000 || !DENSE.contains(&self.dtype);
        let tolerance = if wide { Tolerance { rtol: 1e-5, atol: 1e-4 } } else { Tolerance::F32_SUM };
        Case::new(name, MulMat { quantize: self.quantize }, vec![a, b], tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    fn product(op: MulMat, a: &HostTensor, b: &HostTensor) -> Vec<f64> {
        Op::from(op).evaluate(&[a.clone(), b.clone()]).unwrap()[0].to_f64()
    }

    #[test]
    fn neighbouring_batches_share_a_matrix() {
        // a: two 1×1 matrices, 10 and 100; b: four. Taking the batch index modulo would give 10, 200, 30, 400.
        let a = HostTensor::from_f32(&[1, 1, 2], &[10.0, 100.0]).unwrap();
        let b = HostTensor::from_f32(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(product(MulMat::of(DType::F32), &a, &b), [10.0, 20.0, 300.0, 400.0]);
        // The outermost axis has a ratio of its own, with one matrix on the axis inside it.
        let a = HostTensor::from_f32(&[1, 1, 1, 2], &[10.0, 100.0]).unwrap();
        let b = HostTensor::from_f32(&[1, 1, 2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        let want = [10.0, 20.0, 30.0, 40.0, 500.0, 600.0, 700.0, 800.0];
        assert_eq!(product(MulMat::of(DType::F32), &a, &b), want);
    }

    #[test]
    fn rows_of_a_meet_rows_of_b() {
        let a = HostTensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let b = HostTensor::from_f32(&[2, 2], &[1.0, 0.0, 1.0, -1.0]).unwrap();
        assert_eq!(product(MulMat::of(DType::F32), &a, &b), [1.0, 3.0, 5.0, -1.0, -1.0, -1.0]);
    }

    #[test]
    fn quantize_rounds_the_activations() {
        // Weights of 0.5 each: scale 0.5, q = 1.
        let mut bytes = [1u8; 34];
        bytes[..2].copy_from_slice(&half::f16::from_f32(0.5).to_le_bytes());
        let layout = Layout::contiguous(DType::Q8_0, &[32]).unwrap();
        let a = HostTensor::from_bytes(layout, bytes.to_vec()).unwrap();
        let mut x = [0.0; 32];
        // The largest magnitude 127 makes the step 1; 0.4 becomes 0 and 2.5 becomes 3.
        (x[0], x[1], x[2]) = (127.0, 0.4, 2.5);
        let b = HostTensor::from_f32(&[32], &x).unwrap();
        assert_eq!(product(MulMat::of(DType::Q8_0), &a, &b), [65.0]);
        let exact = product(MulMat { quantize: false }, &a, &b)[0];
        assert!((exact - 64.95).abs() < 1e-5, "{exact}");
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |op: MulMat, a: Layout, b: Layout| Op::from(op).infer(&[a, b]).unwrap_err().to_string();
        let plain = MulMat { quantize: false };
        let f32 = |ne: &[usize]| layout(DType::F32, ne);
        assert_eq!(
            refused(plain, f32(&[3, 2]), f32(&[5, 2])),
            "mul_mat: b has ne[0] = 5, expected 3 (the row length of a)"
        );
        assert_eq!(
            refused(plain, f32(&[3, 2, 2]), f32(&[3, 2, 3])),
            "mul_mat: a has ne[2] = 2, which does not divide 3 (ne[2] of b)"
        );
        assert_eq!(
            refused(plain, f32(&[3, 2, 0]), f32(&[3, 2, 3])),
            "mul_mat: a has ne[2] = 0, which does not divide 3 (ne[2] of b)"
        );
        assert_eq!(
            refused(plain, layout(DType::I32, &[3]), f32(&[3])),
            "mul_mat: a has type i32, expected f32 or f16 or bf16 or q8_0 or q4_0 or q4_k or q6_k"
        );
        assert_eq!(
            refused(MulMat { quantize: true }, f32(&[32]), f32(&[32])),
            "mul_mat: a has type f32, expected q8_0 or q4_0 or q4_k or q6_k (quantize rounds b for weights in blocks)"
        );
        assert_eq!(
            refused(plain, f32(&[0, 1 << 40]), f32(&[0, 1 << 40])),
            "mul_mat: y: f32 [1099511627776, 1099511627776, 1, 1] has more bytes than can be addressed"
        );
        assert_eq!(Op::from(plain).infer(&[f32(&[3])]).unwrap_err().to_string(), "mul_mat: 1 operands, expected 2 (a, b)");
    }
}
