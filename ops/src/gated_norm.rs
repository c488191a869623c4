//! RMS norm in groups, with a gate before or after it.
//!
//! A row of D elements is cut into D / group_size groups, each normalised on its own:
//! ```text
//! norm(v)[i] = v[i] / √( mean of v² over the group of i + eps ) · w[i]
//! NormThenGate: y = norm(x) · act(z)
//! GateThenNorm: y = norm(x · act(z))
//! ```
//! act is SiLU or the sigmoid. With a w of group_size elements every group uses the same w.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | D, … | f32, f16, bf16 | values to normalise |
//! | z | shape of x | type of x | gate before its activation |
//! | w | D or group_size | f32 | scale of the normalised values |
//!
//! Result: y, shape and type of x, packed. Refused: a group_size of 0 or one that does not divide D, an eps
//! that is negative or not finite.
//! Source: RMSNormGated of Mamba-2 (gate first, groups), Qwen3-Next (norm first, SiLU), Kimi-Linear (norm
//! first, sigmoid).

use crate::case::{Arrangement, Values, fill};
use crate::shape::{FLOATS, expect_dtype, expect_eps, expect_shape};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance, ViewMut, Views, math};
use smallvec::smallvec;

/// Which of norm and gate comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// y = norm(x) · act(z)
    NormThenGate,
    /// y = norm(x · act(z))
    GateThenNorm,
}

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// z / (1 + e^−z)
    Silu,
    /// 1 / (1 + e^−z)
    Sigmoid,
}

impl Gate {
    /// The activation itself.
    pub fn apply(self, z: f64) -> f64 {
        match self {
            Gate::Silu => math::silu(z),
            Gate::Sigmoid => math::sigmoid(z),
        }
    }
}

/// RMS norm in groups with a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// Elements normalised together; divides D.
    pub group_size: usize,
    /// Which of norm and gate comes first.
    pub order: Order,
    /// The activation of the gate.
    pub gate: Gate,
}

const OPERANDS: &[Operand] = &[
    Operand::new("x", "D, …", "f32, f16, bf16", "values to normalise"),
    Operand::new("z", "shape of x", "type of x", "gate before its activation"),
    Operand::new("w", "D or group_size", "f32", "scale of the normalised values"),
];

