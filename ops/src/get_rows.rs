//! Rows of a table, picked by index: `y[d, n, i2, i3] = a[d, ids[n, i2, i3], i2, i3]`.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | a | D, R, A2, A3 | f32, f16, bf16, q8_0, q4_0, q4_k, q6_k, i32, i64 | tables of R rows |
//! | ids | N, A2, A3 | i32 | which row; −1 gives a row of zeros |
//!
//! The result y {D, N, A2, A3} is packed: f32 for real tables, the table's own type for integers.
//! Refused: any other id outside 0..R, by its place and value.
//! Source: ggml's GET_ROWS; −1 as padding is ours.

use crate::case::{Arrangement, Values, fill};
use crate::shape::{checked_row, expect_dtype, expect_shape, packed};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// Rows of a table, picked by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetRows;

const OPERANDS: &[Operand] = &[
    Operand::new("a", "D, R, A2, A3", "f32, f16, bf16, q8_0, q4_0, q4_k, q6_k, i32, i64", "tables of R rows"),
    Operand::new("ids", "N, A2, A3", "i32", "which row; −1 gives a row of zeros"),
];

const TYPES: &[DType] = &[
    DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K, DType::I32, DType::I64,
];

impl Define for GetRows {
    fn name(&self) -> &'static str {
        "get_rows"
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
        let op = self.name();
        let [a, ids] = inputs else { unreachable!("the arity was checked") };
        expect_dtype(op, "a", a, TYPES)?;
        expect_dtype(op, "ids", ids, &[DType::I32])?;
        let [row, _, a2, a3] = a.ne;
        expect_shape(op, "ids", ids, [ids.ne[0], a2, a3, 1], "one list of ids per table of a")?;
        let dtype = if a.dtype.is_int() { a.dtype } else { DType::F32 };
        Ok(smallvec![packed(op, "y", dtype, &[row, ids.ne[0], a2, a3])?])
    }

    fn storage(&self) -> Storage {
        Storage::Fresh { reuse: &[] }
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [a, ids] = inputs else { unreachable!("the arity was checked") };
        let y = &mut results[0];
        let [row_len, table_rows, ..] = a.ne();
        for place @ [n, i2, i3] in rows(y.ne()) {
            let id = ids.get_int([n, i2, i3, 0]);
            let picked = checked_row(self.name(), "ids", place, id, table_rows)?;
            for d in 0..row_len {
                let (from, to) = (picked.map(|r| [d, r, i2, i3]), [d, n, i2, i3]);
                if a.layout().dtype.is_int() {
                    y.set_int(to, from.map_or(0, |at| a.get_int(at)));
                } else {
                    y.set(to, from.map_or(0.0, |at| a.get(at)));
                }
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for &dtype in TYPES {
            let mut values = Values::new(dtype.gguf_id().into());
            let mut add = |name: String, arrangement: Arrangement, ne: [usize; 4], count: usize| {
                let wide = dtype.block_len();
                let a = values.arranged(
                    arrangement,
                    dtype,
                    &[ne[0].next_multiple_of(wide), ne[1], ne[2], ne[3]],
                    -100.0,
                    100.0,
                );
                let ids = [count, ne[2], ne[3]];
                let arrangement = if arrangement == Arrangement::GappedElements { arrangement } else { Arrangement::Contiguous };
                let ids = fill(arrangement.layout(DType::I32, &ids), |_| values.below(ne[1] + 1) as f64 - 1.0);
                cases.push(Case::new(format!("{dtype}_{name}"), GetRows, vec![a, ids], Tolerance::EXACT));
            };
            let packed_only = dtype.is_block();
            for &arrangement in if packed_only { Arrangement::PACKED_ROWS } else { Arrangement::ALL } {
                add(arrangement.name().into(), arrangement, [17, 5, 2, 3], 4);
            }
            let sizes: &[usize] = if dtype.block_len() > 32 { &[512] } else { &[1, 15, 16, 31, 33, 64, 65, 130] };
            for &size in sizes {
                add(format!("size_{size}"), Arrangement::Contiguous, [size, 3, 1, 1], 2);
            }
            add("long_rows".into(), Arrangement::GappedRows, [2080, 3, 2, 1], 2);
            add("one_row".into(), Arrangement::Contiguous, [33, 70, 1, 1], 1);
            add("more_ids_than_rows".into(), Arrangement::Contiguous, [3, 4, 1, 1], 65);
            for ne in [[0, 3, 2, 1], [3, 0, 2, 1], [3, 2, 0, 1], [3, 2, 1, 0]] {
                add(format!("empty_{ne:?}"), Arrangement::Contiguous, ne, 2);
            }
            add("no_ids".into(), Arrangement::Contiguous, [3, 2, 1, 1], 0);
        }
        for &arrangement in Arrangement::ALL {
            let mut values = Values::new(99);
            let a = values.tensor(DType::F32, &[3, 7, 2, 2], -1.0, 1.0);
            let ids = fill(arrangement.layout(DType::I32, &[5, 2, 2]), |_| values.below(8) as f64 - 1.0);
            let name = format!("ids_{}", arrangement.name());
            cases.push(Case::new(name, GetRows, vec![a, ids], Tolerance::EXACT));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    #[test]
    fn minus_one_gives_zeros_and_other_strangers_are_refused() {
        let a = HostTensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let rows = |ids: &[i32]| {
            let ids = HostTensor::from_i32(&[ids.len()], ids).unwrap();
            Op::from(GetRows).evaluate(&[a.clone(), ids])
        };
        assert_eq!(rows(&[1, -1, 0]).unwrap()[0].to_f64(), [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
        let error = |ids: &[i32]| rows(ids).unwrap_err().to_string();
        assert_eq!(error(&[0, 2]), "get_rows: ids[1, 0, 0] = 2, expected −1 or a row below 2");
        assert_eq!(error(&[-2]), "get_rows: ids[0, 0, 0] = -2, expected −1 or a row below 2");
    }

    #[test]
    fn large_integers_stay_exact() {
        let value = (1i64 << 53) + 1;
        let layout = Layout::contiguous(DType::I64, &[1]).unwrap();
        let a = HostTensor::from_bytes(layout, value.to_le_bytes().to_vec()).unwrap();
        let ids = HostTensor::from_i32(&[1], &[0]).unwrap();
        assert_eq!(Op::from(GetRows).evaluate(&[a, ids]).unwrap()[0].get_int([0; 4]), value);
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |a: Layout, ids: Layout| Op::from(GetRows).infer(&[a, ids]).unwrap_err().to_string();
        assert_eq!(
            refused(layout(DType::F32, &[4, 3, 2]), layout(DType::I32, &[5])),
            "get_rows: ids has ne[1] = 1, expected 2 (one list of ids per table of a)"
        );
        assert_eq!(
            refused(layout(DType::F32, &[4, 3]), layout(DType::I64, &[5])),
            "get_rows: ids has type i64, expected i32"
        );
        assert_eq!(
            refused(layout(DType::Q4_1, &[32, 3]), layout(DType::I32, &[5])),
            "get_rows: a has type q4_1, expected f32 or f16 or bf16 or q8_0 or q4_0 or q4_k or q6_k or i32 or i64"
        );
    }
}
