//! `perf`: each op on realistic shapes, cold and hot, beside what memory can do.

mod device_memory;
#[cfg(feature = "peer-ggml")]
mod peer;
mod shapes;
#[cfg(feature = "peer-ggml")]
mod targets;

use super::model::{self, NumericsArgs, Peer, ThreadArgs};
use super::progress::Progress;
use super::test::kinds;
use super::text::{Spread, Style, table};
use super::{Failure, Out, Outcome, bandwidth};
use device_memory::DeviceMemory;
use shapes::Workload;
use ssmgraph::backend::{Backend, Devices};
use ssmgraph::ops::{HostTensor, Layout, Op, OpKind};
use ssmgraph::{Graph, Session, Store};
use std::collections::HashMap;
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
    #[command(flatten)]
    numerics: NumericsArgs,
    /// Forms to measure of the ops that have several, by name, or all [default: the one of --numerics]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    variant: Vec<String>,
    /// Another library to measure beside
    #[arg(long)]
    peer: Option<Peer>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One op on one shape and backend.
struct Row {
    backend: String,
    op: &'static str,
    shape: String,
    /// The form, of an op that has several.
    variant: Option<&'static str>,
    /// Bytes that must move: operands once, results once.
    bytes: usize,
    /// `None` where the form that was asked for does not do the shape.
    times: Option<Times>,
    declined: Option<String>,
    /// What the memory it ran on can do, in bytes per second.
    memory: f64,
}

/// How long runs took.
struct Times {
    hot_seconds: Spread,
    cold_seconds: Spread,
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
    if args.peer.is_some() {
        return beside_peer(&args, out);
    }
    let backends = model::backends(&args.backend, args.threads, args.numerics)?;
    let chosen = kinds(&args.op)?;
    let chosen = if chosen.is_empty() { OpKind::ALL.to_vec() } else { chosen };
    let wanted = Wanted::of(&args.variant, &backends, &chosen)?;
    let (mut rows, mut memories) = (Vec::new(), Vec::new());
    for backend in &backends {
        let mut memory = Memory::of(backend, args.threads.cpu().threads())?;
        memories.push(memory.describe(backend.name()));
        for workload in chosen.iter().flat_map(|kind| shapes::of(*kind)) {
            let _progress = Progress::start(format!("{} on {}", workload.op.name(), backend.name()));
            for form in wanted.forms(backend, &workload.op) {
                rows.push(measure(backend, form, &workload, &mut memory)?);
            }
        }
    }
    match args.json {
        true => print_json(&rows, out),
        false => print_table(&rows, &memories, out),
    }
}

/// The CPU backend beside another library, in the form that it chooses.
#[cfg(feature = "peer-ggml")]
fn beside_peer(args: &Args, out: &mut Out<'_>) -> Outcome {
    if args.backend != ["cpu"] || !args.variant.is_empty() {
        return Err(Failure::Call("--peer measures the cpu backend in the form that it chooses".into()));
    }
    let chosen = kinds(&args.op)?;
    let chosen = if chosen.is_empty() { OpKind::ALL.to_vec() } else { chosen };
    peer::run(&chosen, args.threads.asked(), args.numerics, args.json, out)
}

#[cfg(not(feature = "peer-ggml"))]
fn beside_peer(_args: &Args, _out: &mut Out<'_>) -> Outcome {
    Err(Peer::missing())
}

/// Which forms to measure.
enum Wanted {
    /// The one that the backend chooses.
    Chosen,
    /// All that an op has.
    All,
    /// Those with these names.
    Named(Vec<String>),
}

impl Wanted {
    /// Errors: a name that no op of these has on any of these backends.
    fn of(names: &[String], backends: &[Arc<dyn Backend>], kinds: &[OpKind]) -> Outcome<Wanted> {
        if names.is_empty() {
            return Ok(Wanted::Chosen);
        }
        let mut known: Vec<&str> = Vec::new();
        for workload in kinds.iter().flat_map(|kind| shapes::of(*kind)) {
            let forms = backends.iter().flat_map(|backend| backend.variants(&workload.op));
            known.extend(forms.map(|form| form.name));
        }
        known.sort_unstable();
        known.dedup();
        match names.iter().find(|name| *name != "all" && !known.contains(&name.as_str())) {
            None if names.iter().any(|name| name == "all") => Ok(Wanted::All),
            None => Ok(Wanted::Named(names.to_vec())),
            Some(name) if known.is_empty() => {
                Err(Failure::Call(format!("there is no form \"{name}\": these ops have one form each")))
            }
            Some(name) => {
                let known = known.join(", ");
                Err(Failure::Call(format!("there is no form \"{name}\", expected all or some of {known}")))
            }
        }
    }

    /// The forms of an op to measure by name; `None` for the one that the backend chooses.
    fn forms(&self, backend: &Arc<dyn Backend>, op: &Op) -> Vec<Option<&'static str>> {
        let names = backend.variants(op).iter().map(|form| form.name);
        match self {
            Wanted::Chosen => vec![None],
            Wanted::All if backend.variants(op).is_empty() => vec![None],
            Wanted::All => names.map(Some).collect(),
            Wanted::Named(wanted) => {
                names.filter(|name| wanted.iter().any(|one| one == name)).map(Some).collect()
            }
        }
    }
}

