//! What the memory of this machine can do, measured.

use super::text::Spread;
use std::time::Instant;

/// Larger than the caches of any machine this is meant for.
const BUFFER_BYTES: usize = 512 << 20;

/// Runs of each measurement; the best counts, since everything else on the machine only takes away.
const RUNS: usize = 4;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// Reading alone.
    pub read: f64,
    /// Copying: bytes read plus bytes written.
    pub copy: f64,
}

/// Measures with this many threads. Takes about a second.
pub fn measure(threads: usize) -> Bandwidth {
    let words = BUFFER_BYTES / size_of::<u64>();
    // Written once, so that every page is there before the clock runs.
    let mut buffer: Vec<u64> = (0..words as u64).collect();
    let read = best(BUFFER_BYTES, || read_all(&buffer, threads));
    let (from, to) = buffer.split_at_mut(words / 2);
    let copy = best(BUFFER_BYTES, || copy_all(from, to, threads));
    Bandwidth { read, copy }
}

fn best<T>(bytes: usize, mut run: impl FnMut() -> T) -> f64 {
    let speed = |_| {
        let start = Instant::now();
        std::hint::black_box(run());
        bytes as f64 / start.elapsed().as_secs_f64()
    };
    Spread::of((0..RUNS).map(speed).collect()).max
}

fn read_all(buffer: &[u64], threads: usize) -> u64 {
    std::thread::scope(|scope| {
        let parts = buffer.chunks(buffer.len().div_ceil(threads));
        let workers: Vec<_> = parts.map(|part| scope.spawn(|| sum(part))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(0)).fold(0, u64::wrapping_add)
    })
}

/// A sum over many independent lanes, so that adding is never what takes the time.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in words.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

fn copy_all(from: &[u64], to: &mut [u64], threads: usize) {
    let share = from.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}
