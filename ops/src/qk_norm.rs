//! Queries and keys divided by their Euclidean lengths, and repeated for more heads where asked for.
//! ```text
//! Max: q'[i, h, …] = q[i, c, …] / max( √(Σ_i q²), eps )        k' likewise
//! Add: q'[i, h, …] = q[i, c, …] / √( Σ_i q² + eps )
//! ```
//! With `heads` = Hk, c = h. More heads read key head c = h mod Hk (`Tiled`) or h div (heads / Hk)
//! (`Interleaved`).
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | q | S, Hk, T, B | f32 | queries |
//! | k | S, Hk, T, B | f32 | keys |
//!
//! Results: `q` and `k` {S, heads, T, B}, packed. A NaN makes its whole row NaN. A row of zeros with eps = 0
//! gives NaN. Refused: an eps that is negative or not finite, `heads` that Hk does not divide.
//!
//! q and k are usually the first rows of a convolution's result, whose last rows are v: three views of it. v
//! is no operand here, since it needs no copy; `gated_delta_net` reads a view. That op also maps heads
//! itself, so it wants `heads` = Hk; repeating serves programs that have one key head per value head.
//! Source: the norm of q and k in the published Gated DeltaNet programs; see `l2_norm` for its two forms.

use crate::case::{Arrangement, Values, rows_of};
use crate::gated_delta_net::Grouping;
use crate::l2_norm::{Form, L2Norm};
use crate::shape::{expect_dtype, expect_eps, expect_shape, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{View, ViewMut, Views};
use smallvec::smallvec;

/// Queries and keys divided by their lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Keeps the divisor away from 0; a length in `Max`, the square of one in `Add`.
    pub eps: f32,
    /// How eps enters the divisor.
    pub form: Form,
    /// Heads of the results, a multiple of the operands'.
    pub heads: usize,
    /// Which head of the operands a head of the results repeats.
    pub grouping: Grouping,
}

const OPERANDS: &[Operand] = &[
    Operand::new("q", "S, Hk, T, B", "f32", "queries"),
    Operand::new("k", "S, Hk, T, B", "f32", "keys"),
];

impl QkNorm {
    fn normalise(&self, x: &View<'_>, y: &mut ViewMut<'_>) {
        let [size, key_heads, ..] = x.ne();
        for [head, token, sequence] in rows(y.ne()) {
            let from = self.grouping.key_head(head, key_heads, self.heads);
            let squares = (0..size).map(|i| x.get([i, from, token, sequence]).powi(2)).sum();
            let divisor = L2Norm { eps: self.eps, form: self.form }.divisor(squares);
            for i in 0..size {
                y.set([i, head, token, sequence], x.get([i, from, token, sequence]) / divisor);
            }
        }
    }
}

