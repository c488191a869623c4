//! `perf`: each op on realistic shapes, cold and hot, beside what memory can do.

mod device_memory;
mod shapes;

use super::model::{self, ThreadArgs};
use super::progress::Progress;
use super::test::kinds;
use super::text::{Spread, Style, table};
use super::{Failure, Out, Outcome, bandwidth};
use device_memory::DeviceMemory;
use shapes::Workload;
use ssmgraph::backend::{Backend, Devices};
use ssmgraph::ops::{HostTensor, OpKind};
use ssmgraph::{Graph, Session};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More than the caches of any machine this is meant for.
const FLUSH_BYTES: usize = 256 << 20;
/// Hot runs go on for this long, and at least [`RUNS_MIN`] times.
const HOT_TIME: Duration = Duration::from_millis(200);
const RUNS_MIN: usize = 5;
const RUNS_MAX: usize = 2000;
const COLD_RUNS: usize = 5;

/// Arguments of `perf`.
#[derive(clap::Args)]
pub struct Args {
    /// Ops to measure, by name [default: all]
    #[arg(long, value_delimiter = ',', value_name = "OP")]
    op: Vec<String>,
    /// Backends to measure
    #[arg(long, value_delimiter = ',', value_name = "BACKEND", default_value = "cpu")]
    backend: Vec<String>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Another library to measure beside
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One op on one shape and backend.
struct Row {
    backend: String,
    op: &'static str,
    shape: String,
    /// Bytes that must move: operands once, results once.
    bytes: usize,
    hot_seconds: Spread,
    cold_seconds: Spread,
    declined: Option<String>,
    /// What the memory it ran on can do, in bytes per second.
    memory: f64,
}

/// The memory that a backend works in.
enum Memory {
    /// The host's, by its reads, and a buffer larger than its caches.
    Host { read: f64, flush: Vec<u8> },
    /// A device's own, by its copies.
    Device(Box<DeviceMemory>),
}

impl Memory {
    fn of(backend: &Arc<dyn Backend>, threads: usize) -> Outcome<Memory> {
        match model::is_gpu(backend.as_ref()) {
            true => DeviceMemory::measure(backend).map(|memory| Memory::Device(Box::new(memory))),
            false => Ok(Memory::Host { read: bandwidth::measure(threads).read, flush: vec![1; FLUSH_BYTES] }),
        }
    }

    /// Bytes per second.
    fn speed(&self) -> f64 {
        match self {
            Memory::Host { read, .. } => *read,
            Memory::Device(memory) => memory.copy,
        }
    }

    /// Puts everything else out of the caches.
    fn flush(&mut self) -> Outcome {
        match self {
            // Writing every line of a large buffer does.
            Memory::Host { flush, .. } => {
                flush.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                std::hint::black_box(&flush);
            }
            Memory::Device(memory) => {
                memory.run()?;
            }
        }
        Ok(())
    }

    fn describe(&self, backend: &str) -> String {
        match self {
            Memory::Host { read, .. } => format!("{backend}: memory reads {:.1} GB/s", read / 1e9),
            Memory::Device(memory) => format!("{backend}: memory copies {:.1} GB/s", memory.copy / 1e9),
        }
    }
}

/// Measures and prints.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    if let Some(peer) = &args.peer {
        return Err(Failure::Call(format!("--peer {peer}: this program has no peer built in yet")));
    }
    let backends = model::backends(&args.backend, args.threads)?;
    let chosen = kinds(&args.op)?;
    let chosen = if chosen.is_empty() { OpKind::ALL.to_vec() } else { chosen };
    let (mut rows, mut memories) = (Vec::new(), Vec::new());
    for backend in &backends {
        let mut memory = Memory::of(backend, args.threads.cpu().threads())?;
        memories.push(memory.describe(backend.name()));
        for workload in chosen.iter().flat_map(|kind| shapes::of(*kind)) {
            let _progress = Progress::start(format!("{} on {}", workload.op.name(), backend.name()));
            rows.push(measure(backend, &workload, &mut memory)?);
        }
    }
    match args.json {
        true => print_json(&rows, out),
        false => print_table(&rows, &memories, out),
    }
}

