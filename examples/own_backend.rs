//! A backend from outside this repository, checked by its conformance suite.
//!
//! The backend knows three ops and declines everything else, with a reason; the reference backend behind it
//! runs those. [`conformance::run`] compares every case of every op and returns the table that the
//! project's own backends are held to.
//!
//! ```text
//! cargo run --example own_backend
//! ```

use ssmgraph::backend::{Declined, Eager, EagerBackend};
use ssmgraph::conformance::{self, Filter};
use ssmgraph::ops::binary::BinaryFunction;
use ssmgraph::ops::{DType, HostTensor, Layout, Op, OpError, tensor::indices};
use std::process::ExitCode;
use std::sync::Arc;

/// Plain loops over `f32`.
struct Loops;

impl EagerBackend for Loops {
    fn name(&self) -> &str {
        "loops"
    }

    fn supports(&self, op: &Op, inputs: &[Layout]) -> Result<(), Declined> {
        match op {
            Op::Scale(_) | Op::SumRows(_) | Op::Binary(_) => {}
            other => return Err(Declined(format!("{} is not written yet", other.name()))),
        }
        match op {
            Op::Binary(binary) if binary.function != BinaryFunction::Add => {
                return Err(Declined("of these only add is written".into()));
            }
            _ => {}
        }
        match inputs.iter().find(|input| input.dtype != DType::F32) {
            Some(input) => Err(Declined(format!("{} operands are not written yet, only f32", input.dtype))),
            None => Ok(()),
        }
    }

    fn compute(&self, op: &Op, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, OpError> {
        let layouts: Vec<Layout> = inputs.iter().map(|input| *input.layout()).collect();
        let mut y = HostTensor::zeros(op.infer(&layouts)?[0]);
        let x = &inputs[0];
        let mut out = y.view_mut().map_err(|error| error.of(op.name(), "y"))?;
        for index in indices(out.ne()) {
            let value = match op {
                Op::Scale(scale) => x.get(index) as f32 * scale.scale + scale.bias,
                Op::SumRows(_) => {
                    let [_, i1, i2, i3] = index;
                    (0..x.ne()[0]).map(|i0| x.get([i0, i1, i2, i3])).sum::<f64>() as f32
                }
                // b is repeated along whole axes to cover a.
                _ => {
                    let ne = inputs[1].ne();
                    let repeated = std::array::from_fn(|axis| index[axis] % ne[axis]);
                    x.get(index) as f32 + inputs[1].get(repeated) as f32
                }
            };
            out.set(index, f64::from(value));
        }
        Ok(vec![y])
    }
}

fn main() -> ExitCode {
    let summary = conformance::run(Arc::new(Eager::new(Loops)), &Filter::default());
    print!("{summary}");
    if summary.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
