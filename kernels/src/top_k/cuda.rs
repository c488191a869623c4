//! Launches of `top_k`: few elements or long rows by rounds, others sorted.

use crate::Declined;
use crate::cuda::{CudaCall, CudaKernel, GRID_X_MAX, Image, Launch, Params, embedded};
use ssmgraph_ops::{Layout, TopK};

/// The kernel's source and PTX.
pub(crate) static IMAGE: Image = embedded!("top_k");

const THREADS: usize = 256;
/// Longest row that a block sorts in shared memory.
const SORTED_MAX: usize = 4096;
/// A round for each element wanted is quicker than a sort up to here.
const ROUNDS_MAX: usize = 4;

impl CudaKernel for TopK {
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined> {
        match inputs[0].rows() <= GRID_X_MAX {
            true => Ok(()),
            false => Err(Declined("more rows than one launch reaches".into())),
        }
    }

    fn scratch_bytes(&self, _inputs: &[Layout], _results: &[Layout]) -> usize {
        0
    }

    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch> {
        let (x, y) = (&call.inputs[0], &call.results[0]);
        if y.layout.is_empty() {
            return Vec::new();
        }
        let (rows, length) = (x.layout.rows(), x.layout.ne[0]);
        let places = length.next_power_of_two();
        let params = Params::new().tensor(x).tensor(y).size(places);
        if self.k <= ROUNDS_MAX || length > SORTED_MAX {
            return vec![Launch::line(&IMAGE, "top_k_rounds", rows, THREADS, params)];
        }
        let sorted = Launch::line(&IMAGE, "top_k_sorted", rows, THREADS, params);
        vec![sorted.with_shared(places * size_of::<u64>())]
    }
}
