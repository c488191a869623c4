//! Failures on demand: the n-th call of a kind fails.

use super::settings::variable;
use super::status::{Outcome, Status};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// What a driver call does, as far as failing goes. The discriminants are part of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Call {
    /// Takes device or pinned memory: out of memory.
    Alloc = 0,
    /// Launches a kernel: too many resources requested.
    Launch = 1,
    /// Copies or sets memory: invalid value.
    Copy = 2,
    /// Begins or ends a capture: not supported, and a capture that it ends is lost.
    Capture = 3,
    /// Loads a module: invalid PTX.
    Module = 4,
    /// Instantiates, updates or launches a graph: out of memory.
    Graph = 5,
    /// Waits for the device: a kernel has failed, and the context with it.
    Sync = 6,
    /// Anything else, which fails only on a lost device: `set` with this kind loses the device at the n-th
    /// call of any kind.
    Other = 7,
}

const KINDS: [(&str, Call); 8] = [
    ("alloc", Call::Alloc),
    ("launch", Call::Launch),
    ("copy", Call::Copy),
    ("capture", Call::Capture),
    ("module", Call::Module),
    ("graph", Call::Graph),
    ("sync", Call::Sync),
    ("lost", Call::Other),
];

impl Call {
    /// The kind with this discriminant.
    pub fn from_number(number: u32) -> Option<Call> {
        KINDS.get(number as usize).map(|kind| kind.1)
    }

    fn failure(self) -> Status {
        match self {
            Call::Alloc | Call::Graph => Status::OUT_OF_MEMORY,
            Call::Launch => Status::OUT_OF_RESOURCES,
            Call::Copy => Status::INVALID_VALUE,
            Call::Capture => Status::CAPTURE_UNSUPPORTED,
            Call::Module => Status::INVALID_PTX,
            Call::Sync => Status::LAUNCH_FAILED,
            Call::Other => Status::DEVICE_LOST,
        }
    }
}

/// Calls left until each kind's failure; 0 for none planned.
#[derive(Debug, Default)]
struct Faults {
    left: [u64; 8],
    lost: bool,
}

static FAULTS: LazyLock<Mutex<Faults>> = LazyLock::new(|| Mutex::new(Faults::from_environment()));

fn faults() -> MutexGuard<'static, Faults> {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    fn from_environment() -> Faults {
        let mut faults = Faults::default();
        for part in variable("FAULT").unwrap_or_default().split(',').filter(|part| !part.is_empty()) {
            match parse(part) {
                Some((call, n)) => faults.left[call as usize] = n,
                None => super::report::note(&format!("SSMGRAPH_EMULATOR_FAULT: `{part}` is not kind:n")),
            }
        }
        faults
    }

    /// Counts one call of a kind; true when it is the one that fails.
    fn falls_due(&mut self, call: Call) -> bool {
        let left = &mut self.left[call as usize];
        let due = *left == 1;
        *left = left.saturating_sub(1);
        due
    }
}

fn parse(part: &str) -> Option<(Call, u64)> {
    let (kind, n) = part.split_once(':')?;
    let call = KINDS.iter().find(|row| row.0 == kind.trim())?.1;
    Some((call, n.trim().parse().ok()?))
}

/// Plans that the n-th call of a kind from now on fails; with 0, that none does.
pub fn set(call: Call, n: u64) {
    faults().left[call as usize] = n;
}

/// Calls of a kind until the planned failure; 0 when it has come, or none is planned.
pub fn planned(call: Call) -> u64 {
    faults().left[call as usize]
}

/// Plans nothing, and brings a lost device back.
pub fn clear() {
    *faults() = Faults::default();
}

/// Whether the device is lost.
pub fn is_lost() -> bool {
    faults().lost
}

/// Counts a call of any kind, which fails when the device is lost.
pub fn check_device() -> Outcome {
    let mut faults = faults();
    faults.lost |= faults.falls_due(Call::Other);
    if faults.lost { Err(Status::DEVICE_LOST) } else { Ok(()) }
}

/// Counts a call of a kind, which fails when its turn has come.
pub fn check_kind(call: Call) -> Outcome {
    if call != Call::Other && faults().falls_due(call) { Err(call.failure()) } else { Ok(()) }
}
