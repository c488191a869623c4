//! The elements of a tensor, in index order, in a fresh tensor of another layout, shape or type.
//!
//! | from | to | how |
//! |---|---|---|
//! | any type | the same | bit for bit, block formats included |
//! | f32, f16, bf16 | f32, f16, bf16 | to nearest, ties to even |
//! | i32, i64 | i64, i32 | i64 → i32 keeps the low 32 bits |
//! | i32, i64 | f32 | to nearest, ties to even |
//! | f32 | i32, i64 | towards zero; beyond the range its nearest end; NaN becomes 0 |
//! | q8_0, q4_0, q4_k, q6_k | f32 | exact; q4_k to nearest, ties to even |
//! | f32 | q8_0, q4_0, q4_k, q6_k | [`crate::quant::Format::encode`] on each block of elements in index order |
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | x | any with as many elements as `to` | see above | anything |
//!
//! The result has the layout `to`. Refused: other pairs of types, another number of elements, a layout whose
//! elements share bytes.
//! Source: ggml's CPY, CONT and DUP.

use crate::case::{Arrangement, Values, fill};
use crate::quant::Format;
use crate::shape::packed;
use crate::tensor::indices;
use crate::{Case, DType, Define, HostTensor, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{View, ViewMut, Views};
use smallvec::smallvec;

/// A copy into a fresh tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpy {
    /// The layout of the result.
    pub to: Layout,
}

/// What a copy does to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// Nothing: equal types.
    Bits,
    /// Between real types.
    Float,
    /// Between integer types.
    Int,
    /// Integer to f32.
    IntToFloat,
    /// f32 to integer.
    FloatToInt,
    /// Blocks to f32.
    Expand,
    /// f32 to blocks.
    Quantize,
}

impl Conversion {
    /// The conversion between two types, if there is one.
    pub fn between(from: DType, to: DType) -> Option<Conversion> {
        match (from, to) {
            _ if from == to => Some(Conversion::Bits),
            _ if from.is_float() && to.is_float() => Some(Conversion::Float),
            _ if from.is_int() && to.is_int() => Some(Conversion::Int),
            (_, DType::F32) if from.is_int() => Some(Conversion::IntToFloat),
            (DType::F32, _) if to.is_int() => Some(Conversion::FloatToInt),
            (_, DType::F32) if from.is_quantized() => Some(Conversion::Expand),
            (DType::F32, _) if to.is_quantized() => Some(Conversion::Quantize),
            _ => None,
        }
    }
}

impl Cpy {
    /// A packed copy of a tensor of this layout.
    pub fn cont(of: &Layout) -> Cpy {
        Cpy { to: of.to_contiguous() }
    }

    /// A packed copy of a tensor of this layout, in another type.
    ///
    /// Errors: rows that do not fill whole blocks, a size that cannot be addressed.
    pub fn cast(of: &Layout, dtype: DType) -> Result<Cpy, OpError> {
        Ok(Cpy { to: packed("cpy", "y", dtype, &of.ne)? })
    }
}

const OPERANDS: &[Operand] =
    &[Operand::new("x", "any with as many elements as the result", "any that converts", "anything")];

