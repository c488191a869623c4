//! Graphs that were instantiated, kept for programs of the same topology.
//!
//! Instantiating is the expensive part. A program that ends leaves its executable here; the next one with the
//! same kernels in the same order patches it with its own addresses, sizes and launch shapes.

use super::driver::{CudaError, Executable, Graph};

/// Most executables that are kept; the one left longest ago goes first.
const KEPT_MAX: usize = 32;

/// What two programs must share for one executable to serve both: their kernels in order, and whether fault
/// records are copied back at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Names of the kernels.
    pub entries: Vec<&'static str>,
    /// Whether a copy follows.
    pub faults: bool,
}

/// Executables without a program.
#[derive(Default)]
pub struct Executables(Vec<(Topology, Executable)>);

impl Executables {
    /// An executable for a graph: a patched one where one of this topology is kept, else a new one.
    ///
    /// Errors: the driver's.
    pub fn make(&mut self, topology: &Topology, graph: &Graph) -> Result<Executable, CudaError> {
        while let Some(index) = self.0.iter().position(|(kept, _)| kept == topology) {
            let (_, mut executable) = self.0.remove(index);
            // One that cannot be patched is dropped: the driver may call two graphs different that have the
            // same kernels.
            if executable.update(graph).is_ok() {
                return Ok(executable);
            }
        }
        graph.instantiate()
    }

    /// Keeps an executable whose work is done.
    pub fn keep(&mut self, topology: Topology, executable: Executable) {
        if self.0.len() >= KEPT_MAX {
            self.0.remove(0);
        }
        self.0.push((topology, executable));
    }
}

/// How a program runs next.
pub enum Replay {
    /// Launch by launch: the first run loads whatever the driver loads late.
    Cold,
    /// It is captured, and replayed.
    Warm,
    /// It is replayed.
    Ready(Executable),
    /// Launch by launch from now on: the capture failed, for the reason given.
    Eager(String),
}
