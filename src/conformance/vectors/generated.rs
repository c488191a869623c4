//! Cases too large to list: their inputs and results are formulas.

use crate::backend::{Backend, BackendError, Devices, SharedBytes};
use crate::conformance::{Outcome, outcome, run_case};
use crate::graph::Graph;
use crate::session::{Session, SessionError};
use crate::store::{Store, WeightBytes, Weights};
use memmap2::MmapOptions;
use ssmgraph_ops::case::fill;
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::{Argmax, Case, Cpy, Cumsum, DType, HostTensor, Layout, Mean, Op, RmsNorm, Tolerance};
use std::sync::Arc;

pub(super) fn run_one(backend: &Arc<dyn Backend>, id: &str) -> Outcome {
    match id {
        "A14" => many_rows(backend),
        "A15" => far_apart(backend),
        other => Outcome::Failed(format!("no formula for the generated case \"{other}\" is known")),
    }
}

/// Rows of A14: more than a grid axis of 65535 holds.
const ROWS: usize = 70_000;

/// x[i0, row] = ((row · 7 + i0 · 3) mod 11) − 5 for rows on each of the outer axes, through every row-wise op.
fn many_rows(backend: &Arc<dyn Backend>) -> Outcome {
    let mut declined = None;
    for ne in [[2, 1, ROWS, 1], [2, ROWS, 1, 1], [2, 1, 1, ROWS]] {
        for case in many_rows_cases(ne) {
            let name = format!("{} {ne:?}", case.op.name());
            let outcome = match (&case.op, closed_form(&case)) {
                (Op::Cumsum(_), Err(message)) => Outcome::Failed(message),
                _ => run_case(backend, &case),
            };
            match outcome {
                Outcome::Failed(message) => return Outcome::Failed(format!("{name}: {message}")),
                Outcome::Declined(reason) => declined = Some(format!("{name}: {reason}")),
                _ => {}
            }
        }
    }
    declined.map_or(Outcome::Passed, Outcome::Declined)
}

fn many_rows_cases(ne: [usize; 4]) -> Vec<Case> {
    let value = |[i0, i1, i2, i3]: [usize; 4]| (((i1 + i2 + i3) * 7 + i0 * 3) % 11) as f64 - 5.0;
    let packed = Layout::contiguous(DType::F32, &ne).expect("a small shape");
    let x = fill(packed, value);
    // The same elements with axes 0 and 1 swapped in memory.
    let swapped = Layout::contiguous(DType::F32, &[ne[1], ne[0], ne[2], ne[3]]).expect("a small shape");
    let permuted = fill(swapped.permute([1, 0, 2, 3]).expect("a permutation"), value);
    let ops: [Op; 6] = [
        Cumsum {}.into(),
        L2Norm { eps: 1e-6, form: Form::Max }.into(),
        RmsNorm { eps: 1e-6, weight: false }.into(),
        Argmax {}.into(),
        Mean {}.into(),
        Unary { function: Function::Silu }.into(),
    ];
    let case = |op: Op, x: &HostTensor| Case::new("A14", op, vec![x.clone()], Tolerance::F32);
    let mut cases: Vec<Case> = ops.into_iter().map(|op| case(op, &x)).collect();
    cases.push(case(Cpy::cont(permuted.layout()).into(), &permuted));
    cases
}

/// Compares the reference's cumsum, which the backend is compared with, with the sums themselves.
fn closed_form(case: &Case) -> Result<(), String> {
    let (x, y) = (case.inputs[0].to_f64(), case.expected().map_err(|error| error.to_string())?);
    let right = x.chunks_exact(2).flat_map(|row| [row[0], row[0] + row[1]]);
    let equal = y[0].to_f64().into_iter().eq(right);
    equal.then_some(()).ok_or_else(|| "the reference differs from x[0], x[0] + x[1]".into())
}

/// Bytes between the rows of A15.
const ROW_STRIDE: usize = 8 << 30;

/// Zero bytes of the system that cost nothing until they are written.
struct Mapped(memmap2::MmapMut);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The one weight of A15.
struct FarRows {
    layout: Layout,
    bytes: SharedBytes,
}

impl Weights for FarRows {
    fn find(&self, name: &str) -> Option<WeightBytes> {
        let range = 0..self.layout.span_bytes();
        (name == "x").then(|| WeightBytes { layout: self.layout, bytes: self.bytes.clone(), range })
    }
}

/// Three rows, 8 GiB apart, copied together; and sizes past 32 bits.
fn far_apart(backend: &Arc<dyn Backend>) -> Outcome {
    let layout = Layout::strided(DType::F32, [4, 3, 1, 1], [4, ROW_STRIDE, 3 * ROW_STRIDE, 3 * ROW_STRIDE]);
    let Ok(layout) = layout else { return Outcome::Failed("the layout was refused".into()) };
    let answer = backend.supports(&Cpy::cont(&layout).into(), &[layout]);
    let mapped = MmapOptions::new().len(layout.span_bytes()).no_reserve_swap().map_anon();
    let Ok(mut mapped) = mapped else {
        return Outcome::Skipped("the system refused 16 GiB of address space".into());
    };
    // A device that copies all of it meets fewer pages. Where the system refuses, it only takes longer.
    #[cfg(target_os = "linux")]
    let _ = mapped.advise(memmap2::Advice::HugePage);
    for row in 0..3 {
        for column in 0..4 {
            let at = row * ROW_STRIDE + column * 4;
            mapped[at..at + 4].copy_from_slice(&((row * 4 + column + 1) as f32).to_le_bytes());
        }
    }
    let source = FarRows { layout, bytes: Arc::new(Mapped(mapped)) };
    let mut refused = false;
    let checked = outcome(answer, || {
        sizes()?;
        match copy_together(backend, source) {
            Err(SessionError::Store(crate::StoreError::Backend(BackendError::OutOfMemory { .. }))) => {
                refused = true;
                Ok(())
            }
            Err(error) => Err(error.to_string()),
            Ok(got) => {
                let right: Vec<f32> = (1..=12).map(|value| value as f32).collect();
                if got == right { Ok(()) } else { Err(format!("got {got:?}, expected {right:?}")) }
            }
        }
    });
    if refused { Outcome::Skipped("the device refused 16 GiB".into()) } else { checked }
}

fn copy_together(backend: &Arc<dyn Backend>, source: FarRows) -> Result<Vec<f32>, SessionError> {
    let mut graph = Graph::new();
    let valid = "a graph of one copy is valid";
    let x = graph.weight("x", source.layout).expect(valid);
    let y = graph.cont(x).expect(valid);
    graph.output(y).expect(valid);
    let store = Store::new(&Devices::new(vec![backend.clone()]), vec![Arc::new(source)]);
    let mut session = Session::with_store(&graph, &store)?;
    session.run()?;
    session.get(y)
}

fn sizes() -> Result<(), String> {
    let large = Layout::contiguous(DType::F32, &[1 << 20, 4096]).map_err(|error| error.to_string())?;
    let rows = Layout::contiguous(DType::F32, &[10240, 209_717]).map_err(|error| error.to_string())?;
    let figures = [
        ("elements of 1048576 × 4096", large.elements(), 4_294_967_296),
        ("bytes of 1048576 × 4096 f32", large.span_bytes(), 17_179_869_184),
        ("offset of row 209716 of 10240 f32", rows.row_offset(209_716), 209_716 * 10_240 * 4),
    ];
    for (what, got, expected) in figures {
        if got != expected {
            return Err(format!("{what}: {got}, expected {expected}"));
        }
    }
    Ok(())
}