impl Define for Cpy {
    fn name(&self) -> &'static str {
        "cpy"
    }

    fn operands(&self) -> &'static [Operand] {
        OPERANDS
    }

    fn result_name(&self, _index: usize) -> String {
        "y".into()
    }

    fn attributes(&self) -> String {
        format!("to={}", self.to)
    }

    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError> {
        let (op, x) = (self.name(), &inputs[0]);
        let to = Layout::strided(self.to.dtype, self.to.ne, self.to.nb).map_err(|error| error.of(op, "to"))?;
        if Conversion::between(x.dtype, to.dtype).is_none() {
            return Err(OpError::new(op, format!("x has type {}, which does not convert to {}", x.dtype, to.dtype)));
        }
        if x.elements() != to.elements() {
            let what = format!("x has {} elements, expected {} (those of {to})", x.elements(), to.elements());
            return Err(OpError::new(op, what));
        }
        if to.may_overlap() {
            return Err(OpError::new(op, format!("to = {to} has elements that share bytes and cannot be written")));
        }
        Ok(smallvec![to])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let (x, y) = (&inputs[0], &mut results[0]);
        let conversion = Conversion::between(x.layout().dtype, y.layout().dtype).expect("infer checked it");
        if conversion == Conversion::Quantize {
            quantize(x, y);
            return Ok(());
        }
        if conversion == Conversion::Bits {
            for (from, to) in indices(x.layout().blocks()).zip(indices(y.layout().blocks())) {
                y.block_mut(to).copy_from_slice(x.block(from));
            }
            return Ok(());
        }
        for (from, to) in indices(x.ne()).zip(indices(y.ne())) {
            match conversion {
                Conversion::Int => y.set_int(to, x.get_int(from)),
                Conversion::IntToFloat => y.set(to, f64::from(x.get_int(from) as f32)),
                Conversion::FloatToInt => y.set(to, x.get(from)),
                _ => y.set(to, x.get(from)),
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = layout_cases();
        cases.extend(type_cases());
        cases.extend(block_cases());
        cases.push(ends_case());
        cases
    }
}

fn quantize(x: &View<'_>, y: &mut ViewMut<'_>) {
    let format = Format::of(y.layout().dtype).expect("infer checked it");
    let mut elements = indices(x.ne()).map(|index| x.get(index) as f32);
    for to in indices(y.layout().blocks()) {
        let values: Vec<f32> = elements.by_ref().take(format.block_len()).collect();
        format.encode(&values, y.block_mut(to));
    }
}

fn case(name: String, x: HostTensor, to: Layout) -> Case {
    Case::new(name, Cpy { to }, vec![x], Tolerance::EXACT)
}

fn layout_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut values = Values::new(1);
    let ne = [17, 4, 3, 2];
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        for &from in Arrangement::ALL {
            for &to in Arrangement::ALL {
                let x = values.arranged(from, dtype, &ne, -50.0, 50.0);
                cases.push(case(format!("{dtype}_{}_to_{}", from.name(), to.name()), x, to.layout(dtype, &ne)));
            }
        }
    }
    for size in [1, 15, 16, 31, 33, 64, 65, 130] {
        for &from in &[Arrangement::Contiguous, Arrangement::Transposed] {
            let x = values.arranged(from, DType::F32, &[size, 33], -1.0, 1.0);
            let to = Layout::contiguous(DType::F32, &[size, 33]).expect("a small shape");
            cases.push(case(format!("size_{size}_{}", from.name()), x, to));
        }
    }
    for from in [DType::F32, DType::F16, DType::BF16] {
        for to in [DType::F32, DType::F16, DType::BF16] {
            // Tiles of a transposition, whole and cut, on either side.
            let x = values.arranged(Arrangement::Transposed, from, &[40, 33, 2, 2], -1.0, 1.0);
            let packed = Layout::contiguous(to, &[40, 33, 2, 2]).expect("a small shape");
            cases.push(case(format!("{from}_tiles_to_{to}"), x, packed));
            let x = values.arranged(Arrangement::Permuted, from, &[65, 9, 8], -1.0, 1.0);
            cases.push(case(format!("{from}_to_{to}_tiles"), x, Arrangement::Transposed.layout(to, &[65, 9, 8])));
        }
    }
    for (name, ne) in [("flat", [408, 1, 1, 1]), ("square", [24, 17, 1, 1]), ("deep", [2, 2, 6, 17])] {
        for &arrangement in Arrangement::ALL {
            let x = values.arranged(arrangement, DType::F32, &[17, 4, 3, 2], -1.0, 1.0);
            let to = Arrangement::GappedRows.layout(DType::F32, &ne);
            cases.push(case(format!("{}_to_{name}", arrangement.name()), x, to));
        }
    }
    for ne in [[0, 3, 1, 1], [3, 0, 1, 1], [3, 1, 0, 1], [3, 1, 1, 0]] {
        let x = values.tensor(DType::F32, &ne, -1.0, 1.0);
        cases.push(case(format!("empty_{ne:?}"), x, Layout::contiguous(DType::F16, &[5, 0]).expect("empty")));
    }
    let x = Layout::strided(DType::F32, [5, 3, 2, 1], [4, 0, 20, 0]).expect("a repeated row");
    let bytes = (0..10).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let x = HostTensor::from_bytes(x, bytes).expect("two rows");
    cases.push(case("shared_rows".into(), x, Layout::contiguous(DType::F32, &[30]).expect("a small shape")));
    cases
}

const PLAIN: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64];

