//! Each row becomes integer keys in the worker's scratch; indices are parted at the k-th and those before it sorted.

use crate::kernel::{CpuKernel, Declined, Scratch};
use crate::shared::call::{Call, rows_of};
use crate::shared::order::key;
use crate::shared::pool::Worker;
use ssmgraph_ops::{Layout, OpError, TopK};

impl CpuKernel for TopK {
    fn supports(&self, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    fn work(&self, inputs: &[Layout], results: &[Layout]) -> usize {
        let sorted = results[0].elements().saturating_mul(self.k.max(2).ilog2() as usize);
        inputs[0].elements().saturating_mul(4).saturating_add(sorted)
    }

    fn scratch(&self, inputs: &[Layout], results: &[Layout]) -> Scratch {
        let floats = inputs[0].ne[0].saturating_mul(2);
        Scratch { shared_bytes: 0, own_floats: if results[0].is_empty() { 0 } else { floats } }
    }

    fn run(&self, call: &Call, worker: &Worker<'_>, own: &mut [f32]) -> Result<(), OpError> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        if y.layout().is_empty() {
            return Ok(());
        }
        let (values, own) = own.split_at_mut(x.ne()[0]);
        let order: &mut [u32] = bytemuck::cast_slice_mut(&mut own[..values.len()]);
        for row in rows_of(y.layout(), worker) {
            x.load(row, 0, values);
            let keys: &mut [u32] = bytemuck::cast_slice_mut(values);
            keys.iter_mut().for_each(|bits| *bits = key(f32::from_bits(*bits)) as u32);
            order.iter_mut().zip(0..).for_each(|(index, number)| *index = number);
            let falling = |&a: &u32, &b: &u32| {
                let key = |index: u32| keys[index as usize] as i32;
                key(b).cmp(&key(a)).then(a.cmp(&b))
            };
            if self.k < order.len() {
                order.select_nth_unstable_by(self.k, falling);
            }
            let first = &mut order[..self.k];
            first.sort_unstable_by(falling);
            for (place, &index) in first.iter().enumerate() {
                // SAFETY: rows are shared out among the workers, each to one.
                unsafe { y.set_int(place, row, index.into()) }
            }
        }
        Ok(())
    }
}
