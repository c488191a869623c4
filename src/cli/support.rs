//! `support`: which backend supports which op, element type and layout, from asking the backends.

use super::model::{self, NumericsArgs, ThreadArgs};
use super::text::{Style, table};
use super::{Out, Outcome};
use clap::ValueEnum;
use ssmgraph::backend::Backend;
use ssmgraph::ops::case::Arrangement;
use ssmgraph::ops::{Case, DType, Layout, OpKind, Storage};
use std::io::Write;
use std::sync::Arc;

/// Arguments of `support`.
#[derive(clap::Args)]
pub struct Args {
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Backends to ask [default: cpu,reference]
    #[arg(long, value_delimiter = ',', value_name = "BACKEND")]
    backend: Vec<String>,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    numerics: NumericsArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Markdown,
    Csv,
}

/// Answers of a backend to questions of one kind.
#[derive(Clone, Copy, Default)]
struct Answers {
    yes: usize,
    no: usize,
}

impl Answers {
    /// `-` when no operands of the kind exist: the op's own shape rule refuses them.
    fn text(self) -> &'static str {
        match (self.yes, self.no) {
            (0, 0) => "-",
            (_, 0) => "yes",
            (0, _) => "no",
            _ => "some",
        }
    }
}

/// Asks and prints.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    let backends = model::backends(&args.backend, args.threads, args.numerics)?;
    let mut head = vec!["op", "type", "backend"];
    head.extend(Arrangement::ALL.iter().map(|arrangement| arrangement.name()));
    let rows: Vec<Vec<String>> = OpKind::ALL.iter().flat_map(|kind| rows_of(*kind, &backends)).collect();
    match args.format {
        Format::Table => writeln!(out, "{}", table(Style::Plain, &head, &rows, head.len()))?,
        Format::Markdown => writeln!(out, "{}", table(Style::Markdown, &head, &rows, head.len()))?,
        Format::Csv => {
            writeln!(out, "{}", head.join(","))?;
            for row in rows {
                writeln!(out, "{}", row.join(","))?;
            }
        }
    }
    Ok(())
}

/// One row for each op name, type of the first operand, and backend; views need no backend.
fn rows_of(kind: OpKind, backends: &[Arc<dyn Backend>]) -> Vec<Vec<String>> {
    let cases = kind.cases();
    let mut keys: Vec<(&'static str, DType)> = Vec::new();
    for case in &cases {
        let Some(first) = case.inputs.first() else { continue };
        let key = (case.op.name(), first.layout().dtype);
        if !keys.contains(&key) && !matches!(case.op.storage(), Storage::View { .. }) {
            keys.push(key);
        }
    }
    let mut rows = Vec::new();
    for (op, dtype) in keys {
        let of_key = |case: &&Case| {
            let first = case.inputs.first().map(|input| input.layout().dtype);
            case.op.name() == op && first == Some(dtype)
        };
        let cases: Vec<&Case> = cases.iter().filter(of_key).collect();
        for backend in backends {
            let mut row = vec![op.to_owned(), dtype.name().to_owned(), backend.name().to_owned()];
            let ask = |arrangement: &Arrangement| answers(backend, &cases, *arrangement).text().to_owned();
            row.extend(Arrangement::ALL.iter().map(ask));
            rows.push(row);
        }
    }
    rows
}

/// Asks about every case with its first operand laid out anew.
fn answers(backend: &Arc<dyn Backend>, cases: &[&Case], arrangement: Arrangement) -> Answers {
    let mut answers = Answers::default();
    for case in cases {
        let mut layouts: Vec<Layout> = case.inputs.iter().map(|input| *input.layout()).collect();
        let dtype = layouts[0].dtype;
        let spreads = matches!(arrangement, Arrangement::Transposed | Arrangement::GappedElements);
        if dtype.is_block() && spreads {
            continue;
        }
        layouts[0] = arrangement.layout(dtype, &layouts[0].ne);
        if case.op.infer(&layouts).is_err() {
            continue;
        }
        match backend.supports(&case.op, &layouts) {
            Ok(()) => answers.yes += 1,
            Err(_) => answers.no += 1,
        }
    }
    answers
}
