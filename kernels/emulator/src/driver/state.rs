//! The driver's state and the way into it.

use super::capture::Capture;
use super::counts::count;
use super::faults::{self, Call};
use super::graph::{Exec, Graph};
use super::launch::Function;
use super::memory;
use super::report::{problem, trace};
use super::settings::settings;
use super::status::{Outcome, Status, code};
use super::stream::{Event, Stream, Ticket};
use super::work::Work;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What a program holds for a stream, event, module, graph, ...
pub type Handle = usize;

/// The handle of the device's primary context.
pub const PRIMARY: Handle = 0xC0DE;

/// Everything but memory. One lock guards it, held while work runs: the device does one thing at a time.
#[derive(Default)]
pub struct Driver {
    primary_users: usize,
    contexts: HashSet<Handle>,
    /// The failure of a kernel or of the device, which every later call answers.
    pub(super) sticky: Option<Status>,
    pub(super) streams: HashMap<Handle, Stream>,
    pub(super) queues: HashMap<Handle, VecDeque<Work>>,
    pub(super) events: HashMap<Handle, Event>,
    /// Event records and graph launches that have not run, and the queue in which they stand.
    pub(super) pending: HashMap<Ticket, Handle>,
    pub(super) captures: HashMap<Handle, Capture>,
    pub(super) modules: HashMap<Handle, Vec<Handle>>,
    pub(super) functions: HashMap<Handle, Arc<Function>>,
    /// By handle; the nodes of a graph have the handles that follow its own.
    pub(super) graphs: BTreeMap<Handle, Graph>,
    pub(super) execs: HashMap<Handle, Exec>,
    random: u32,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::fresh()));

/// Handles are never used twice, not even after a reset.
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x10000);

thread_local! {
    /// The calling thread's context; 0 for none.
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
    /// Whether this thread holds the driver, as it does while it runs a host function.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's context; 0 for none.
pub fn current_context() -> Handle {
    CURRENT.get()
}

/// Makes a context the calling thread's.
pub fn set_current_context(context: Handle) {
    CURRENT.set(context);
}

/// `count` new handles in a row; the first of them.
pub fn new_handles(count: usize) -> Handle {
    NEXT_HANDLE.fetch_add(count, Ordering::Relaxed)
}

fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Marks this thread as one that holds the driver.
struct Inside;

impl Inside {
    fn enter() -> Outcome<Inside> {
        // A host function may not call the driver; the lock would never come free.
        if INSIDE.replace(true) { Err(Status::NOT_PERMITTED) } else { Ok(Inside) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Answers a call that needs no state. Nothing unwinds into C.
pub fn stateless(body: impl FnOnce() -> Outcome) -> c_int {
    let body = AssertUnwindSafe(|| {
        count(|counts| counts.calls += 1);
        faults::check_device()?;
        body()
    });
    code(catch_unwind(body).unwrap_or(Err(Status::UNKNOWN)))
}

/// Answers a call with the state, no context needed.
pub fn with_state(body: impl FnOnce(&mut Driver) -> Outcome) -> c_int {
    stateless(|| {
        let _inside = Inside::enter()?;
        body(&mut driver())
    })
}

/// Answers a call that gives a context back: it does so on a lost device too, whose error it answers then.
pub fn giving_back(body: impl FnOnce(&mut Driver) -> Outcome) -> c_int {
    let body = AssertUnwindSafe(|| {
        count(|counts| counts.calls += 1);
        let lost = faults::check_device();
        let _inside = Inside::enter()?;
        lost.and(body(&mut driver()))
    });
    code(catch_unwind(body).unwrap_or(Err(Status::UNKNOWN)))
}

/// Answers a call in the thread's context. The failure of a kernel answers every later call, as on a GPU.
pub fn in_context(call: Call, body: impl FnOnce(&mut Driver) -> Outcome) -> c_int {
    stateless(|| {
        let _inside = Inside::enter()?;
        let mut driver = driver();
        if !driver.has_context(current_context()) {
            return Err(Status::INVALID_CONTEXT);
        }
        driver.sticky.map_or(Ok(()), Err)?;
        faults::check_kind(call).inspect_err(|&status| driver.injected(call, status))?;
        let outcome = body(&mut driver);
        driver.sticky.map_or(outcome, Err)
    })
}

/// Drops everything and forgives every error, as a new process would find the device.
///
/// Errors: contexts are alive and `force` is not set.
pub fn reset_device(force: bool) -> Outcome {
    let _inside = Inside::enter()?;
    let mut driver = driver();
    if driver.has_any_context() && !force {
        return Err(Status::ILLEGAL_STATE);
    }
    let (users, contexts) = (driver.primary_users, std::mem::take(&mut driver.contexts));
    memory::abandon();
    *driver = Driver { primary_users: users, contexts, ..Driver::fresh() };
    faults::clear();
    super::report::clear();
    Ok(())
}

impl Driver {
    fn fresh() -> Driver {
        let mut driver = Driver::default();
        for stream in super::stream::DEFAULT_STREAMS {
            driver.streams.insert(stream, Stream::default());
        }
        driver
    }

    fn has_context(&self, context: Handle) -> bool {
        match context {
            PRIMARY => self.primary_users > 0,
            other => self.contexts.contains(&other),
        }
    }

    fn has_any_context(&self) -> bool {
        self.primary_users > 0 || !self.contexts.is_empty()
    }

    /// One more user of the primary context.
    pub fn retain_primary(&mut self) -> Handle {
        self.primary_users += 1;
        PRIMARY
    }

    /// One user of the primary context less.
    pub fn release_primary(&mut self) -> Outcome {
        self.primary_users = self.primary_users.checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
        self.close_if_unused();
        Ok(())
    }

    /// A context of its own. All contexts share the device's streams and memory.
    pub fn create_context(&mut self) -> Handle {
        let context = new_handles(1);
        self.contexts.insert(context);
        context
    }

    /// Ends a context made by [`create_context`](Self::create_context).
    pub fn destroy_context(&mut self, context: Handle) -> Outcome {
        if !self.contexts.remove(&context) {
            return Err(Status::INVALID_CONTEXT);
        }
        self.close_if_unused();
        Ok(())
    }

    /// The end of the last context resets the device, an error of a kernel included.
    fn close_if_unused(&mut self) {
        if self.has_any_context() {
            return;
        }
        // Nothing can be given back on a dead device.
        let dead = self.sticky.is_some() || faults::is_lost();
        if !dead {
            // What went wrong is reported, and there is nobody left to answer it to.
            self.drain_all().unwrap_or_default();
        }
        let bytes = memory::usage().bytes;
        let left = memory::abandon();
        if left > 0 && !dead {
            problem(&format!("the last context ended with {left} allocations ({bytes} bytes) not freed"));
            count(|counts| counts.leaked_allocations += left as u64);
        }
        *self = Driver::fresh();
    }

    /// Reports what a kernel or a copy did wrong, and lets every later call answer it.
    pub fn die(&mut self, status: Status, message: &str) {
        problem(message);
        self.sticky.get_or_insert(status);
    }

    /// What an injected failure leaves behind.
    fn injected(&mut self, call: Call, status: Status) {
        trace(|| format!("a call of kind {call:?} fails, as planned"));
        if call == Call::Sync {
            self.sticky = Some(status);
        }
    }

    /// A number for an order that the seed decides; always 0 with seed 0.
    pub fn random_below(&mut self, limit: usize) -> usize {
        let seed = settings().seed;
        if seed == 0 || limit == 0 {
            return 0;
        }
        if self.random == 0 {
            self.random = seed;
        }
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223).max(1);
        (self.random >> 8) as usize % limit
    }
}
