//! The tables of registers and of instructions in `docs/performance.md`.

use super::assemble::{Assembled, Usage, assemble};
use super::tools::{PTXAS_VERSION, Tools};
use super::{root, sass};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// How to bring the tables up to date.
pub const REGISTERS_COMMAND: &str = "cargo run -p graph-tests --bin cuda_images -- registers";

/// The devices of the table.
const ARCHITECTURES: [u32; 2] = [80, 90];
/// Names of the tables in their markers.
const REGISTERS: &str = "registers";
const INSTRUCTIONS: &str = "instructions";

fn page() -> PathBuf {
    root().join("docs/performance.md")
}

/// Writes the tables into the page. Says whether it changed.
///
/// Errors: an image that cannot be assembled, a page without its two markers, a file that cannot be written.
pub fn write_table(tools: &Tools) -> Result<bool, String> {
    let (old, new) = pages(tools, &assemble(tools, &ARCHITECTURES))?;
    if old != new {
        fs::write(page(), &new).map_err(|e| format!("{}: {e}", page().display()))?;
    }
    Ok(old != new)
}

/// Whether the page's tables say what the assembler said, for the devices of the tables and maybe others.
///
/// Errors: it does not; what to run. Also as [`write_table`].
pub fn is_current(tools: &Tools, assembled: &[Assembled]) -> Result<(), String> {
    let (old, new) = pages(tools, assembled)?;
    if old == new {
        return Ok(());
    }
    Err(format!("docs/performance.md: a table of the kernels is not current; run: {REGISTERS_COMMAND}"))
}

/// The page as it is and as it should be.
fn pages(tools: &Tools, assembled: &[Assembled]) -> Result<(String, String), String> {
    let old = fs::read_to_string(page()).map_err(|e| format!("{}: {e}", page().display()))?;
    let new = with_table(&old, REGISTERS, &table(assembled)?)?;
    let new = with_table(&new, INSTRUCTIONS, &sass::table(tools)?)?;
    Ok((old, new))
}

fn with_table(page: &str, name: &str, table: &str) -> Result<String, String> {
    let [begin, end] = ["begin", "end"].map(|word| format!("<!-- {name}: {word} -->\n"));
    let parts = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) =
        parts.ok_or_else(|| format!("docs/performance.md lacks the markers of the table of {name}"))?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

fn table(assembled: &[Assembled]) -> Result<String, String> {
    let mut text = format!(
        "\nptxas {PTXAS_VERSION}; a stack frame and spills (bytes stored + loaded) are in bytes a thread.\n\n\
         | kernel | registers, sm_80 | stack | spills | registers, sm_90 | stack | spills |\n\
         |---|---|---|---|---|---|---|\n"
    );
    let wanted: Vec<&Assembled> =
        assembled.iter().filter(|one| ARCHITECTURES.contains(&one.architecture)).collect();
    for devices in wanted.chunks(ARCHITECTURES.len()) {
        let usages: Vec<&Vec<Usage>> = devices
            .iter()
            .map(|one| one.functions.as_ref().map_err(String::clone))
            .collect::<Result<_, _>>()?;
        let Some((first, others)) = usages.split_first() else { continue };
        for usage in first.iter() {
            let same = others.iter().map(|other| other.iter().find(|one| one.function == usage.function));
            let cells: String = std::iter::once(Some(usage)).chain(same).map(cell).collect();
            let _ = writeln!(text, "| `{}` |{cells}", usage.function);
        }
    }
    text.push('\n');
    Ok(text)
}

fn cell(usage: Option<&Usage>) -> String {
    let Some(usage) = usage else { return " | | |".to_owned() };
    let registers = usage.registers.map_or("with its callers".to_owned(), |registers| registers.to_string());
    let (stores, loads) = (usage.spill_store_bytes, usage.spill_load_bytes);
    format!(" {registers} | {} | {stores} + {loads} |", usage.stack_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssmgraph_kernels::cuda::IMAGES;

    #[test]
    fn other_devices_do_not_show() {
        let on = |architecture, registers| Assembled {
            image: IMAGES[0],
            architecture,
            functions: Ok(vec![Usage {
                function: "f".into(),
                registers: Some(registers),
                ..Usage::default()
            }]),
        };
        let text = table(&[on(70, 1), on(80, 2), on(90, 3), on(120, 4)]).unwrap();
        assert!(text.ends_with("|---|\n| `f` | 2 | 0 | 0 + 0 | 3 | 0 | 0 + 0 |\n\n"), "{text}");
    }

    #[test]
    fn only_what_stands_between_the_markers_changes() {
        let page = |text: &str| format!("a\n<!-- x: begin -->\n{text}\n<!-- x: end -->\nb\n");
        assert_eq!(with_table(&page("old"), "x", "new\n").unwrap(), page("new"));
        assert!(with_table("a\nb\n", "x", "new\n").is_err());
        assert!(with_table(&page("old"), "y", "new\n").is_err());
    }
}
