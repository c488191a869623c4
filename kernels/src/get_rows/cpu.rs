//! Whole rows at a time. All ids are checked before anything is written, so that every worker meets the same
//! error whatever its share.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, rows_of};
use crate::shared::copy::copy_blocks;
use crate::shared::pool::Worker;
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::tensor::rows;
use ssmgraph_ops::{GetRows, Layout, OpError};

impl CpuKernel for GetRows {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, _inputs: &[Layout], results: &[Layout]) -> usize {
        results[0].elements() / 2
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (a, ids, y) = (&call.inputs[0], &call.inputs[1], &call.results[0]);
        let [row_len, table_rows, ..] = a.ne();
        let picked = |place: [usize; 3]| {
            let id = ids.int(place[0], [place[1], place[2], 0]);
            checked_row("get_rows", "ids", place, id, table_rows)
        };
        for row in rows(y.ne()) {
            picked(row)?;
        }
        let int = y.layout().dtype.is_int();
        let same_type = y.layout().dtype == a.layout().dtype;
        for row in rows_of(y.layout(), worker) {
            // SAFETY: rows are shared out among the workers, each to one; each is written once.
            unsafe {
                match picked(row)?.map(|number| [number, row[1], row[2]]) {
                    Some(from) if same_type => copy_blocks(a, (from, 0), y, (row, 0), row_len),
                    Some(from) => a.load(from, 0, y.f32_row(row, 0..row_len)),
                    None if int => (0..row_len).for_each(|d| y.set_int(d, row, 0)),
                    None => y.f32_row(row, 0..row_len).fill(0.0),
                }
            }
        }
        Ok(())
    }
}