impl Define for GatedNorm {
    fn name(&self) -> &'static str {
        "gated_norm"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        let order = match self.order {
            Order::NormThenGate => "norm_then_gate",
            Order::GateThenNorm => "gate_then_norm",
        };
        let gate = match self.gate {
            Gate::Silu => "silu",
            Gate::Sigmoid => "sigmoid",
        };
        format!("eps={:e}, group_size={}, order={order}, gate={gate}", self.eps, self.group_size)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [x, z, w] = inputs else { unreachable!("the arity was checked") };
        expect_eps(op, self.eps)?;
        expect_dtype(op, "x", x, FLOATS)?;
        expect_dtype(op, "z", z, &[x.dtype])?;
        expect_dtype(op, "w", w, &[DType::F32])?;
        let row = x.ne[0];
        if self.group_size == 0 || row % self.group_size != 0 {
            return Err(OpError::new(
                op,
                format!("x has ne[0] = {row}, which is not divided by group_size = {}", self.group_size),
            ));
        }
        expect_shape(op, "z", z, x.ne, "the shape of x")?;
        if w.ne[0] != self.group_size {
            let why = format!("ne[0] of x, or group_size = {}", self.group_size);
            expect_shape(op, "w", w, [row, 1, 1, 1], &why)?;
        }
        expect_shape(op, "w", w, [w.ne[0], 1, 1, 1], "one w for all rows")?;
        Ok(smallvec![x.to_contiguous()])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0, 1] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [x, z, w] = inputs else { unreachable!("the arity was checked") };
        let layout = x.layout();
        let weights = w.ne()[0];
        for [i1, i2, i3] in rows(layout.ne) {
            for start in (0..layout.ne[0]).step_by(self.group_size) {
                let group = start..start + self.group_size;
                let act = |i: usize| self.gate.apply(z.get([i, i1, i2, i3]));
                let before = |i: usize| match self.order {
                    Order::NormThenGate => x.get([i, i1, i2, i3]),
                    Order::GateThenNorm => x.get([i, i1, i2, i3]) * act(i),
                };
                let squares: f64 = group.clone().map(|i| before(i) * before(i)).sum();
                let rms = (squares / self.group_size as f64 + f64::from(self.eps)).sqrt();
                for i in group {
                    let normed = before(i) / rms * w.get([i % weights, 0, 0, 0]);
                    let value = match self.order {
                        Order::NormThenGate => normed * act(i),
                        Order::GateThenNorm => normed,
                    };
                    results[0].set([i, i1, i2, i3], value);
                }
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let forms = [
            ("norm_silu", Order::NormThenGate, Gate::Silu),
            ("norm_sigmoid", Order::NormThenGate, Gate::Sigmoid),
            ("silu_norm", Order::GateThenNorm, Gate::Silu),
            ("sigmoid_norm", Order::GateThenNorm, Gate::Sigmoid),
        ];
        for (form, order, gate) in forms {
            let op = |eps, group_size| GatedNorm { eps, group_size, order, gate };
            let mut add = |name: &str, spec: Spec| cases.push(spec.case(format!("{form}_{name}")));
            for &arrangement in Arrangement::ALL {
                let spec = Spec { arrangement, ..Spec::new(op(1e-5, 12), &[36, 3, 2, 2]) };
                add(arrangement.name(), spec);
            }
            add("shared_weight", Spec { shared_weight: true, ..Spec::new(op(1e-6, 16), &[64, 3]) });
            for group_size in [1, 15, 16, 17, 31, 33, 64, 65, 130, 257] {
                add(&format!("group_{group_size}"), Spec::new(op(1e-5, group_size), &[2 * group_size, 2]));
            }
            add("one_group", Spec::new(op(1e-5, 130), &[130, 5]));
            add("large_eps", Spec::new(op(0.5, 8), &[24, 3]));
            add("eps_0", Spec::new(op(0.0, 8), &[24, 3]));
            add("long_row", Spec::new(op(1e-5, 3072), &[3072]));
            let odd = Arrangement::OddStrides;
            add("odd_strides_one_row", Spec { arrangement: odd, ..Spec::new(op(1e-5, 6), &[12]) });
            add("odd_strides_one_element", Spec { arrangement: odd, ..Spec::new(op(1e-5, 1), &[1, 3]) });
            for dtype in [DType::F16, DType::BF16] {
                for &arrangement in Arrangement::ALL {
                    let spec = Spec { dtype, arrangement, ..Spec::new(op(1e-5, 7), &[21, 2, 2]) };
                    add(&format!("{dtype}_{}", arrangement.name()), spec);
                }
            }
            for dtype in [DType::F16, DType::BF16] {
                let spec = Spec { dtype, ..Spec::new(op(1e-5, 20), &[60, 2]) };
                add(&format!("{dtype}_group_20"), spec);
            }
            for ne in [[0, 2, 2, 2], [4, 0, 2, 2], [4, 2, 0, 2], [4, 2, 2, 0]] {
                add(&format!("empty_{ne:?}"), Spec::new(op(1e-5, 2), &ne));
            }
            cases.push(special_values(op(1e-5, 4), form));
        }
        cases
    }
}

/// The sizes of one case.
struct Spec {
    op: GatedNorm,
    ne: Vec<usize>,
    dtype: DType,
    arrangement: Arrangement,
    shared_weight: bool,
}

impl Spec {
    fn new(op: GatedNorm, ne: &[usize]) -> Spec {
        let (dtype, arrangement) = (DType::F32, Arrangement::Contiguous);
        Spec { op, ne: ne.to_vec(), dtype, arrangement, shared_weight: false }
    }

    fn case(self, name: String) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let mut tensor = |dtype: DType, ne: &[usize], low: f64, high: f64| {
            values.arranged(self.arrangement, dtype, ne, low, high)
        };
        let x = tensor(self.dtype, &self.ne, -2.0, 2.0);
        // Groups of unlike size, so that a norm over the whole row is far off.
        let group_size = self.op.group_size;
        let x = fill(*x.layout(), |index| x.get(index) * (1.0 + 4.0 * (index[0] / group_size % 3) as f64));
        let z = tensor(self.dtype, &self.ne, -4.0, 4.0);
        let weights = if self.shared_weight { group_size } else { self.ne[0] };
        let w = tensor(DType::F32, &[weights], 0.5, 1.5);
        let tolerance = match self.dtype {
            DType::F32 if group_size > 1000 => Tolerance::F32_SUM,
            dtype => Tolerance::rounded_to(dtype),
        };
        Case::new(name, self.op, vec![x, z, w], tolerance)
    }
}

