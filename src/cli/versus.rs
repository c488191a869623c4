//! The same work here and in another library, in turn: rows of figures with their ratio, and where threads run.

use super::text::{Spread, Style, table};
use super::{Failure, Out, Outcome};
use std::io::Write;

/// Work that both did.
pub struct Row {
    pub op: String,
    pub shape: String,
    /// Whether operands were in the caches, where that is a choice.
    pub cache: Option<&'static str>,
    pub threads: usize,
    /// Seconds of a run.
    pub ours: Spread,
    pub peer: Spread,
    /// Bytes that a run must move, where that bounds it.
    pub bytes: Option<usize>,
    /// How many times faster ours shall be.
    pub target: Option<f64>,
    /// Bytes that memory reads per second with as many threads.
    pub memory: f64,
}

impl Row {
    /// How many times faster ours is, by the medians.
    pub fn ratio(&self) -> f64 {
        self.peer.median / self.ours.median.max(f64::MIN_POSITIVE)
    }

    fn bytes_per_second(&self) -> Option<f64> {
        self.bytes.map(|bytes| bytes as f64 / self.ours.median.max(f64::MIN_POSITIVE))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "op": self.op,
            "shape": self.shape,
            "cache": self.cache,
            "threads": self.threads,
            "ratio": self.ratio(),
            "target": self.target,
            "seconds": self.ours,
            "peer_seconds": self.peer,
            "bytes": self.bytes,
            "bytes_per_second": self.bytes_per_second(),
            "memory_bytes_per_second": self.memory,
        })
    }

    fn cells(&self) -> Vec<String> {
        let micros = |spread: &Spread| {
            let [min, median, max] = [spread.min, spread.median, spread.max].map(|seconds| seconds * 1e6);
            format!("{median:.1} ({min:.1}..{max:.1})")
        };
        let speed = self.bytes_per_second();
        vec![
            self.op.clone(),
            self.shape.clone(),
            self.cache.unwrap_or("-").to_owned(),
            self.threads.to_string(),
            micros(&self.ours),
            micros(&self.peer),
            speed.map_or("-".into(), |speed| format!("{:.2}", speed / 1e9)),
            speed.map_or("-".into(), |speed| format!("{:.0} %", 100.0 * speed / self.memory)),
            format!("{:.2}", self.ratio()),
            self.target.map_or("-".into(), |target| format!("{target}")),
        ]
    }
}

/// Prints the rows, as one JSON list or as a table.
pub fn print(rows: &[Row], json: bool, out: &mut Out<'_>) -> Outcome {
    if json {
        let list: Vec<_> = rows.iter().map(Row::json).collect();
        writeln!(out, "{}", serde_json::Value::from(list))?;
        return Ok(());
    }
    let head = ["op", "shape", "cache", "threads", "µs", "ggml's µs", "GB/s", "of memory", "ratio", "target"];
    let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    writeln!(out, "{}", table(Style::Plain, &head, &cells, 3))?;
    writeln!(out, "medians (least..most); ggml with {}", peer_ggml::vectors().join(", "))?;
    Ok(())
}

/// The numbers of threads to measure with: the one that was asked for, or one and all cores.
pub fn thread_counts(asked: Option<usize>) -> Vec<usize> {
    match asked {
        Some(threads) => vec![threads],
        None => {
            let mut counts = vec![1, ssmgraph_kernels::Pool::default_workers()];
            counts.dedup();
            counts
        }
    }
}

/// Holds this thread, and threads that it starts from now on, to the first cores of those that the process had.
pub struct Pinned {
    #[cfg(target_os = "linux")]
    before: rustix::thread::CpuSet,
}

#[cfg(target_os = "linux")]
impl Pinned {
    /// Errors: the system refuses.
    pub fn to(cores: usize) -> Outcome<Pinned> {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let before = sched_getaffinity(None).map_err(Failure::wrong)?;
        let mut set = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).take(cores).for_each(|core| set.set(core));
        sched_setaffinity(None, &set).map_err(Failure::wrong)?;
        Ok(Pinned { before })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Pinned {
    fn drop(&mut self) {
        // It was the set before, so the system takes it again; if not, the next measurement says so.
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}

#[cfg(not(target_os = "linux"))]
impl Pinned {
    /// This system leaves no choice.
    pub fn to(_cores: usize) -> Outcome<Pinned> {
        Ok(Pinned {})
    }
}
