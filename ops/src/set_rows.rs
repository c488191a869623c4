//! Rows written into a table, at places given by index:
//! `dst[d, ids[n, i2 mod B2, i3 mod B3], i2, i3] = src[d, n, i2, i3]`.
//!
//! | operand | shape, innermost first | type | meaning |
//! |---|---|---|---|
//! | dst | D, R, A2, A3 | f32, f16, bf16 | tables of R rows; no two elements may share bytes |
//! | src | D, N, A2, A3 | f32 | the new rows, rounded to the type of dst |
//! | ids | N, B2, B3 | i32, i64 | where each row goes; −1 skips it. B2 divides A2, B3 divides A3 |
//!
//! The result is dst after the update; rows that no id names keep their values. Among equal ids of one
//! table the later row wins. Refused: any other id outside 0..R, by its place and value.
//! Source: ggml's SET_ROWS, its repetition of ids included; −1 as padding is ours.

use crate::case::{Arrangement, Values, fill};
use crate::shape::{FLOATS, checked_row, expect_dtype, expect_ne, expect_shape};
use crate::tensor::rows;
use crate::{Case, DType, Define, Layout, Layouts, OpError, Operand, Storage, Tolerance};
use crate::{ViewMut, Views};
use smallvec::smallvec;

/// Rows written into a table, at places given by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetRows;

const OPERANDS: &[Operand] = &[
    Operand::new("dst", "D, R, A2, A3", "f32, f16, bf16", "tables of R rows"),
    Operand::new("src", "D, N, A2, A3", "f32", "the new rows"),
    Operand::new("ids", "N, B2, B3", "i32, i64", "where each row goes; −1 skips it"),
];

impl Define for SetRows {
    fn name(&self) -> &'static str {
        "set_rows"
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
        let [dst, src, ids] = inputs else { unreachable!("the arity was checked") };
        expect_dtype(op, "dst", dst, FLOATS)?;
        expect_dtype(op, "src", src, &[DType::F32])?;
        expect_dtype(op, "ids", ids, &[DType::I32, DType::I64])?;
        if dst.may_overlap() {
            return Err(OpError::new(op, format!("dst {dst} has elements that share bytes and cannot be written")));
        }
        let [row, _, a2, a3] = dst.ne;
        expect_shape(op, "src", src, [row, src.ne[1], a2, a3], "the rows and tables of dst")?;
        expect_ne(op, "ids", ids, 0, src.ne[1], "one id per row of src")?;
        expect_ne(op, "ids", ids, 3, 1, "ids have three axes")?;
        for axis in [1, 2] {
            let (lists, tables) = (ids.ne[axis], dst.ne[axis + 1]);
            if lists != tables && (lists == 0 || tables % lists != 0) {
                let what = format!(
                    "ids has ne[{axis}] = {lists}, which does not divide {tables} (ne[{}] of dst)",
                    axis + 1
                );
                return Err(OpError::new(op, what));
            }
        }
        Ok(smallvec![*dst])
    }

    fn storage(&self) -> Storage {
        Storage::Update
    }

    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError> {
        let [dst, src, ids] = inputs else { unreachable!("the arity was checked") };
        let y = &mut results[0];
        y.copy_from(dst);
        for [n, i2, i3] in rows(src.ne()) {
            let place = [n, i2 % ids.ne()[1], i3 % ids.ne()[2]];
            let id = ids.get_int([place[0], place[1], place[2], 0]);
            if let Some(to) = checked_row(self.name(), "ids", place, id, dst.ne()[1])? {
                for d in 0..src.ne()[0] {
                    y.set([d, to, i2, i3], src.get([d, n, i2, i3]));
                }
            }
        }
        Ok(())
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut add = |name: String, spec: Spec| cases.push(spec.case(name));
        let base = Spec::new([17, 5, 2, 3], 4);
        for &arrangement in Arrangement::ALL {
            let name = arrangement.name();
            add(format!("dst_{name}"), Spec { dst: arrangement, ..base });
            add(format!("src_{name}"), Spec { src: arrangement, ..base });
            add(format!("ids_{name}"), Spec { ids: arrangement, ..base });
            add(format!("ids_{name}_i64"), Spec { ids: arrangement, id_type: DType::I64, ..base });
        }
        for &dtype in FLOATS {
            for id_type in [DType::I32, DType::I64] {
                add(format!("{dtype}_{id_type}"), Spec { dtype, id_type, ..Spec::new([35, 9, 1, 1], 6) });
            }
        }
        for size in [1, 15, 16, 31, 33, 64, 65, 130] {
            add(format!("size_{size}"), Spec::new([size, 4, 1, 1], 3));
            add(format!("f16_size_{size}"), Spec { dtype: DType::F16, ..Spec::new([size, 4, 1, 1], 3) });
        }
        for lists in [[1, 1], [2, 1], [4, 1], [1, 3], [2, 3], [4, 6]] {
            add(format!("lists_{}_{}", lists[0], lists[1]), Spec { lists, ..Spec::new([5, 6, 4, 6], 3) });
        }
        // More rows than places: equal ids are certain.
        add("equal_ids".into(), Spec::new([3, 4, 1, 1], 65));
        // Rows that are split, with and without a rest, and lists too long to be looked through by each block.
        add("long_rows".into(), Spec::new([9001, 3, 1, 1], 4));
        add("long_gapped_rows".into(), Spec { dst: Arrangement::GappedRows, ..Spec::new([5002, 2, 1, 1], 2) });
        add("f16_long_rows".into(), Spec { dtype: DType::F16, ..Spec::new([8200, 2, 1, 1], 3) });
        add("many_ids".into(), Spec { id_type: DType::I64, ..Spec::new([3, 700, 2, 1], 900) });
        add("one_place".into(), Spec::new([33, 1, 1, 1], 9));
        for ne in [[0, 3, 2, 1], [3, 0, 2, 1], [3, 2, 0, 1], [3, 2, 1, 0]] {
            add(format!("empty_{ne:?}"), Spec::new(ne, 2));
        }
        add("no_rows".into(), Spec::new([3, 2, 1, 1], 0));
        cases
    }
}

