//! `devices`: what there is to run on.

use super::model::ThreadArgs;
use super::text::{Style, table};
use super::{Out, Outcome, bandwidth};
use std::io::Write;

/// Arguments of `devices`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Lists the devices.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    let threads = args.threads.cpu().threads();
    let measured = bandwidth::measure(threads);
    let speed = |bytes: f64| format!("{:.1}", bytes / 1e9);
    let row = |cells: [&str; 6]| cells.map(str::to_owned).to_vec();
    let rows = [
        row([
            "cpu",
            "kernels",
            &threads.to_string(),
            ssmgraph_kernels::arch_name(),
            &speed(measured.read),
            &speed(measured.copy),
        ]),
        row(["reference", "definitions of the ops", "1", "-", "-", "-"]),
        row(["cuda", "not built in", "-", "-", "-", "-"]),
    ];
    let head = ["device", "runs", "threads", "vectors", "read GB/s", "copy GB/s"];
    writeln!(out, "{}", table(Style::Plain, &head, &rows, 4))?;
    Ok(())
}
