//! The conformance suite: every case of every op, on any backend, against the reference.
//!
//! Someone with a backend of their own calls [`run`] with it and prints the [`Summary`]. Each case becomes a
//! graph of one op, planned and run by a [`Session`](crate::Session) on the backend:
//! - operands lie in memory as the case says, gaps, offsets and odd strides included;
//! - the session runs twice and both runs must give the same bits;
//! - where the op may take over an operand's memory, a second graph makes it do so.
//!
//! A case that the backend declines runs on the reference backend behind it, and must still be right: that
//! checks the copies between the two.

mod case;
mod memory;
pub mod vectors;

pub use case::{outcome, run_case};

use crate::backend::Backend;
use ssmgraph_ops::OpKind;
use std::fmt;
use std::sync::Arc;

/// Which cases to run.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Ops; all of them when empty.
    pub ops: Vec<OpKind>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The backend computed it, and rightly.
    Passed,
    /// The backend declined, for this reason; the fallback was right.
    Declined(String),
    /// There is nothing to run it with, for this reason.
    Skipped(String),
    /// A wrong result, an error or a panic.
    Failed(String),
}

/// One case with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    /// The op, as the file of its definition is called; for vectors the op or format that they name.
    pub op: String,
    /// Name of the case, unique within the op.
    pub case: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// How many cases of one op had which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`Outcome::Passed`].
    pub passed: usize,
    /// [`Outcome::Declined`].
    pub declined: usize,
    /// [`Outcome::Skipped`].
    pub skipped: usize,
    /// [`Outcome::Failed`].
    pub failed: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Declined(_) => self.declined += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) => self.failed += 1,
        }
    }
}

/// The outcomes of a backend. Displayed as a table, one row per op, followed by every failure in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Name of the backend.
    pub backend: String,
    /// All cases, in the order in which they ran.
    pub cases: Vec<CaseResult>,
}

impl Summary {
    /// Counts per op, in the order of the first case of each.
    pub fn by_op(&self) -> Vec<(&str, Counts)> {
        let mut rows: Vec<(&str, Counts)> = Vec::new();
        for result in &self.cases {
            let at = rows.iter().position(|(op, _)| *op == result.op).unwrap_or_else(|| {
                rows.push((&result.op, Counts::default()));
                rows.len() - 1
            });
            rows[at].1.add(&result.outcome);
        }
        rows
    }

    /// Counts of all cases.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.cases.iter().for_each(|result| total.add(&result.outcome));
        total
    }

    /// Cases that failed, with their messages.
    pub fn failures(&self) -> impl Iterator<Item = (&CaseResult, &str)> {
        self.cases.iter().filter_map(|result| match &result.outcome {
            Outcome::Failed(message) => Some((result, message.as_str())),
            _ => None,
        })
    }

    /// Whether nothing failed.
    pub fn is_success(&self) -> bool {
        self.failures().next().is_none()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<[String; 5]> = Vec::new();
        let cells = |name: &str, counts: Counts| {
            let Counts { passed, declined, skipped, failed } = counts;
            [
                name.to_owned(),
                passed.to_string(),
                declined.to_string(),
                skipped.to_string(),
                failed.to_string(),
            ]
        };
        rows.push([self.backend.as_str(), "passed", "declined", "skipped", "failed"].map(str::to_owned));
        rows.extend(self.by_op().into_iter().map(|(op, counts)| cells(op, counts)));
        rows.push(cells("total", self.total()));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        for row in &rows {
            write!(f, "{:<width$}", row[0], width = widths[0])?;
            for (cell, width) in row.iter().zip(widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        for (result, message) in self.failures() {
            writeln!(f, "FAILED {} / {} on {}: {message}", result.op, result.case, self.backend)?;
        }
        Ok(())
    }
}

/// Runs the suite on a backend.
pub fn run(backend: Arc<dyn Backend>, filter: &Filter) -> Summary {
    let mut summary = Summary { backend: backend.name().to_owned(), cases: Vec::new() };
    for &kind in OpKind::ALL {
        if !filter.ops.is_empty() && !filter.ops.contains(&kind) {
            continue;
        }
        for case in kind.cases() {
            if filter.case.as_ref().is_some_and(|part| !case.name.contains(part)) {
                continue;
            }
            let outcome = run_case(&backend, &case);
            summary.cases.push(CaseResult { op: kind.module().to_owned(), case: case.name, outcome });
        }
    }
    summary
}
