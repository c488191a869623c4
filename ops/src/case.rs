//! Conformance cases: an op, its operands, and how close a backend must come to the reference.

use crate::{DType, HostTensor, Layout, Op, OpError, layout::AXES, tensor::indices};

/// How far an element may lie from the reference: `|got − want| ≤ atol + rtol·|want|`. NaN matches NaN and
/// an infinity the same infinity. Integers and blocks must always be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Share of the wanted value.
    pub rtol: f64,
    /// Absolute part, in the unit of the values.
    pub atol: f64,
}

impl Tolerance {
    /// Equal to the bit (the sign of zero and NaN payloads aside).
    pub const EXACT: Tolerance = Tolerance { rtol: 0.0, atol: 0.0 };
    /// A few roundings of `f32`.
    pub const F32: Tolerance = Tolerance { rtol: 2e-6, atol: 2e-6 };
    /// Sums of a few hundred `f32` terms of order one.
    pub const F32_SUM: Tolerance = Tolerance { rtol: 1e-5, atol: 1e-5 };

    /// One rounding to the type, with a rounding of `f32` before it.
    pub fn rounded_to(dtype: DType) -> Tolerance {
        match dtype {
            DType::F16 => Tolerance { rtol: 1e-3, atol: 1e-6 },
            DType::BF16 => Tolerance { rtol: 8e-3, atol: 1e-6 },
            _ => Tolerance::F32,
        }
    }

    /// A plain `f32` sum of this many terms up to `magnitude`: half a unit in the last place of a partial
    /// sum for each addition.
    pub fn sum_of(terms: usize, magnitude: f64) -> Tolerance {
        let atol = magnitude * terms as f64 * f64::from(f32::EPSILON) / 2.0;
        Tolerance { rtol: 2e-6, atol: atol.max(Tolerance::F32.atol) }
    }

    /// The first element that lies outside the tolerance, as text; `None` when all are inside.
    pub fn mismatch(&self, got: &HostTensor, want: &HostTensor) -> Option<String> {
        if got.ne() != want.ne() {
            return Some(format!("shape {:?}, expected {:?}", got.ne(), want.ne()));
        }
        let (got_type, want_type) = (got.layout().dtype, want.layout().dtype);
        if got_type != want_type {
            return Some(format!("type {got_type}, expected {want_type}"));
        }
        if !want_type.is_float() {
            return indices(want.layout().blocks()).find_map(|index| {
                let (got, want) = (got.view().block(index).to_vec(), want.view().block(index).to_vec());
                (got != want).then(|| format!("block at {index:?}: got bytes {got:?}, expected {want:?}"))
            });
        }
        indices(want.ne()).find_map(|index| {
            let (g, w) = (got.get(index), want.get(index));
            let inside = g == w
                || (g.is_nan() && w.is_nan())
                || (w.is_finite() && (g - w).abs() <= self.atol + self.rtol * w.abs());
            (!inside).then(|| format!("at {index:?}: got {g:e}, expected {w:e}"))
        })
    }
}

/// One op on one set of operands.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name, unique within the op.
    pub name: String,
    /// The op with its attributes.
    pub op: Op,
    /// Operands in the order of the op's table.
    pub inputs: Vec<HostTensor>,
    /// How close a backend must come.
    pub tolerance: Tolerance,
}

impl Case {
    /// A case of `op`.
    pub fn new(
        name: impl Into<String>,
        op: impl Into<Op>,
        inputs: Vec<HostTensor>,
        tolerance: Tolerance,
    ) -> Case {
        Case { name: name.into(), op: op.into(), inputs, tolerance }
    }

    /// The results by the reference function.
    ///
    /// Errors: what the op's shape rule or reference refuses; a case that is part of the suite never does.
    pub fn expected(&self) -> Result<Vec<HostTensor>, OpError> {
        self.op.evaluate(&self.inputs)
    }
}

/// How a case lays out an operand in memory. Gaps hold bytes of 0xFF: a float read from one is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Packed, in index order.
    Contiguous,
    /// Packed rows, with unused bytes after each row and each plane.
    GappedRows,
    /// Rows packed; axes 1 and 2 swapped in memory.
    Permuted,
    /// Axis 0 is not the fastest: axes 0 and 1 swapped in memory.
    Transposed,
    /// Unused elements between the elements of a row.
    GappedElements,
    /// Axes of one element carry strides of no meaning.
    OddStrides,
}

