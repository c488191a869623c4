//! `cuda_images build|check|registers`: the PTX beside each CUDA kernel, and what is known about it.

use graph_tests::cuda_images::assemble::{ARCHITECTURES, Assembled, assemble};
use graph_tests::cuda_images::tools::Tools;
use graph_tests::cuda_images::{build, differences, table};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cuda_images build       compile every kernels/src/*/cuda.cu and write the cuda.ptx beside it
       cuda_images check       compare those files with their sources, and assemble them for every device
       cuda_images registers   write the tables of registers and of instructions in docs/performance.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["build"] => run_build,
        ["check"] => run_check,
        ["registers"] => run_registers,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match Tools::get().and_then(|tools| command(&tools)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn run_build(tools: &Tools) -> Result<(), String> {
    for path in build(tools)? {
        println!("{}", path.display());
    }
    Ok(())
}

fn run_check(tools: &Tools) -> Result<(), String> {
    let mut complaints = differences(tools);
    for assembled in assemble(tools, ARCHITECTURES) {
        print(&assembled);
        complaints.extend(assembled.complaints());
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

fn print(assembled: &Assembled) {
    for usage in assembled.functions.iter().flatten() {
        println!(
            "sm_{:<4} {:<40} {:>3} registers, {} + {} bytes of spills, {} bytes of stack frame",
            assembled.architecture,
            usage.function,
            usage.registers.unwrap_or(0),
            usage.spill_store_bytes,
            usage.spill_load_bytes,
            usage.stack_bytes
        );
    }
}

fn run_registers(tools: &Tools) -> Result<(), String> {
    if table::write_table(tools)? {
        println!("docs/performance.md");
    }
    Ok(())
}
