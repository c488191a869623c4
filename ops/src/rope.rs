//! Rotary position embedding: pairs of elements are turned by angles that grow with the position.
//!
//! For pair i of the first n_rot elements of a row, with p the position that holds for the pair:
//! ```text
//! θ = p · freq_scale · freq_base^(−2i / n_rot)
//! y[a] = x[a] · cos θ − x[b] · sin θ
//! y[b] = x[a] · sin θ + x[b] · cos θ
//! ```
//! `normal` pairs neighbours, a = 2i and b = 2i + 1; the others pair halves, a = i and b = i + n_rot/2.
//! Elements from n_rot on stay as they are.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | D, H, T, B | f32 | rows of H heads; n_rot ≤ D |
//! | positions | T, B; with sections T, 4 or 1, B | i32 | of each token; any sign |
//!
//! Result: y, shape of x, packed.
//!
//! With sections, a token has four positions (for images: time, height, width, one more), and pair i takes the
//! one of its section. Let c = i mod (s0 + s1 + s2 + s3). In a row, c < s0 is section 0, the next s1 are section
//! 1, and so on. Interleaved, c is of section 0, 1 or 2 as c mod 3 says, while c < 3·s0, 3·s1 or 3·s2; the rest is
//! of section 3. Text gives all sections one position: positions {T, 1, B} say so. Then sections change nothing.
//!
//! Refused: n_rot odd, 0 or above D; sections that are all 0; freq_base not above 0, or not finite.
//! Source: Su et al. 2021 (arXiv 2104.09864) equation 34; pairing and sections as ggml's ROPE in its modes normal,
//! NEOX, MROPE and IMROPE, without YaRN.

use crate::case::{Arrangement, Values, fill};
use crate::shape::{expect_dtype, expect_shape, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// Which elements make a pair, and which position turns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeMode {
    /// Element i with element i + n_rot/2.
    Neox,
    /// Element 2i with element 2i + 1.
    Normal,
    /// Pairs as `Neox`; four positions per token.
    Sections {
        /// Pairs of each section.
        sections: [usize; 4],
        /// Whether sections 0 to 2 take turns, rather than follow each other.
        interleaved: bool,
    },
}

impl RopeMode {
    /// The section whose position turns pair `pair`; 0 without sections.
    pub fn section(&self, pair: usize) -> usize {
        let RopeMode::Sections { sections, interleaved } = self else { return 0 };
        let place = pair % sections.iter().sum::<usize>().max(1);
        if *interleaved {
            let turn = place % 3;
            return if place < sections[turn].saturating_mul(3) { turn } else { 3 };
        }
        let ends = sections.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        ends.take(3).filter(|&end| end <= place).count()
    }

    /// The first and the second element of pair `pair`.
    pub fn elements(&self, pair: usize, n_rot: usize) -> [usize; 2] {
        match self {
            RopeMode::Normal => [2 * pair, 2 * pair + 1],
            _ => [pair, pair + n_rot / 2],
        }
    }
}

/// Rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which elements make a pair.
    pub mode: RopeMode,
    /// Elements of a row that turn.
    pub n_rot: usize,
    /// Base of the angles' geometric series.
    pub freq_base: f32,
    /// Factor of every position.
    pub freq_scale: f32,
}

const OPERANDS: &[Operand] = &[
    Operand::new("x", "D, H, T, B", "f32", "rows of H heads; n_rot ≤ D"),
    Operand::new("positions", "T, B; with sections T, 4 or 1, B", "i32", "of each token; any sign"),
];

impl Rope {
    /// The angle of a pair at position 1.
    pub fn step(&self, pair: usize) -> f64 {
        let exponent = -2.0 * pair as f64 / self.n_rot as f64;
        f64::from(self.freq_scale) * f64::from(self.freq_base).powf(exponent)
    }