impl Arrangement {
    /// Every arrangement.
    pub const ALL: &'static [Arrangement] = &[
        Arrangement::Contiguous,
        Arrangement::GappedRows,
        Arrangement::Permuted,
        Arrangement::Transposed,
        Arrangement::GappedElements,
        Arrangement::OddStrides,
    ];

    /// The arrangements whose rows are packed.
    pub const PACKED_ROWS: &'static [Arrangement] =
        &[Arrangement::Contiguous, Arrangement::GappedRows, Arrangement::Permuted, Arrangement::OddStrides];

    /// The name used in case names.
    pub fn name(self) -> &'static str {
        match self {
            Arrangement::Contiguous => "contiguous",
            Arrangement::GappedRows => "gapped_rows",
            Arrangement::Permuted => "permuted",
            Arrangement::Transposed => "transposed",
            Arrangement::GappedElements => "gapped_elements",
            Arrangement::OddStrides => "odd_strides",
        }
    }

    /// The layout of this arrangement for a shape.
    ///
    /// Panics on shapes that do not fit, or block formats whose rows would have to be spread; cases are
    /// written with shapes that do.
    pub fn layout(self, dtype: DType, ne: &[usize]) -> Layout {
        let packed = Layout::contiguous(dtype, ne).expect("a case's shape fits");
        let swapped = |axes: [usize; AXES]| {
            let mut shape = [0; AXES];
            for (from, &to) in axes.iter().enumerate() {
                shape[to] = packed.ne[from];
            }
            let inner = Layout::contiguous(dtype, &shape).expect("a case's shape fits");
            inner.permute(axes).expect("a swap is its own inverse")
        };
        let mut nb = packed.nb;
        match self {
            Arrangement::Contiguous => return packed,
            Arrangement::Permuted => return swapped([0, 2, 1, 3]),
            Arrangement::Transposed => return swapped([1, 0, 2, 3]),
            Arrangement::GappedRows => {
                nb[1] = packed.row_bytes() + 2 * dtype.block_bytes();
                nb[2] = nb[1] * packed.ne[1] + dtype.block_bytes() * 4;
                nb[3] = nb[2] * packed.ne[2] + dtype.block_bytes() * 8;
            }
            Arrangement::GappedElements => nb.iter_mut().for_each(|stride| *stride *= 3),
            Arrangement::OddStrides => {
                let odd = dtype.block_bytes() * if dtype.is_block() { 1 } else { 7 };
                for (stride, _) in nb.iter_mut().zip(packed.ne).filter(|(_, count)| *count == 1) {
                    *stride = odd;
                }
            }
        }
        Layout::strided(dtype, packed.ne, nb).expect("a case's strides fit")
    }
}

/// Deterministic values for cases: splitmix64, so that no crate's generator can change them.
#[derive(Clone, Debug)]
pub struct Values(u64);