impl Define for QkNorm {
    fn name(&self) -> &'static str {
        "qk_norm"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, index: usize) -> String {
        OPERANDS[index].name.into()
    }

    fn attributes(&self) -> String {
        let norm = L2Norm { eps: self.eps, form: self.form }.attributes();
        format!("{norm}, heads={}, grouping={}", self.heads, self.grouping.name())
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [q, k] = inputs else { unreachable!("the arity was checked") };
        expect_eps(op, self.eps)?;
        expect_dtype(op, "q", q, &[DType::F32])?;
        expect_dtype(op, "k", k, &[DType::F32])?;
        expect_shape(op, "k", k, q.ne, "the shape of q")?;
        let [size, key_heads, tokens, sequences] = q.ne;
        if self.heads != 0 && (key_heads == 0 || !self.heads.is_multiple_of(key_heads)) {
            let what = format!("q has ne[1] = {key_heads}, which does not divide heads = {}", self.heads);
            return Err(OpError::new(op, what));
        }
        let ne = [size, self.heads, tokens, sequences];
        Ok(smallvec![packed(op, "q", DType::F32, &ne)?, packed(op, "k", DType::F32, &ne)?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        for (x, y) in inputs.iter().zip(results) {
            self.normalise(x, y);
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for (form_name, form) in [("max", Form::Max), ("add", Form::Add)] {
            let mut add = |name: String, spec: Spec| cases.push(spec.case(format!("{form_name}_{name}"), form));
            for &arrangement in Arrangement::ALL {
                let spec = Spec { arrangement, ..Spec::new([20, 3, 2, 2], 3) };
                add(arrangement.name().into(), spec);
                let spec = Spec { arrangement, ..Spec::new([16, 2, 3, 2], 4) };
                add(format!("repeated_{}", arrangement.name()), spec);
            }
            for size in [1, 2, 15, 16, 17, 31, 32, 33, 64, 96, 127, 128, 130, 256, 516, 2050] {
                add(format!("size_{size}"), Spec::new([size, 2, 3, 1], 2));
            }
            for grouping in [Grouping::Tiled, Grouping::Interleaved] {
                let spec = Spec { grouping, ..Spec::new([32, 2, 3, 2], 6) };
                add(grouping.name().into(), spec);
            }
            add("large_eps".into(), Spec { eps: 100.0, ..Spec::new([33, 2, 2, 1], 2) });
            add("eps_0".into(), Spec { eps: 0.0, ..Spec::new([33, 2, 2, 1], 2) });
            add("large_values".into(), Spec { largest: 1e25, ..Spec::new([33, 2, 2, 1], 4) });
            add("tiny_values".into(), Spec { largest: 1e-25, eps: 0.0, ..Spec::new([33, 2, 2, 1], 2) });
            add("no_heads".into(), Spec::new([16, 2, 3, 2], 0));
            add("no_key_heads".into(), Spec::new([16, 0, 3, 2], 0));
            for ne in [[0, 2, 2, 2], [4, 2, 0, 2], [4, 2, 2, 0]] {
                add(format!("empty_{ne:?}"), Spec::new(ne, 2));
            }
            cases.push(special_values(format!("{form_name}_special_values"), form));
        }
        cases
    }
}

/// The sizes of one case.
struct Spec {
    ne: [usize; 4],
    heads: usize,
    eps: f32,
    grouping: Grouping,
    largest: f64,
    arrangement: Arrangement,
}

impl Spec {
    fn new(ne: [usize; 4], heads: usize) -> Spec {
        let (grouping, arrangement) = (Grouping::Interleaved, Arrangement::Contiguous);
        Spec { ne, heads, eps: 1e-6, grouping, largest: 2.0, arrangement }
    }

    fn case(self, name: String, form: Form) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let mut tensor =
            || values.arranged(self.arrangement, DType::F32, &self.ne, -self.largest, self.largest);
        let inputs = vec![tensor(), tensor()];
        let op = QkNorm { eps: self.eps, form, heads: self.heads, grouping: self.grouping };
        Case::new(name, op, inputs, Tolerance::F32)
    }
}

/// Zeros, a NaN and an infinity, which stay in their rows and tensors.
fn special_values(name: String, form: Form) -> Case {
    let rows: [[f64; 4]; 4] = [
        [0.0, -0.0, 0.0, 0.0],
        [1.0, f64::NAN, 2.0, 3.0],
        [1.0, f64::INFINITY, 2.0, -3.0],
        [1.0, 2.0, 3.0, 4.0],
    ];
    let mut reversed = rows;
    reversed.reverse();
    let tensor = |rows: [[f64; 4]; 4]| -> HostTensor { rows_of(4, rows.as_flattened()) };
    let op = QkNorm { eps: 1e-6, form, heads: 8, grouping: Grouping::Tiled };
    Case::new(name, op, vec![tensor(rows), tensor(reversed)], Tolerance::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn heads_repeat_as_grouped() {
        let q = HostTensor::from_f32(&[1, 2], &[2.0, -3.0]).unwrap();
        let k = HostTensor::from_f32(&[1, 2], &[-5.0, 0.5]).unwrap();
        let results = |grouping| {
            let op = Op::from(QkNorm { eps: 0.0, form: Form::Add, heads: 4, grouping });
            op.evaluate(&[q.clone(), k.clone()]).unwrap().iter().map(HostTensor::to_f64).collect::<Vec<_>>()
        };
        assert_eq!(results(Grouping::Tiled), [[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, 1.0]]);
        assert_eq!(results(Grouping::Interleaved), [[1.0, 1.0, -1.0, -1.0], [-1.0, -1.0, 1.0, 1.0]]);
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let layout = |ne: &[usize]| Layout::contiguous(DType::F32, ne).unwrap();
        let refusal = |heads: usize, k: &[usize]| {
            let op = QkNorm { eps: 1e-6, form: Form::Max, heads, grouping: Grouping::Tiled };
            Op::from(op).infer(&[layout(&[8, 4, 3]), layout(k)]).unwrap_err().to_string()
        };
        assert_eq!(refusal(4, &[8, 4, 2]), "qk_norm: k has ne[2] = 2, expected 3 (the shape of q)");
        assert_eq!(refusal(6, &[8, 4, 3]), "qk_norm: q has ne[1] = 4, which does not divide heads = 6");
    }
}