fn type_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut values = Values::new(2);
    for &from in PLAIN {
        for &to in PLAIN {
            if Conversion::between(from, to).is_none() {
                continue;
            }
            for &arrangement in Arrangement::ALL {
                let x = values.arranged(arrangement, from, &[19, 3, 2], -300.0, 300.0);
                let layout = Arrangement::GappedRows.layout(to, &[19, 3, 2]);
                cases.push(case(format!("{from}_to_{to}_{}", arrangement.name()), x, layout));
            }
            let x = values.tensor(from, &[7, 10], -300.0, 300.0);
            let layout = Layout::contiguous(to, &[35, 2]).expect("a small shape");
            cases.push(case(format!("{from}_to_{to}_reshaped"), x, layout));
        }
    }
    cases
}

fn block_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut values = Values::new(3);
    let packed = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).expect("a small shape");
    for &arrangement in Arrangement::PACKED_ROWS {
        let name = arrangement.name();
        let x = values.arranged(arrangement, DType::Q8_0, &[64, 3, 2, 2], -1.0, 1.0);
        cases.push(case(format!("q8_0_{name}"), x.clone(), packed(DType::Q8_0, &[64, 3, 2, 2])));
        cases.push(case(format!("q8_0_{name}_reshaped"), x.clone(), packed(DType::Q8_0, &[384, 2])));
        cases.push(case(format!("q8_0_{name}_to_f32"), x.clone(), packed(DType::F32, &[64, 3, 2, 2])));
        cases.push(case(format!("q8_0_{name}_to_f32_reshaped"), x, packed(DType::F32, &[48, 16])));
        let x = values.arranged(Arrangement::Contiguous, DType::F32, &[64, 3, 2, 2], -1.0, 1.0);
        cases.push(case(format!("f32_to_q8_0_{name}"), x, arrangement.layout(DType::Q8_0, &[64, 3, 2, 2])));
    }
    for &arrangement in Arrangement::ALL {
        let x = values.arranged(arrangement, DType::F32, &[96, 3, 2], -4.0, 4.0);
        cases.push(case(format!("f32_{}_to_q8_0", arrangement.name()), x, packed(DType::Q8_0, &[96, 3, 2])));
        let x = values.arranged(arrangement, DType::F32, &[24, 4, 2], -4.0, 4.0);
        cases.push(case(format!("f32_{}_to_q8_0_reshaped", arrangement.name()), x, packed(DType::Q8_0, &[64, 3])));
    }
    for dtype in [DType::Q4_0, DType::Q4K, DType::Q6K] {
        let ne = [2 * dtype.block_len(), 3, 2];
        let halves = [dtype.block_len(), 4, 3];
        let x = values.arranged(Arrangement::Permuted, dtype, &ne, -1.0, 1.0);
        cases.push(case(format!("{dtype}_permuted"), x.clone(), packed(dtype, &ne)));
        cases.push(case(format!("{dtype}_permuted_to_f32"), x.clone(), packed(DType::F32, &ne)));
        let to = Arrangement::GappedElements.layout(DType::F32, &halves);
        cases.push(case(format!("{dtype}_permuted_to_f32_reshaped"), x, to));
        let x = values.arranged(Arrangement::Transposed, DType::F32, &ne, -4.0, 4.0);
        cases.push(case(format!("f32_transposed_to_{dtype}"), x.clone(), Arrangement::GappedRows.layout(dtype, &ne)));
        cases.push(case(format!("f32_transposed_to_{dtype}_reshaped"), x, packed(dtype, &halves)));
    }
    // The bytes of a block format without arithmetic are copied as they are.
    let layout = Arrangement::Permuted.layout(DType::Q5K, &[512, 3, 2]);
    let bytes = (0..layout.span_bytes()).map(|_| values.below(256) as u8).collect();
    let x = HostTensor::from_bytes(layout, bytes).expect("the whole span");
    cases.push(case("q8_0_zeros".into(), HostTensor::zeros(packed(DType::F32, &[64])), packed(DType::Q8_0, &[64])));
    cases.push(case("q5_k_permuted".into(), x, layout.to_contiguous()));
    cases
}

