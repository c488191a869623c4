//! The memory of a device that is not the host: how fast it copies, and how to put everything else out of its
//! caches.

use crate::cli::{Failure, Outcome};
use ssmgraph::backend::{Backend, Devices};
use ssmgraph::ops::DType;
use ssmgraph::{Graph, Session};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Copies grow from here ...
const BYTES_MIN: usize = 16 << 20;
/// ... to this, ...
const BYTES_MAX: usize = 1 << 30;
/// ... until one takes this long, so that what a launch costs does not count.
const COPY_TIME_MIN: Duration = Duration::from_micros(500);
/// The best of so many runs counts.
const RUNS: usize = 5;

/// A large copy inside a device.
pub struct DeviceMemory {
    session: Session,
    /// Bytes read plus bytes written in a second.
    pub copy: f64,
}

impl DeviceMemory {
    /// Measures copies of a size that takes the device long enough.
    ///
    /// Errors: the device's.
    pub fn measure(backend: &Arc<dyn Backend>) -> Outcome<DeviceMemory> {
        let mut bytes = BYTES_MIN;
        loop {
            let mut memory = DeviceMemory { session: copying(backend, bytes)?, copy: 0.0 };
            // The first run loads the kernel, the second is captured.
            memory.run()?;
            memory.run()?;
            let times = (0..RUNS).map(|_| memory.run()).collect::<Outcome<Vec<Duration>>>()?;
            let best = times.into_iter().min().expect("several runs");
            if best >= COPY_TIME_MIN || bytes >= BYTES_MAX {
                memory.copy = 2.0 * bytes as f64 / best.as_secs_f64();
                return Ok(memory);
            }
            bytes *= 2;
        }
    }

    /// Copies once; afterwards the device's caches hold nothing else.
    ///
    /// Errors: the device's.
    pub fn run(&mut self) -> Outcome<Duration> {
        let start = Instant::now();
        self.session.run().map_err(Failure::wrong)?;
        Ok(start.elapsed())
    }
}

fn copying(backend: &Arc<dyn Backend>, bytes: usize) -> Outcome<Session> {
    let mut graph = Graph::new();
    let count = bytes / size_of::<f32>();
    let x = graph.input("x", DType::F32, &[count]).map_err(Failure::wrong)?;
    let y = graph.cont(x).map_err(Failure::wrong)?;
    graph.output(y).map_err(Failure::wrong)?;
    let mut session = Session::new(&graph, &Devices::new(vec![backend.clone()])).map_err(Failure::wrong)?;
    session.set(x, &vec![0f32; count]).map_err(Failure::wrong)?;
    Ok(session)
}
