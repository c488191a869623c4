//! Each op case that ggml accepts, on its own CPU backend and on ours.

use crate::arrays::nmse;
use peer_ggml::{Device, Work};
use ssmgraph::ops::glu::{Glu, GluFunction};
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::{DType, HostTensor, Op, OpKind};

/// What came of the cases.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Computed on both.
    pub compared: usize,
    /// Which our device does not take.
    pub declined: usize,
    /// Ops, attributes and layouts that ggml has not.
    pub foreign: usize,
    /// With infinities, NaN, or values whose squares leave the range of f32: ggml's formulas lose them, ours do not.
    pub special: usize,
    /// Cases whose results are apart, and how far.
    pub wrong: Vec<String>,
}

/// As ggml's own tests allow: its products round activations. Its GELU is a table of halves.
fn nmse_max(op: &Op, dtype: DType) -> f64 {
    let is_gelu = matches!(
        op,
        Op::Unary(Unary { function: Function::Gelu }) | Op::Glu(Glu { function: GluFunction::Geglu, .. })
    );
    match (op, dtype) {
        (Op::MulMat(_) | Op::MulMatId(_), _) => 5e-4,
        _ if is_gelu => 1e-6,
        (_, DType::F32 | DType::I32 | DType::I64) => 1e-7,
        _ => 1e-5,
    }
}

/// Computes all cases.
///
/// Errors: no such device, memory that ggml refused.
pub fn compare(device: &str) -> Result<Comparison, String> {
    let (ours, own) = (Device::named(device)?, Device::cpu(2)?);
    let mut comparison = Comparison::default();
    for case in OpKind::ALL.iter().flat_map(|kind| kind.cases()) {
        if !case.inputs.iter().all(is_ordinary) {
            comparison.special += 1;
            continue;
        }
        match Work::of(&case.op, &case.inputs).map(|work| outcome(work, &ours, &own)) {
            None => comparison.foreign += 1,
            Some(Outcome::Declined) => comparison.declined += 1,
            Some(Outcome::Failed(why)) => {
                comparison.wrong.push(format!("{} {}: {why}", case.op.name(), case.name))
            }
            Some(Outcome::Apart(apart)) => {
                comparison.compared += 1;
                let limit = nmse_max(&case.op, case.inputs[0].layout().dtype);
                if apart.is_nan() || apart > limit {
                    comparison.wrong.push(format!("{} {}: NMSE {apart:.1e}", case.op.name(), case.name));
                }
            }
        }
    }
    Ok(comparison)
}

enum Outcome {
    Declined,
    Failed(String),
    Apart(f64),
}

/// The work on ggml's own backend and on ours.
fn outcome(mut work: Work, ours: &Device, own: &Device) -> Outcome {
    if !work.runs_on(ours) {
        return Outcome::Declined;
    }
    let mut results = Vec::new();
    for device in [own, ours] {
        let result = work.load(device).and_then(|mut loaded| loaded.run().map(|()| loaded.result()));
        match result {
            Ok(result) => results.push(result.to_f64()),
            Err(why) => return Outcome::Failed(why),
        }
    }
    if results[0].iter().zip(&results[1]).any(|(a, b)| a.is_nan() != b.is_nan()) {
        return Outcome::Failed("a NaN on one side alone".into());
    }
    let finite = |of: &[f64]| -> Vec<f32> {
        of.iter().map(|&value| if value.is_finite() { value as f32 } else { 0.0 }).collect()
    };
    let (expected, found) = (finite(&results[0]), finite(&results[1]));
    // Nothing can be said relative to zeros.
    Outcome::Apart(if expected == found { 0.0 } else { nmse(&found, &expected) })
}

/// Whether every value and its square are ordinary numbers.
fn is_ordinary(values: &HostTensor) -> bool {
    let is_float = matches!(values.layout().dtype, DType::F32 | DType::F16 | DType::BF16);
    !is_float || values.to_f64().iter().all(|value| *value == 0.0 || (1e-15..1e15).contains(&value.abs()))
}