/// The sizes of one case.
#[derive(Clone, Copy)]
struct Spec {
    ne: [usize; 4],
    rows: usize,
    lists: [usize; 2],
    dtype: DType,
    id_type: DType,
    dst: Arrangement,
    src: Arrangement,
    ids: Arrangement,
}

impl Spec {
    fn new(ne: [usize; 4], rows: usize) -> Spec {
        let plain = Arrangement::Contiguous;
        let lists = [ne[2], ne[3]];
        Spec { ne, rows, lists, dtype: DType::F32, id_type: DType::I32, dst: plain, src: plain, ids: plain }
    }

    fn case(self, name: String) -> Case {
        let mut values = Values::new(name.bytes().map(u64::from).sum());
        let [row, places, a2, a3] = self.ne;
        let dst = values.arranged(self.dst, self.dtype, &self.ne, -1.0, 1.0);
        let src = values.arranged(self.src, DType::F32, &[row, self.rows, a2, a3], -1.0, 1.0);
        let ids = self.ids.layout(self.id_type, &[self.rows, self.lists[0], self.lists[1]]);
        let ids = fill(ids, |_| values.below(places + 1) as f64 - 1.0);
        Case::new(name, SetRows, vec![dst, src, ids], Tolerance::EXACT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, Op};

    fn table() -> HostTensor {
        HostTensor::from_f32(&[1, 3], &[1.0, 2.0, 3.0]).unwrap()
    }

    fn set(dst: HostTensor, src: &[f32], ids: &[i32], lists: [usize; 2]) -> Result<Vec<f64>, OpError> {
        let rows = ids.len() / lists[0] / lists[1];
        let [_, _, a2, a3] = dst.ne();
        let src = HostTensor::from_f32(&[1, rows, a2, a3], src).unwrap();
        let ids = HostTensor::from_i32(&[rows, lists[0], lists[1]], ids).unwrap();
        Ok(Op::from(SetRows).evaluate(&[dst, src, ids])?[0].to_f64())
    }

    #[test]
    fn the_later_of_equal_ids_wins_and_minus_one_skips() {
        let y = set(table(), &[10.0, 20.0, 30.0], &[2, -1, 2], [1, 1]).unwrap();
        assert_eq!(y, [1.0, 2.0, 30.0]);
        let error = |ids: &[i32]| set(table(), &[0.0, 0.0], ids, [1, 1]).unwrap_err().to_string();
        assert_eq!(error(&[0, 3]), "set_rows: ids[1, 0, 0] = 3, expected −1 or a row below 3");
        assert_eq!(error(&[-7, 0]), "set_rows: ids[0, 0, 0] = -7, expected −1 or a row below 3");
    }

    #[test]
    fn lists_of_ids_repeat_over_the_tables() {
        // Four tables of two rows, two lists: tables 0 and 2 take list 0, tables 1 and 3 take list 1.
        let dst = HostTensor::from_f32(&[1, 2, 4], &[0.0; 8]).unwrap();
        let y = set(dst, &[1.0, 2.0, 3.0, 4.0], &[0, 1], [2, 1]).unwrap();
        assert_eq!(y, [1.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0]);
    }

    #[test]
    fn gaps_and_other_rows_keep_their_layout() {
        let gapped = Arrangement::GappedRows.layout(DType::F16, &[3, 2]);
        let inputs = [gapped, *table().layout(), Layout::contiguous(DType::I64, &[1]).unwrap()];
        let error = Op::from(SetRows).infer(&inputs).unwrap_err();
        assert_eq!(error.to_string(), "set_rows: src has ne[0] = 1, expected 3 (the rows and tables of dst)");
        let src = Layout::contiguous(DType::F32, &[3, 1]).unwrap();
        assert_eq!(Op::from(SetRows).infer(&[gapped, src, inputs[2]]).unwrap()[0], gapped);
    }

    #[test]
    fn refusals_name_the_operand() {
        let layout = |dtype: DType, ne: &[usize]| Layout::contiguous(dtype, ne).unwrap();
        let refused = |inputs: [Layout; 3]| Op::from(SetRows).infer(&inputs).unwrap_err().to_string();
        let (dst, src) = (layout(DType::F32, &[3, 5, 4]), layout(DType::F32, &[3, 2, 4]));
        assert_eq!(
            refused([dst, src, layout(DType::I32, &[3])]),
            "set_rows: ids has ne[0] = 3, expected 2 (one id per row of src)"
        );
        assert_eq!(
            refused([dst, src, layout(DType::I32, &[2, 3])]),
            "set_rows: ids has ne[1] = 3, which does not divide 4 (ne[2] of dst)"
        );
        assert_eq!(
            refused([dst, src, layout(DType::F32, &[2])]),
            "set_rows: ids has type f32, expected i32 or i64"
        );
        let shared = Layout::strided(DType::F32, [3, 5, 4, 1], [4, 0, 60, 240]).unwrap();
        assert_eq!(
            refused([shared, src, layout(DType::I32, &[2])]),
            "set_rows: dst f32[3, 5, 4]:nb[4, 0, 60, 240] has elements that share bytes and cannot be written"
        );
    }
}