impl Values {
    /// A sequence that depends on `seed` alone.
    pub fn new(seed: u64) -> Values {
        Values(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next number in `low..high`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next integer in `0..count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next_u64() % count as u64) as usize
    }

    /// A packed tensor of numbers in `low..high`.
    pub fn tensor(&mut self, dtype: DType, ne: &[usize], low: f64, high: f64) -> HostTensor {
        self.arranged(Arrangement::Contiguous, dtype, ne, low, high)
    }

    /// A tensor of numbers in `low..high`, laid out as `arrangement` says.
    pub fn arranged(
        &mut self,
        arrangement: Arrangement,
        dtype: DType,
        ne: &[usize],
        low: f64,
        high: f64,
    ) -> HostTensor {
        let layout = arrangement.layout(dtype, ne);
        match dtype {
            DType::Q8_0 => self.quantized(layout, low, high),
            _ if dtype.is_quantized() => self.blocks(layout, low.abs().max(high.abs())),
            _ => fill(layout, |_| self.uniform(low, high)),
        }
    }

    /// Blocks of any bits, scales and minima among them, whose numbers are no larger than `largest`.
    fn blocks(&mut self, layout: Layout, largest: f64) -> HostTensor {
        // Where the f16 numbers of a block stand, and the most of them that an element can be.
        let floats: &[(usize, f64)] = match layout.dtype {
            DType::Q4_0 => &[(0, 8.0)],
            DType::Q4K => &[(0, 63.0 * 15.0), (2, 63.0)],
            _ => &[(208, 128.0 * 32.0)],
        };
        let mut tensor = HostTensor::filled(layout, 0xFF);
        let mut view = tensor.view_mut().expect("case layouts do not overlap");
        for index in indices(layout.blocks()) {
            let block = view.block_mut(index);
            block.iter_mut().for_each(|byte| *byte = self.below(256) as u8);
            for &(at, most) in floats {
                let unit = half::f16::from_f64(self.uniform(0.1, 1.0) * largest / most);
                block[at..at + 2].copy_from_slice(&unit.to_le_bytes());
            }
        }
        tensor
    }

    fn quantized(&mut self, layout: Layout, low: f64, high: f64) -> HostTensor {
        let mut tensor = HostTensor::filled(layout, 0xFF);
        let largest = low.abs().max(high.abs());
        let mut view = tensor.view_mut().expect("case layouts do not overlap");
        for index in indices(layout.blocks()) {
            let block = view.block_mut(index);
            let scale = half::f16::from_f64(self.uniform(0.1, 1.0) * largest / 127.0);
            block[..2].copy_from_slice(&scale.to_le_bytes());
            block[2..].iter_mut().for_each(|q| *q = (self.below(255) as i64 - 127) as i8 as u8);
        }
        tensor
    }
}

/// A tensor with the given value at each index; gaps hold bytes of 0xFF.
///
/// Panics when elements of the layout share bytes, or the type cannot be written; cases use neither.
pub fn fill(layout: Layout, mut value: impl FnMut([usize; AXES]) -> f64) -> HostTensor {
    let mut tensor = HostTensor::filled(layout, 0xFF);
    let mut view = tensor.view_mut().expect("case layouts do not overlap");
    for index in indices(layout.ne) {
        view.set(index, value(index));
    }
    tensor
}

/// Operands, with names, for an op that works along rows: every arrangement, row lengths around the widths
/// of vectors and warps, long rows, nothing along each axis, and the narrow float types. Numbers lie in
/// −2..2.
pub fn row_inputs(seed: u64) -> Vec<(String, HostTensor)> {
    let mut values = Values::new(seed);
    let mut inputs = Vec::new();
    let mut add = |name: String, arrangement: Arrangement, dtype: DType, ne: &[usize]| {
        inputs.push((name, values.arranged(arrangement, dtype, ne, -2.0, 2.0)));
    };
    for &arrangement in Arrangement::ALL {
        add(arrangement.name().into(), arrangement, DType::F32, &[37, 5, 3, 2]);
    }
    for ne in [[33, 1, 4, 1], [1, 5, 1, 2], [70, 1, 1, 1]] {
        add(format!("odd_strides_{ne:?}"), Arrangement::OddStrides, DType::F32, &ne);
    }
    for length in [1, 2, 15, 16, 17, 31, 33, 64, 65, 130, 257] {
        add(format!("row_of_{length}"), Arrangement::Contiguous, DType::F32, &[length, 3]);
    }
    for length in [5001, 70_001] {
        add(format!("row_of_{length}"), Arrangement::Contiguous, DType::F32, &[length]);
    }
    add("long_transposed_rows".into(), Arrangement::Transposed, DType::F32, &[40_000, 2]);
    for axis in 0..AXES {
        let mut ne = [3, 2, 2, 2];
        ne[axis] = 0;
        add(format!("empty_axis_{axis}"), Arrangement::Contiguous, DType::F32, &ne);
    }
    add("empty_axes_0_and_2".into(), Arrangement::Contiguous, DType::F32, &[0, 2, 0]);
    for dtype in [DType::F16, DType::BF16] {
        for &arrangement in Arrangement::ALL {
            add(format!("{dtype}_{}", arrangement.name()), arrangement, dtype, &[35, 3, 2]);
        }
    }
    // Rows whose starts are aligned for accesses of four elements.
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for length in [36, 300, 2600] {
            add(format!("{dtype}_rows_of_{length}"), Arrangement::Permuted, dtype, &[length, 2, 2]);
        }
    }
    inputs
}

/// A packed `f32` tensor of these numbers, as rows of `row_length`.
///
/// Panics when the rows are not whole, or `row_length` is 0; cases use neither.
pub fn rows_of(row_length: usize, numbers: &[f64]) -> HostTensor {
    assert_eq!(numbers.len() % row_length, 0, "whole rows");
    let layout = Layout::contiguous(DType::F32, &[row_length, numbers.len() / row_length]);
    fill(layout.expect("a case's shape fits"), |[i0, i1, ..]| numbers[i1 * row_length + i0])
}
