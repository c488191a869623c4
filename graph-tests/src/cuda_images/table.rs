//! The table of registers in `docs/performance.md`.

use super::assemble::{Assembled, Usage, assemble};
use super::root;
use super::tools::{PTXAS_VERSION, Tools};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// How to bring the table up to date.
pub const REGISTERS_COMMAND: &str = "cargo run -p graph-tests --bin cuda_images -- registers";

/// The devices of the table.
const ARCHITECTURES: [u32; 2] = [80, 90];
const BEGIN: &str = "<!-- registers: begin -->\n";
const END: &str = "<!-- registers: end -->\n";

fn page() -> PathBuf {
    root().join("docs/performance.md")
}

/// Writes the table into the page. Says whether it changed.
///
/// Errors: an image that cannot be assembled, a page without its two markers, a file that cannot be written.
pub fn write_table(tools: &Tools) -> Result<bool, String> {
    let (old, new) = pages(&assemble(tools, &ARCHITECTURES))?;
    if old != new {
        fs::write(page(), &new).map_err(|e| format!("{}: {e}", page().display()))?;
    }
    Ok(old != new)
}

/// Whether the page's table says what the assembler said, for the devices of the table and maybe others.
///
/// Errors: it does not; what to run. Also as [`write_table`].
pub fn is_current(assembled: &[Assembled]) -> Result<(), String> {
    let (old, new) = pages(assembled)?;
    if old == new {
        return Ok(());
    }
    Err(format!("docs/performance.md: the table of registers is not current; run: {REGISTERS_COMMAND}"))
}

/// The page as it is and as it should be.
fn pages(assembled: &[Assembled]) -> Result<(String, String), String> {
    let old = fs::read_to_string(page()).map_err(|e| format!("{}: {e}", page().display()))?;
    let new = with_table(&old, &table(assembled)?)?;
    Ok((old, new))
}

fn with_table(page: &str, table: &str) -> Result<String, String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or("docs/performance.md lacks the markers of the table of registers")?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
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
        let page = format!("a\n{BEGIN}old\n{END}b\n");
        let new = with_table(&page, "new\n").unwrap();
        assert_eq!(new, format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(with_table("a\nb\n", "new\n").is_err());
    }
}
