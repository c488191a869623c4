//! `test`: the conformance suite, or test vectors.

use super::model::{self, NumericsArgs, ThreadArgs};
use super::progress::Progress;
use super::{Failure, Out, Outcome};
use ssmgraph::backend::Backend;
use ssmgraph::conformance::vectors::{self, Vector};
use ssmgraph::conformance::{self, Filter, Summary};
use ssmgraph::ops::OpKind;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Arguments of `test`.
#[derive(clap::Args)]
pub struct Args {
    /// Ops to test, by name [default: all]
    #[arg(long, value_delimiter = ',', value_name = "OP")]
    op: Vec<String>,
    /// Backends to test [default: cpu,reference]
    #[arg(long, value_delimiter = ',', value_name = "BACKEND")]
    backend: Vec<String>,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
    /// Run the vectors of a file or folder instead
    #[arg(long, value_name = "DIR|FILE")]
    vectors: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What to do with each backend.
type Work = Box<dyn Fn(&Arc<dyn Backend>) -> Summary>;

/// Tests and prints; a failed case is found wrong.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    let backends = model::backends(&args.backend, args.threads, args.numerics)?;
    let work: Work = match &args.vectors {
        Some(path) => {
            let vectors = chosen(vectors::load(path).map_err(Failure::call)?, &args.op)?;
            Box::new(move |backend| vectors::run(backend, &vectors))
        }
        None => {
            let filter = Filter { ops: kinds(&args.op)?, case: None };
            Box::new(move |backend| conformance::run(backend.clone(), &filter))
        }
    };
    let mut summaries = Vec::new();
    for backend in &backends {
        let _progress = Progress::start(format!("testing {}", backend.name()));
        summaries.push(work(backend));
    }
    match args.json {
        true => print_json(&summaries, out)?,
        false => {
            for (index, summary) in summaries.iter().enumerate() {
                write!(out, "{}{summary}", if index > 0 { "\n" } else { "" })?;
            }
        }
    }
    if summaries.iter().all(Summary::is_success) { Ok(()) } else { Err(Failure::Found) }
}

/// The ops with these names; a name may be that of a group, such as `unary`, or of one function in it.
///
/// Errors: a name that no op has.
pub fn kinds(names: &[String]) -> Outcome<Vec<OpKind>> {
    let kind = |name: &String| {
        let name = name.to_lowercase();
        let has =
            |kind: &&OpKind| kind.module() == name || kind.cases().iter().any(|case| case.op.name() == name);
        OpKind::ALL.iter().find(has).copied().ok_or_else(|| {
            let known: Vec<&str> = OpKind::ALL.iter().map(|kind| kind.module()).collect();
            Failure::Call(format!("there is no op \"{name}\", expected one of {}", known.join(", ")))
        })
    };
    let mut kinds = names.iter().map(kind).collect::<Outcome<Vec<OpKind>>>()?;
    kinds.dedup();
    Ok(kinds)
}

/// The vectors of these ops; all of them when no op is named.
fn chosen(vectors: Vec<Vector>, ops: &[String]) -> Outcome<Vec<Vector>> {
    let named = |vector: &Vector| ops.is_empty() || ops.iter().any(|op| op.eq_ignore_ascii_case(&vector.op));
    let chosen: Vec<Vector> = vectors.into_iter().filter(named).collect();
    if chosen.is_empty() {
        return Err(Failure::Call(format!("there are no vectors of {}", ops.join(", "))));
    }
    Ok(chosen)
}

fn print_json(summaries: &[Summary], out: &mut Out<'_>) -> Outcome {
    let backends: Vec<serde_json::Value> = summaries
        .iter()
        .map(|summary| {
            let cases: Vec<serde_json::Value> = summary
                .cases
                .iter()
                .map(|result| {
                    let (outcome, message) = result.outcome.as_words();
                    serde_json::json!({
                        "op": result.op, "case": result.case, "outcome": outcome, "message": message,
                    })
                })
                .collect();
            let total = summary.total();
            serde_json::json!({
                "backend": summary.backend,
                "passed": total.passed,
                "declined": total.declined,
                "skipped": total.skipped,
                "failed": total.failed,
                "cases": cases,
            })
        })
        .collect();
    let success = summaries.iter().all(Summary::is_success);
    writeln!(out, "{}", serde_json::json!({ "success": success, "backends": backends }))?;
    Ok(())
}