fn measure(backend: &Arc<dyn Backend>, workload: &Workload, memory: &mut Memory) -> Outcome<Row> {
    let mut graph = Graph::new();
    let mut operands = Vec::new();
    for (index, input) in workload.inputs.iter().enumerate() {
        let name = format!("operand {index}");
        operands.push(graph.input(&name, input.layout().dtype, &input.ne()).map_err(Failure::wrong)?);
    }
    let results = graph.op(workload.op.clone(), &operands).map_err(Failure::wrong)?;
    for &result in &results {
        graph.output(result).map_err(Failure::wrong)?;
    }
    let result_bytes = results.iter().map(|&result| graph.layout(result).map(|layout| layout.span_bytes()));
    let result_bytes = result_bytes.sum::<Result<usize, _>>().map_err(Failure::wrong)?;
    let devices = Devices::new(vec![backend.clone()]);
    let mut session = Session::new(&graph, &devices).map_err(Failure::wrong)?;
    for (&operand, input) in operands.iter().zip(&workload.inputs) {
        session.set_tensor(operand, input).map_err(Failure::wrong)?;
    }
    let declined = session.report().fallbacks().next().map(|node| node.declined.join("; "));
    let mut once = || -> Outcome<f64> {
        let start = Instant::now();
        session.run().map_err(Failure::wrong)?;
        Ok(start.elapsed().as_secs_f64())
    };
    once()?;
    let (mut hot, begin) = (Vec::new(), Instant::now());
    while hot.len() < RUNS_MIN || (begin.elapsed() < HOT_TIME && hot.len() < RUNS_MAX) {
        hot.push(once()?);
    }
    let mut cold = Vec::new();
    for _ in 0..COLD_RUNS {
        memory.flush()?;
        cold.push(once()?);
    }
    let operand_bytes: usize = workload.inputs.iter().map(HostTensor::layout).map(|l| l.span_bytes()).sum();
    Ok(Row {
        backend: backend.name().to_owned(),
        op: workload.op.name(),
        shape: workload.shape.clone(),
        bytes: workload.bytes.unwrap_or(operand_bytes + result_bytes),
        hot_seconds: Spread::of(hot),
        cold_seconds: Spread::of(cold),
        declined,
        memory: memory.speed(),
    })
}

fn print_table(rows: &[Row], memories: &[String], out: &mut Out<'_>) -> Outcome {
    let cells = |row: &Row| {
        let mut cells = vec![row.op.to_owned(), row.shape.clone(), row.backend.clone()];
        for spread in [row.hot_seconds, row.cold_seconds] {
            let speed = row.bytes as f64 / spread.median.max(f64::MIN_POSITIVE);
            cells.push(format!("{:.1}", spread.median * 1e6));
            cells.push(format!("{:.2}", speed / 1e9));
            cells.push(format!("{:.0} %", 100.0 * speed / row.memory));
        }
        cells
    };
    let head = ["op", "shape", "backend", "hot µs", "GB/s", "of memory", "cold µs", "GB/s", "of memory"];
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    writeln!(out, "{}", table(Style::Plain, &head, &cells, 3))?;
    writeln!(out, "{}; bytes are those of operands and results, each once", memories.join("; "))?;
    for row in rows {
        if let Some(reason) = &row.declined {
            writeln!(out, "{} {} ran on the fallback: {reason}", row.op, row.shape)?;
        }
    }
    Ok(())
}

fn print_json(rows: &[Row], out: &mut Out<'_>) -> Outcome {
    let results: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "op": row.op,
                "shape": row.shape,
                "backend": row.backend,
                "bytes": row.bytes,
                "hot_seconds": row.hot_seconds,
                "cold_seconds": row.cold_seconds,
                "declined": row.declined,
                "memory_bytes_per_second": row.memory,
            })
        })
        .collect();
    let report = serde_json::json!({ "results": results });
    writeln!(out, "{report}")?;
    Ok(())
}
