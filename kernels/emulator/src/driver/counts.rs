//! How often the driver was called, by kind.

use std::sync::{Mutex, PoisonError};

/// Driver calls that succeeded, since the last reset; memory as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Driver calls of any kind, failed ones included.
    pub calls: u64,
    /// Allocations of device memory.
    pub allocations: u64,
    /// Allocations of device memory freed (asked for; a stream frees later).
    pub frees: u64,
    /// Allocations of device memory at this time.
    pub live_allocations: u64,
    /// Bytes of those.
    pub live_bytes: u64,
    /// Most bytes of device memory at a time.
    pub peak_bytes: u64,
    /// Allocations, of pinned memory too, still alive when the last context went away with a device that worked.
    pub leaked_allocations: u64,
    /// Allocations of pinned host memory at this time.
    pub live_pinned: u64,
    /// Copies from host to device.
    pub h2d_copies: u64,
    /// Bytes of those.
    pub h2d_bytes: u64,
    /// Copies from device to host.
    pub d2h_copies: u64,
    /// Bytes of those.
    pub d2h_bytes: u64,
    /// Copies inside the device.
    pub d2d_copies: u64,
    /// Bytes of those.
    pub d2d_bytes: u64,
    /// Memory fills.
    pub memsets: u64,
    /// Kernels launched outside graphs.
    pub kernel_launches: u64,
    /// Kernels, copies, fills and host functions recorded into a graph instead of being run. They count
    /// nowhere else.
    pub captured_nodes: u64,
    /// Launches of instantiated graphs.
    pub graph_launches: u64,
    /// Kernels that ran, in graphs or not.
    pub kernels_run: u64,
    /// Captures begun.
    pub captures: u64,
    /// Graphs instantiated.
    pub instantiations: u64,
    /// Instantiated graphs updated as a whole.
    pub exec_updates: u64,
    /// Kernel nodes of instantiated graphs given other parameters.
    pub node_param_sets: u64,
    /// Modules loaded.
    pub module_loads: u64,
    /// Waits of the host for a stream, an event or the device.
    pub synchronisations: u64,
}

static COUNTS: Mutex<Option<Counts>> = Mutex::new(None);

/// Changes the counts.
pub fn count(change: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    change(counts.get_or_insert_default());
}

/// The counts without what memory knows.
pub fn recorded() -> Counts {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default()
}

/// Starts at zero.
pub fn reset() {
    *COUNTS.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
