//! `devices`: what there is to run on.

use super::model::ThreadArgs;
use super::text::{Style, table};
use super::{Out, Outcome, bandwidth};
use ssmgraph::backend::cuda::DeviceInfo;
use ssmgraph::backend::{Backend, CudaBackend};
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
    let mut rows = vec![
        row([
            "cpu",
            "kernels",
            &threads.to_string(),
            ssmgraph_kernels::arch_name(),
            &speed(measured.read),
            &speed(measured.copy),
        ]),
        row(["reference", "definitions of the ops", "1", "-", "-", "-"]),
    ];
    rows.extend(cuda_rows());
    let head = ["device", "runs", "threads", "vectors", "read GB/s", "copy GB/s"];
    writeln!(out, "{}", table(Style::Plain, &head, &rows, 4))?;
    Ok(())
}

/// A row per GPU, or one that says why there is none.
fn cuda_rows() -> Vec<Vec<String>> {
    let row = |name: &str, what: String| [name, &what, "-", "-", "-", "-"].map(str::to_owned).to_vec();
    match CudaBackend::all() {
        Err(error) => vec![row("cuda", error.to_string())],
        Ok(devices) if devices.is_empty() => vec![row("cuda", "no driver or no device".into())],
        Ok(devices) => devices
            .iter()
            .map(|device| {
                let DeviceInfo { name, capability: (major, minor), memory_bytes } = device.info();
                let memory = *memory_bytes as f64 / f64::from(1 << 30);
                row(device.name(), format!("{name}, compute {major}.{minor}, {memory:.1} GiB"))
            })
            .collect(),
    }
}
