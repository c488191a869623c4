//! Work is split over tables and columns, never over rows: among equal ids the later row then wins on every
//! number of workers. All ids are checked before anything is written.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::Call;
use crate::shared::pool::Worker;
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::tensor::rows;
use ssmgraph_ops::{Layout, OpError, SetRows};

/// Columns handled at a time: 1 KiB of the new rows.
const PIECE: usize = 256;

impl CpuKernel for SetRows {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], _results: &[Layout]) -> usize {
        inputs[1].elements() / 2
    }

    fn scratch(&self, _inputs: &[Layout], _results: &[Layout]) -> Scratch {
        Scratch::default()
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, _own: &mut [f32]) -> Result<(), OpError> {
        let (src, ids, dst) = (&call.inputs[1], &call.inputs[2], &call.results[0]);
        let [row_len, places, tables, outer] = dst.ne();
        let count = if src.layout().is_empty() { 0 } else { src.ne()[1] };
        let target = |n: usize, i2: usize, i3: usize| {
            let place = [n, i2 % ids.ne()[1], i3 % ids.ne()[2]];
            checked_row("set_rows", "ids", place, ids.int(n, [place[1], place[2], 0]), places)
        };
        for [n, i2, i3] in rows(src.ne()) {
            target(n, i2, i3)?;
        }
        if count == 0 {
            return Ok(());
        }
        let per_row = row_len.div_ceil(PIECE);
        let mut piece = [0.0; PIECE];
        for unit in worker.share(per_row * tables * outer) {
            let (first, table) = (unit % per_row * PIECE, unit / per_row);
            let (i2, i3) = (table % tables, table / tables);
            let values = &mut piece[..PIECE.min(row_len - first)];
            for n in 0..count {
                if let Some(to) = target(n, i2, i3)? {
                    src.load([n, i2, i3], first, values);
                    // SAFETY: these columns of this table belong to this worker alone.
                    unsafe { dst.store([to, i2, i3], first, values) }
                }
            }
        }
        Ok(())
    }
}
