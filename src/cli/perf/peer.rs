//! `perf --peer ggml`: the same op on the same operands here and on ggml's CPU backend, in turn.

use super::super::model::NumericsArgs;
use super::super::progress::Progress;
use super::super::text::Spread;
use super::super::versus::{self, Pinned, Row};
use super::super::{Failure, Out, Outcome, bandwidth};
use super::targets::{self, Target};
use super::{FLUSH_BYTES, Memory, session};
use peer_ggml::{Device, Loaded, Work};
use ssmgraph::Session;
use ssmgraph::backend::{Backend, CpuBackend};
use ssmgraph::ops::OpKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rounds of hot runs, each library's in turn.
const ROUNDS: usize = 7;
/// Least time of a library's hot runs in a round, and most runs.
const ROUND_TIME: Duration = Duration::from_millis(40);
const ROUND_RUNS_MAX: usize = 500;
/// Cold runs of each library, in turn.
const COLD_RUNS: usize = 7;

/// Measures and prints.
pub fn run(
    kinds: &[OpKind],
    threads: Option<usize>,
    numerics: NumericsArgs,
    json: bool,
    out: &mut Out<'_>,
) -> Outcome {
    let (mut rows, mut foreign) = (Vec::new(), Vec::new());
    for threads in versus::thread_counts(threads) {
        let _pinned = Pinned::to(threads)?;
        let mut memory = Memory::Host { read: bandwidth::measure(threads).read, flush: vec![1; FLUSH_BYTES] };
        let cpu = CpuBackend::new(Some(threads)).with_numerics(numerics.get());
        let backend: Arc<dyn Backend> = Arc::new(cpu);
        let device = Device::cpu(threads).map_err(Failure::Wrong)?;
        for target in kinds.iter().flat_map(|kind| targets::of(*kind)) {
            let name = target.workload.op.name();
            let _progress = Progress::start(format!("{name} with {threads} threads"));
            match Work::of(&target.workload.op, &target.workload.inputs) {
                Some(mut work) if work.runs_on(&device) => {
                    rows.extend(measure(&backend, &device, &mut work, &target, threads, &mut memory)?);
                }
                _ if !foreign.contains(&name) => foreign.push(name),
                _ => {}
            }
        }
    }
    if !foreign.is_empty() {
        eprintln!("note: nothing in ggml is {} on such operands", foreign.join(", "));
    }
    versus::print(&rows, json, out)
}

/// A row for operands in the caches and one for operands in memory.
fn measure(
    backend: &Arc<dyn Backend>,
    device: &Device,
    work: &mut Work,
    target: &Target,
    threads: usize,
    memory: &mut Memory,
) -> Outcome<[Row; 2]> {
    let (session, bytes) = session(backend, &target.workload)?;
    if let Some(node) = session.report().fallbacks().next() {
        let why = node.declined.join("; ");
        return Err(Failure::Wrong(format!("{} ran on the fallback: {why}", node.text)));
    }
    let mut pair = Pair { session, device, loaded: work.load(device).map_err(Failure::Wrong)? };
    pair.ours()?;
    pair.theirs()?;
    let hot = pair.hot()?;
    let cold = pair.cold(memory)?;
    let row = |cache, [ours, peer]: [Vec<f64>; 2], target_here| Row {
        op: target.workload.op.name().to_owned(),
        shape: target.workload.shape.clone(),
        cache: Some(cache),
        threads,
        ours: Spread::of(ours),
        peer: Spread::of(peer),
        bytes: Some(bytes),
        target: target_here,
        memory: memory.speed(),
    };
    let cold_target = target.ratio.filter(|_| !target.cached);
    Ok([row("hot", hot, target.ratio), row("cold", cold, cold_target)])
}

/// The same work twice.
struct Pair<'a> {
    session: Session,
    device: &'a Device,
    loaded: Loaded<'a>,
}

impl Pair<'_> {
    /// Seconds of a run of ours.
    fn ours(&mut self) -> Outcome<f64> {
        let start = Instant::now();
        self.session.run().map_err(Failure::wrong)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds of a run of ggml's.
    fn theirs(&mut self) -> Outcome<f64> {
        let start = Instant::now();
        self.loaded.run().map_err(Failure::Wrong)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Many runs of one, then as long of the other, some rounds over.
    fn hot(&mut self) -> Outcome<[Vec<f64>; 2]> {
        let mut seconds = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            round(&mut seconds[0], || self.ours())?;
            self.awake(|pair| round(&mut seconds[1], || pair.theirs()))?;
        }
        Ok(seconds)
    }

    /// One run of each after the caches were emptied.
    fn cold(&mut self, memory: &mut Memory) -> Outcome<[Vec<f64>; 2]> {
        let mut seconds = [Vec::new(), Vec::new()];
        for _ in 0..COLD_RUNS {
            memory.flush()?;
            seconds[0].push(self.ours()?);
            memory.flush()?;
            seconds[1].push(self.awake(Self::theirs)?);
        }
        Ok(seconds)
    }

    /// ggml's threads watch for work between runs, and would do so while ours run.
    fn awake<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let threads = self.device.threads();
        threads.inspect(|threads| threads.wake());
        let result = work(self);
        threads.inspect(|threads| threads.rest());
        result
    }
}

fn round(seconds: &mut Vec<f64>, mut once: impl FnMut() -> Outcome<f64>) -> Outcome {
    let (start, before) = (Instant::now(), seconds.len());
    // The first run brings the operands back into the caches.
    once()?;
    while seconds.len() == before || start.elapsed() < ROUND_TIME && seconds.len() - before < ROUND_RUNS_MAX {
        seconds.push(once()?);
    }
    Ok(())
}