/// Values beyond the range of an integer, and values that round in both directions.
fn ends_case() -> Case {
    let values = [0.9, -0.9, 1.5, -1.5, 2147483000.0, 3e9, -3e9, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let layout = Layout::contiguous(DType::F32, &[values.len()]).expect("a short row");
    let x = fill(layout, |index| values[index[0]]);
    case("f32_to_i32_ends".into(), x, Layout::contiguous(DType::I32, &[values.len()]).expect("a short row"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    fn copied(x: HostTensor, to: Layout) -> HostTensor {
        Op::from(Cpy { to }).evaluate(&[x]).unwrap().remove(0)
    }

    fn packed(dtype: DType, ne: &[usize]) -> Layout {
        Layout::contiguous(dtype, ne).unwrap()
    }

    #[test]
    fn index_order_counts_not_memory_order() {
        let x = HostTensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let swapped = x.layout().permute([1, 0, 2, 3]).unwrap();
        let x = HostTensor::from_bytes(swapped, x.bytes().to_vec()).unwrap();
        let y = copied(x, packed(DType::F32, &[6]));
        assert_eq!(y.to_f64(), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    }

    #[test]
    fn numbers_convert_as_documented() {
        let x = HostTensor::from_f32(&[4], &[1.9, -1.9, 3e9, f32::NAN]).unwrap();
        let y = copied(x, packed(DType::I32, &[4]));
        assert_eq!(y.to_f64(), [1.0, -1.0, 2147483647.0, 0.0]);
        let wide: Vec<u8> = [(1i64 << 32) + 7, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
        let x = HostTensor::from_bytes(packed(DType::I64, &[2]), wide).unwrap();
        assert_eq!(copied(x, packed(DType::I32, &[2])).to_f64(), [7.0, -1.0]);
        // 2^24 + 1 is a tie between two floats; 2^60 + 2^36 + 1 lies just above one and must not see f64 first.
        let ties: Vec<u8> = [(1i64 << 24) + 1, (1 << 60) + (1 << 36) + 1].iter().flat_map(|v| v.to_le_bytes()).collect();
        let x = HostTensor::from_bytes(packed(DType::I64, &[2]), ties).unwrap();
        let y = copied(x, packed(DType::F32, &[2]));
        assert_eq!(y.to_f64(), [2f64.powi(24), 2f64.powi(60) + 2f64.powi(37)]);
        let x = HostTensor::from_f32(&[2], &[1.0 + 2f32.powi(-11) + 2f32.powi(-23), 1.0 + 2f32.powi(-11)]).unwrap();
        assert_eq!(copied(x, packed(DType::F16, &[2])).to_f64(), [1.0 + 2f64.powi(-10), 1.0]);
    }

    #[test]
    fn rows_round_to_blocks_and_back() {
        let mut row = [0.0; 32];
        (row[0], row[1], row[2]) = (-254.0, 5.0, 4.9);
        let x = HostTensor::from_f32(&[32], &row).unwrap();
        let y = copied(x, packed(DType::Q8_0, &[32]));
        let back = copied(y, packed(DType::F32, &[32])).to_f64();
        // One step is 2, so 5 (2.5 steps) becomes 6 and 4.9 becomes 4.
        assert_eq!(back[..4], [-254.0, 6.0, 4.0, 0.0]);
    }

    #[test]
    fn constructors_name_the_packed_layout() {
        let layout = Arrangement::Transposed.layout(DType::F32, &[32, 3]);
        assert_eq!(Cpy::cont(&layout).attributes(), "to=f32[32, 3]");
        assert_eq!(Cpy::cast(&layout, DType::Q8_0).unwrap().attributes(), "to=q8_0[32, 3]");
        let error = Cpy::cast(&packed(DType::F32, &[33]), DType::Q8_0).unwrap_err();
        assert_eq!(error.to_string(), "cpy: y: ne[0] = 33 is not a multiple of 32, the block length of q8_0");
    }

    #[test]
    fn refusals_name_the_types_and_counts() {
        let refused = |x: Layout, to: Layout| Op::from(Cpy { to }).infer(&[x]).unwrap_err().to_string();
        assert_eq!(
            refused(packed(DType::F16, &[32]), packed(DType::Q8_0, &[32])),
            "cpy: x has type f16, which does not convert to q8_0"
        );
        assert_eq!(
            refused(packed(DType::F32, &[4, 2]), packed(DType::F32, &[7])),
            "cpy: x has 8 elements, expected 7 (those of f32[7])"
        );
        let shared = Layout::strided(DType::F32, [4, 2, 1, 1], [4, 0, 16, 16]).unwrap();
        assert_eq!(
            refused(packed(DType::F32, &[8]), shared),
            "cpy: to = f32[4, 2]:nb[4, 0, 16, 16] has elements that share bytes and cannot be written"
        );
    }
}