/// Measures a workload in the form with this name, or in the one that the backend chooses.
fn measure(
    backend: &Arc<dyn Backend>,
    form: Option<&'static str>,
    workload: &Workload,
    memory: &mut Memory,
) -> Outcome<Row> {
    let backend = form.and_then(|name| backend.in_variant(name)).unwrap_or_else(|| backend.clone());
    let layouts: Vec<Layout> = workload.inputs.iter().map(|input| *input.layout()).collect();
    let variant = form.or_else(|| backend.variant(&workload.op, &layouts).map(|form| form.name));
    let (mut session, bytes) = session(&backend, workload)?;
    let declined = session.report().fallbacks().next().map(|node| node.declined.join("; "));
    let times = match form.is_some() && declined.is_some() {
        true => None,
        false => Some(time(&mut session, memory)?),
    };
    Ok(Row {
        backend: backend.name().to_owned(),
        op: workload.op.name(),
        shape: workload.shape.clone(),
        variant,
        bytes,
        times,
        declined,
        memory: memory.speed(),
    })
}

/// A session with the operands set, and the bytes that a run must move.
fn session(backend: &Arc<dyn Backend>, workload: &Workload) -> Outcome<(Session, usize)> {
    let mut graph = Graph::new();
    let mut operands = Vec::new();
    let mut weights = HashMap::new();
    let has_weight = matches!(workload.op, Op::MulMat(_) | Op::MulMatId(_));
    for (index, input) in workload.inputs.iter().enumerate() {
        let name = format!("operand {index}");
        // What a matrix is multiplied with is a weight wherever it matters; backends may keep those in a form of
        // their own.
        let operand = if index == 0 && has_weight {
            weights.insert(name.clone(), input.clone());
            graph.weight(&name, *input.layout())
        } else {
            graph.input(&name, input.layout().dtype, &input.ne())
        };
        operands.push(operand.map_err(Failure::wrong)?);
    }
    let results = graph.op(workload.op.clone(), &operands).map_err(Failure::wrong)?;
    for &result in &results {
        graph.output(result).map_err(Failure::wrong)?;
    }
    let result_bytes = results.iter().map(|&result| graph.layout(result).map(|layout| layout.span_bytes()));
    let result_bytes = result_bytes.sum::<Result<usize, _>>().map_err(Failure::wrong)?;
    let operand_bytes: usize = workload.inputs.iter().map(HostTensor::layout).map(|l| l.span_bytes()).sum();
    let devices = Devices::new(vec![backend.clone()]);
    let store = Store::new(&devices, vec![Arc::new(weights)]);
    let mut session = Session::with_store(&graph, &store).map_err(Failure::wrong)?;
    for (&operand, input) in operands.iter().zip(&workload.inputs).skip(usize::from(has_weight)) {
        session.set_tensor(operand, input).map_err(Failure::wrong)?;
    }
    Ok((session, workload.bytes.unwrap_or(operand_bytes + result_bytes)))
}

fn time(session: &mut Session, memory: &mut Memory) -> Outcome<Times> {
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
    Ok(Times { hot_seconds: Spread::of(hot), cold_seconds: Spread::of(cold) })
}

fn print_table(rows: &[Row], memories: &[String], out: &mut Out<'_>) -> Outcome {
    let cells = |row: &Row| {
        let variant = row.variant.unwrap_or("-").to_owned();
        let mut cells = vec![row.op.to_owned(), row.shape.clone(), row.backend.clone(), variant];
        let Some(Times { hot_seconds, cold_seconds }) = &row.times else {
            cells.extend(["declined", "-", "-", "declined", "-", "-"].map(str::to_owned));
            return cells;
        };
        for spread in [hot_seconds, cold_seconds] {
            let speed = row.bytes as f64 / spread.median.max(f64::MIN_POSITIVE);
            cells.push(format!("{:.1}", spread.median * 1e6));
            cells.push(format!("{:.2}", speed / 1e9));
            cells.push(format!("{:.0} %", 100.0 * speed / row.memory));
        }
        cells
    };
    let head =
        ["op", "shape", "backend", "form", "hot µs", "GB/s", "of memory", "cold µs", "GB/s", "of memory"];
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    writeln!(out, "{}", table(Style::Plain, &head, &cells, 4))?;
    writeln!(out, "{}; bytes are those of operands and results, each once", memories.join("; "))?;
    for row in rows {
        let Some(reason) = &row.declined else { continue };
        match (row.variant, &row.times) {
            (Some(form), None) => writeln!(out, "{} {} does not run as {form}: {reason}", row.op, row.shape)?,
            _ => writeln!(out, "{} {} ran on the fallback: {reason}", row.op, row.shape)?,
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
                "variant": row.variant,
                "bytes": row.bytes,
                "hot_seconds": row.times.as_ref().map(|times| times.hot_seconds),
                "cold_seconds": row.times.as_ref().map(|times| times.cold_seconds),
                "declined": row.declined,
                "memory_bytes_per_second": row.memory,
            })
        })
        .collect();
    let report = serde_json::json!({ "results": results });
    writeln!(out, "{report}")?;
    Ok(())
}