/// Gates far out on both sides, a group of zeros, and a NaN and an infinity that stay in their groups.
fn special_values(op: GatedNorm, form: &str) -> Case {
    let x = [
        [1.0, -2.0, 3.0, 0.5, 0.0, 0.0, 0.0, 0.0],
        [1.0, f64::NAN, 3.0, 0.5, 1.0, 2.0, -3.0, 4.0],
        [1.0, 2.0, -3.0, 4.0, 1.0, f64::INFINITY, 3.0, 0.5],
    ];
    let z = [
        [1e4, -1e4, 88.8, -88.8, 20.0, -20.0, 0.0, -0.0],
        [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0],
        [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0],
    ];
    let layout = Layout::contiguous(DType::F32, &[8, 3]).expect("a small shape");
    let tensor = |rows: [[f64; 8]; 3]| fill(layout, |[i, row, ..]| rows[row][i]);
    let w = Layout::contiguous(DType::F32, &[8]).expect("a short row");
    let w = fill(w, |[i, ..]| 0.5 + 0.125 * i as f64);
    Case::new(format!("{form}_special_values"), op, vec![tensor(x), tensor(z), w], Tolerance::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    fn f32s(ne: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::from_f32(ne, values).unwrap()
    }

    fn close(got: &HostTensor, want: &[f64]) {
        for (got, want) in got.to_f64().into_iter().zip(want) {
            assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "got {got}, expected {want}");
        }
    }

    #[test]
    fn each_group_has_its_own_norm() {
        // Sigmoid of 0 is 1/2; the groups (3, 4) and (30, 40) have mean squares 12.5 and 1250.
        let op = |order| GatedNorm { eps: 0.0, group_size: 2, order, gate: Gate::Sigmoid };
        let inputs = [f32s(&[4], &[3.0, 4.0, 30.0, 40.0]), f32s(&[4], &[0.0; 4]), f32s(&[4], &[1.0; 4])];
        let (three, four) = (3.0 / 12.5f64.sqrt(), 4.0 / 12.5f64.sqrt());
        let y = &Op::from(op(Order::GateThenNorm)).evaluate(&inputs).unwrap()[0];
        close(y, &[three, four, three, four]);
        let y = &Op::from(op(Order::NormThenGate)).evaluate(&inputs).unwrap()[0];
        close(y, &[three / 2.0, four / 2.0, three / 2.0, four / 2.0]);
    }

    #[test]
    fn a_short_weight_serves_every_group() {
        let op = GatedNorm { eps: 0.0, group_size: 2, order: Order::NormThenGate, gate: Gate::Sigmoid };
        let inputs = [f32s(&[4], &[3.0, -3.0, 5.0, 5.0]), f32s(&[4], &[0.0; 4]), f32s(&[2], &[2.0, 8.0])];
        close(&Op::from(op).evaluate(&inputs).unwrap()[0], &[1.0, -4.0, 1.0, 4.0]);
    }

    #[test]
    fn refusals_name_operand_and_axis() {
        let refusal = |group_size: usize, eps: f32, shapes: [&[usize]; 3]| {
            let layouts = shapes.map(|ne| Layout::contiguous(DType::F32, ne).unwrap());
            let op = GatedNorm { eps, group_size, order: Order::NormThenGate, gate: Gate::Silu };
            Op::from(op).infer(&layouts).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(5, 0.0, [&[12, 3], &[12, 3], &[12]]),
            "gated_norm: x has ne[0] = 12, which is not divided by group_size = 5"
        );
        assert_eq!(
            refusal(0, 0.0, [&[12, 3], &[12, 3], &[12]]),
            "gated_norm: x has ne[0] = 12, which is not divided by group_size = 0"
        );
        assert_eq!(
            refusal(4, 0.0, [&[12, 3], &[12, 1], &[12]]),
            "gated_norm: z has ne[1] = 1, expected 3 (the shape of x)"
        );
        assert_eq!(
            refusal(4, 0.0, [&[12, 3], &[12, 3], &[6]]),
            "gated_norm: w has ne[0] = 6, expected 12 (ne[0] of x, or group_size = 4)"
        );
        assert_eq!(
            refusal(4, 0.0, [&[12, 3], &[12, 3], &[4, 3]]),
            "gated_norm: w has ne[1] = 3, expected 1 (one w for all rows)"
        );
        assert_eq!(
            refusal(4, f32::NAN, [&[12, 3], &[12, 3], &[12]]),
            "gated_norm: eps = NaN, expected a finite number of at least 0"
        );
    }
}
