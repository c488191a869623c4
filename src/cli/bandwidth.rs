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
    // Written once, so that every page is there before the clock runs.
    let mut buffer = vec![1u8; BUFFER_BYTES];
    let (from, to) = buffer.split_at_mut(BUFFER_BYTES / 2);
    let read = best(BUFFER_BYTES, || equal(from, to, threads));
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

/// Compares two equal halves. The system's comparison of bytes reads as fast as memory gives, also in builds
/// without optimisation.
fn equal(a: &[u8], b: &[u8], threads: usize) -> bool {
    let share = a.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let parts = a.chunks(share).zip(b.chunks(share));
        let workers: Vec<_> = parts.map(|(a, b)| scope.spawn(move || a == b)).collect();
        workers.into_iter().all(|worker| worker.join().unwrap_or(false))
    })
}

fn copy_all(from: &[u8], to: &mut [u8], threads: usize) {
    let share = from.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}
