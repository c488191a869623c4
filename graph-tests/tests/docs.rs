//! `docs/ops.md` is written from the ops' own tables. Set `SSMGRAPH_UPDATE_DOCS=1` to write it anew.

use ssmgraph_kernels::{Numerics, cpu, cuda_kernel};
use ssmgraph_ops::{Op, OpKind, Storage};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// For each name of an op one example: the one with the most operands.
fn examples(kind: OpKind) -> BTreeMap<&'static str, Op> {
    let mut examples: BTreeMap<&'static str, Op> = BTreeMap::new();
    for case in kind.cases() {
        let known = examples.get(case.op.name());
        if known.is_none_or(|known| known.operands().len() < case.op.operands().len()) {
            examples.insert(case.op.name(), case.op);
        }
    }
    examples
}

fn storage_text(storage: Storage) -> &'static str {
    match storage {
        Storage::Fresh { reuse: [] } => "memory of its own",
        Storage::Fresh { .. } => "memory of its own, or that of an operand which nobody reads again",
        Storage::View { .. } => "a view of operand 0; nothing is computed",
        Storage::Update => "operand 0, updated in place where nobody reads the old value later",
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Ops\n\nWritten from the tables in `ops/src` by `graph-tests/tests/docs.rs`; the equations, sources \
         and refusals stand in the files named. Shapes are innermost axis first.\n",
    );
    for &kind in OpKind::ALL {
        let examples = examples(kind);
        let names: Vec<&str> = examples.keys().copied().collect();
        let op = examples.values().max_by_key(|op| op.operands().len()).expect("every op has cases");
        write!(page, "\n## {}\n\n`ops/src/{}.rs`", names.join(", "), kind.module()).unwrap();
        writeln!(page, " · result: {} · {} cases\n", storage_text(op.storage()), kind.cases().len()).unwrap();
        page.push_str("| operand | shape | types | meaning |\n|---|---|---|---|\n");
        for operand in op.operands() {
            let more = if operand.repeats { ", …" } else { "" };
            writeln!(
                page,
                "| {}{more} | {} | {} | {} |",
                operand.name, operand.shape, operand.dtypes, operand.meaning
            )
            .unwrap();
        }
        page.push_str(&forms(op));
    }
    page
}

/// The forms of an op's kernels, where there are several; nothing for others.
fn forms(op: &Op) -> String {
    let cpu = cpu(op).map_or(&[][..], |kernel| kernel.variants());
    let cuda = cuda_kernel(op).map_or(&[][..], |kernel| kernel.variants());
    let mut text = String::new();
    for (device, forms) in [("CPU", cpu), ("CUDA", cuda)] {
        for (index, form) in forms.iter().enumerate() {
            let used = match (index, form.numerics) {
                (0, _) => "exact, the default",
                (_, Numerics::Exact) => "exact, by name only",
                (_, Numerics::Fast) => "fast",
            };
            writeln!(text, "| {device} | `{}` | {used} | {} |", form.name, form.about).unwrap();
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\n| device | form | used | how |\n|---|---|---|---|\n{text}"),
    }
}

#[test]
fn the_page_of_ops_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/ops.md");
    let page = page();
    if std::env::var_os("SSMGRAPH_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/ops.md is older than the ops; run: SSMGRAPH_UPDATE_DOCS=1 cargo test -p graph-tests --test docs"
    );
}