    /// Where the position of a pair stands among the positions, for token t of sequence b.
    pub fn position_index(&self, positions: [usize; 4], pair: usize, t: usize, b: usize) -> [usize; 4] {
        match self.mode {
            RopeMode::Sections { .. } if positions[1] == 1 => [t, 0, b, 0],
            RopeMode::Sections { .. } => [t, self.mode.section(pair), b, 0],
            _ => [t, b, 0, 0],
        }
    }
}

impl Define for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        let mode = match self.mode {
            RopeMode::Neox => "neox".into(),
            RopeMode::Normal => "normal".into(),
            RopeMode::Sections { sections, interleaved } => {
                format!("sections={sections:?}{}", if interleaved { ", interleaved" } else { "" })
            }
        };
        let Rope { n_rot, freq_base, freq_scale, .. } = self;
        let scale = if *freq_scale == 1.0 { String::new() } else { format!(", freq_scale={freq_scale}") };
        format!("{mode}, n_rot={n_rot}, freq_base={freq_base}{scale}")
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let op = self.name();
        let [x, positions] = inputs else { unreachable!("the arity was checked") };
        expect_dtype(op, "x", x, &[DType::F32])?;
        expect_dtype(op, "positions", positions, &[DType::I32])?;
        if self.n_rot == 0 || !self.n_rot.is_multiple_of(2) || self.n_rot > x.ne[0] {
            let what = format!("n_rot = {}, expected an even number from 2 to {} (ne[0] of x)", self.n_rot, x.ne[0]);
            return Err(OpError::new(op, what));
        }
        if !(self.freq_base.is_finite() && self.freq_base > 0.0 && self.freq_scale.is_finite()) {
            let (base, scale) = (self.freq_base, self.freq_scale);
            let what = format!("freq_base = {base} and freq_scale = {scale}, expected finite numbers and a base above 0");
            return Err(OpError::new(op, what));
        }
        let [_, _, tokens, sequences] = x.ne;
        let RopeMode::Sections { sections, .. } = self.mode else {
            expect_shape(op, "positions", positions, [tokens, sequences, 1, 1], "tokens and sequences of x")?;
            return Ok(smallvec![packed(op, "y", DType::F32, &x.ne)?]);
        };
        let total = sections.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
        if !total.is_some_and(|total| (1..=self.n_rot).contains(&total)) {
            let what = format!("sections = {sections:?}, expected a sum from 1 to {} (n_rot)", self.n_rot);
            return Err(OpError::new(op, what));
        }
        let want = [tokens, if positions.ne[1] == 1 { 1 } else { 4 }, sequences, 1];
        expect_shape(op, "positions", positions, want, "tokens of x, one position or four, sequences of x")?;
        Ok(smallvec![packed(op, "y", DType::F32, &x.ne)?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[0] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [x, positions] = inputs else { unreachable!("the arity was checked") };
        for [head, t, b] in rows(x.ne()) {
            for pair in 0..self.n_rot / 2 {
                let place = self.position_index(positions.ne(), pair, t, b);
                let (sin, cos) = (positions.get_int(place) as f64 * self.step(pair)).sin_cos();
                let at = self.mode.elements(pair, self.n_rot).map(|element| [element, head, t, b]);
                let [first, second] = at.map(|index| x.get(index));
                results[0].set(at[0], first * cos - second * sin);
                results[0].set(at[1], first * sin + second * cos);
            }
            for element in self.n_rot..x.ne()[0] {
                results[0].set([element, head, t, b], x.get([element, head, t, b]));
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut values = Values::new(70);
        let mut add = |name: String, mode: RopeMode, n_rot: usize, arrangement: Arrangement, ne: [usize; 4]| {
            let op = Rope { mode, n_rot, freq_base: 10_000.0, freq_scale: 1.0 };
            let x = values.arranged(arrangement, DType::F32, &ne, -2.0, 2.0);
            let four = matches!(mode, RopeMode::Sections { .. });
            let shape: &[usize] = if four { &[ne[2], 4, ne[3]] } else { &[ne[2], ne[3]] };
            let positions = fill(arrangement.layout(DType::I32, shape), |_| values.below(3000) as f64);
            cases.push(Case::new(name, op, vec![x, positions], ROTATED));
        };
        let interleaved = |sections| RopeMode::Sections { sections, interleaved: true };
        let in_a_row = |sections| RopeMode::Sections { sections, interleaved: false };
        let modes = [
            ("neox", RopeMode::Neox),
            ("normal", RopeMode::Normal),
            ("interleaved", interleaved([3, 3, 2, 0])),
            ("sections", in_a_row([3, 2, 2, 1])),
        ];
        for (name, mode) in modes {
            for &arrangement in Arrangement::ALL {
                add(format!("{name}_{}", arrangement.name()), mode, 16, arrangement, [22, 3, 5, 2]);
            }
            for ne in [[18, 0, 3, 2], [18, 2, 0, 2], [18, 2, 3, 0]] {
                add(format!("{name}_empty_{ne:?}"), mode, 16, Arrangement::Contiguous, ne);
            }
            add(format!("{name}_whole_rows"), mode, 64, Arrangement::Contiguous, [64, 2, 3, 1]);
            add(format!("{name}_one_pair"), mode, 8, Arrangement::Contiguous, [9, 1, 1, 1]);
        }
        add("neox_two_elements".into(), RopeMode::Neox, 2, Arrangement::Contiguous, [2, 3, 4, 1]);
        add("normal_many_heads".into(), RopeMode::Normal, 6, Arrangement::Contiguous, [7, 65, 3, 1]);
        add("interleaved_64".into(), interleaved([11, 11, 10, 0]), 64, Arrangement::Contiguous, [256, 2, 9, 1]);
        add("interleaved_rest".into(), interleaved([4, 1, 2, 9]), 40, Arrangement::Contiguous, [40, 1, 6, 1]);
        add("sections_repeated".into(), in_a_row([1, 0, 2, 1]), 24, Arrangement::Contiguous, [24, 2, 4, 1]);
        cases.push(one_position_for_all_sections());
        cases.push(far_positions());
        cases
    }
}

/// The products add two roundings to that of the turned element.
const ROTATED: Tolerance = Tolerance { rtol: 1e-6, atol: 1.5e-6 };

fn one_position_for_all_sections() -> Case {
    let mode = RopeMode::Sections { sections: [11, 11, 10, 0], interleaved: true };
    let op = Rope { mode, n_rot: 64, freq_base: 1e7, freq_scale: 1.0 };
    let mut values = Values::new(71);
    let x = values.tensor(DType::F32, &[80, 2, 3, 2], -2.0, 2.0);
    let positions = HostTensor::from_i32(&[3, 1, 2], &[0, 1, 2, 70, 71, 72]).expect("six positions");
    Case::new("text", op, vec![x, positions], ROTATED)
}

/// Angles of many turns, and of less than none.
fn far_positions() -> Case {
    let op = Rope { mode: RopeMode::Neox, n_rot: 64, freq_base: 1e6, freq_scale: 0.25 };
    let far = [0, 1, -1, -4097, 99_999, 100_000, 131_071, 1 << 20, 10_000_019];
    let x = Values::new(72).tensor(DType::F32, &[64, 2, far.len()], -2.0, 2.0);
    let positions = HostTensor::from_i32(&[far.len()], &far).expect("one position each");
    Case::new("far_positions", op, vec![x, positions], ROTATED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn turned(op: Rope, x: &[f32], positions: HostTensor) -> Vec<f64> {
        let x = HostTensor::from_f32(&[x.len()], x).unwrap();
        Op::from(op).evaluate(&[x, positions]).unwrap()[0].to_f64()
    }

    fn position(p: i32) -> HostTensor {
        HostTensor::from_i32(&[1], &[p]).unwrap()
    }

    #[test]
    fn pairs_turn_and_the_rest_stays() {
        // Base 1: every pair turns by the position itself.
        let op = Rope { mode: RopeMode::Neox, n_rot: 4, freq_base: 1.0, freq_scale: 1.0 };
        let (sin, cos) = (2f64.sin() as f32 as f64, 2f64.cos() as f32 as f64);
        assert_eq!(turned(op, &[1.0, 0.0, 0.0, 1.0, 5.0], position(2)), [cos, -sin, sin, cos, 5.0]);
        let op = Rope { mode: RopeMode::Normal, ..op };
        assert_eq!(turned(op, &[1.0, 0.0, 0.0, 1.0, 5.0], position(2)), [cos, sin, -sin, cos, 5.0]);
    }

    #[test]
    fn later_pairs_turn_slower() {
        let op = Rope { mode: RopeMode::Normal, n_rot: 4, freq_base: 100.0, freq_scale: 0.5 };
        assert_eq!([op.step(0), op.step(1)], [0.5, 0.05]);
    }

    #[test]
    fn sections_are_those_of_ggml() {
        let of = |sections, interleaved| {
            let mode = RopeMode::Sections { sections, interleaved };
            (0..10).map(|pair| mode.section(pair)).collect::<Vec<_>>()
        };
        assert_eq!(of([3, 2, 1, 2], false), [0, 0, 0, 1, 1, 2, 3, 3, 0, 0]);
        assert_eq!(of([3, 3, 2, 0], true), [0, 1, 2, 0, 1, 2, 0, 1, 0, 1]);
        assert_eq!(of([2, 1, 1, 4], true), [0, 1, 2, 0, 3, 3, 3, 3, 0, 1]);
    }

    #[test]
    fn equal_positions_in_all_sections_are_those_of_neox() {
        let mode = RopeMode::Sections { sections: [2, 1, 1, 0], interleaved: true };
        let op = Rope { mode, n_rot: 8, freq_base: 1e4, freq_scale: 1.0 };
        let x: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let four = HostTensor::from_i32(&[1, 4], &[7; 4]).unwrap();
        let plain = turned(Rope { mode: RopeMode::Neox, ..op }, &x, position(7));
        assert_eq!(turned(op, &x, four), plain);
        assert_eq!(turned(op, &x, position(7)), plain);
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let op = Rope { mode: RopeMode::Neox, n_rot: 8, freq_base: 1e4, freq_scale: 1.0 };
        let refused = |op: Rope, x: &[usize], p: &[usize]| {
            Op::from(op).infer(&[layout(DType::F32, x), layout(DType::I32, p)]).unwrap_err().to_string()
        };
        assert_eq!(
            refused(op, &[6, 1, 3], &[3]),
            "rope: n_rot = 8, expected an even number from 2 to 6 (ne[0] of x)"
        );
        assert_eq!(
            refused(op, &[8, 1, 3], &[4]),
            "rope: positions has ne[0] = 4, expected 3 (tokens and sequences of x)"
        );
        let mode = RopeMode::Sections { sections: [0; 4], interleaved: false };
        assert_eq!(
            refused(Rope { mode, ..op }, &[8, 1, 3], &[3, 4]),
            "rope: sections = [0, 0, 0, 0], expected a sum from 1 to 8 (n_rot)"
        );
        let mode = RopeMode::Sections { sections: [1; 4], interleaved: false };
        assert_eq!(
            refused(Rope { mode, ..op }, &[8, 1, 3], &[3, 3]),
            "rope: positions has ne[1] = 3, expected 4 (tokens of x, one position or four, sequences of x)"
        );
        assert_eq!(
            refused(Rope { freq_base: 0.0, ..op }, &[8, 1, 3], &[3]),
            "rope: freq_base = 0 and freq_scale = 1, expected finite numbers and a base above 0"
        );
    }
}
