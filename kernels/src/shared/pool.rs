//! The thread pool of the process.
//!
//! A run enters the pool once: every worker walks the same list of nodes, takes its share of each, and meets
//! the others at a barrier between nodes. Waiting spins for a bounded time and then sleeps, so that an idle
//! pool costs nothing and a machine with fewer cores than workers still makes progress.

use once_cell::sync::Lazy;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Spins before a waiting worker goes to sleep: some microseconds, the length of a small node.
const SPINS_MAX: u32 = 4_000;

/// Largest number of workers a run may ask for.
pub const WORKERS_MAX: usize = 256;

/// A worker panicked; the run was given up on all of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a kernel panicked: {0}")]
pub struct KernelPanic(pub String);

/// One worker's view of a run.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// Which worker this is, below `count`.
    pub index: usize,
    /// How many workers take part.
    pub count: usize,
    barrier: Option<&'a Barrier>,
}

impl Worker<'_> {
    /// A worker that does everything itself.
    pub const ALONE: Worker<'static> = Worker { index: 0, count: 1, barrier: None };

    /// This worker's part of `units` equal pieces of work: consecutive, in order of the worker's index.
    pub fn share(&self, units: usize) -> Range<usize> {
        let cut = |index: usize| (units as u128 * index as u128 / self.count as u128) as usize;
        cut(self.index)..cut(self.index + 1)
    }

    /// Waits until every worker of the run has come here. All workers must call it equally often.
    pub fn barrier(&self) {
        if let Some(barrier) = self.barrier {
            barrier.wait(self.count);
        }
    }
}

/// A meeting point that can be used again at once.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    generation: AtomicUsize,
    given_up: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

impl Barrier {
    fn wait(&self, count: usize) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.store(0, Ordering::Relaxed);
            self.advance();
        } else {
            wait_until(&self.sleepers, &self.wake, || {
                self.generation.load(Ordering::Acquire) != generation || self.given_up.load(Ordering::Acquire)
            });
        }
        if self.given_up.load(Ordering::Acquire) {
            // No message of its own: the first panic has been told already.
            std::panic::resume_unwind(Box::new(GIVEN_UP));
        }
    }

    fn advance(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        wake_all(&self.sleepers, &self.wake);
    }

    /// Releases everyone who waits or will wait: a worker is not coming.
    fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        wake_all(&self.sleepers, &self.wake);
    }
}

/// What a worker panics with when another one did first; never reported.
const GIVEN_UP: &str = "another worker panicked";

/// Spins, then sleeps, until `ready`. Whoever makes it ready calls [`wake_all`] with the same pair.
fn wait_until(sleepers: &Mutex<usize>, wake: &Condvar, ready: impl Fn() -> bool) {
    for spin in 0..SPINS_MAX {
        if ready() {
            return;
        }
        // On a machine with fewer cores than workers the one we wait for needs our core.
        if spin % 256 == 255 { thread::yield_now() } else { std::hint::spin_loop() }
    }
    let mut count = sleepers.lock().unwrap_or_else(PoisonError::into_inner);
    *count += 1;
    while !ready() {
        count = wake.wait(count).unwrap_or_else(PoisonError::into_inner);
    }
    *count -= 1;
}

fn wake_all(sleepers: &Mutex<usize>, wake: &Condvar) {
    if *sleepers.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
        wake.notify_all();
    }
}

type Job<'a> = &'a (dyn Fn(Worker<'_>) + Sync);

/// The state that the caller and the helper threads share.
#[derive(Default)]
struct Board {
    /// Number of the current run; helpers start when it changes.
    run: AtomicUsize,
    /// Helpers that have finished the current run.
    finished: AtomicUsize,
    job: Mutex<Option<Posted>>,
    panic: Mutex<Option<String>>,
    barrier: Barrier,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

#[derive(Clone, Copy)]
struct Posted {
    job: Job<'static>,
    count: usize,
}

/// The pool. There is one, [`Pool::global`]; runs queue up for it.
pub struct Pool {
    board: &'static Board,
    /// Number of helper threads started so far; the lock is held for the length of a run.
    helpers: Mutex<usize>,
}

thread_local! {
    /// Whether this thread is at work for a run.
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
}

static GLOBAL: Lazy<Pool> = Lazy::new(|| Pool { board: Box::leak(Box::default()), helpers: Mutex::new(0) });

impl Pool {
    /// The process's pool. Threads start when a run first needs them and stay for the life of the process.
    pub fn global() -> &'static Pool {
        &GLOBAL
    }

    /// The number of workers used when nobody says otherwise: the cores this process may use.
    pub fn default_workers() -> usize {
        thread::available_parallelism().map_or(1, |n| n.get()).min(WORKERS_MAX)
    }

    /// Runs `job` once on each of `count` workers (1 to [`WORKERS_MAX`]), the calling thread among them.
    /// If the system refuses threads, fewer workers do the same work.
    ///
    /// Errors: a worker panicked, or the call came from inside a run, which would wait for itself.
    pub fn run(&self, count: usize, job: Job<'_>) -> Result<(), KernelPanic> {
        if IN_RUN.replace(true) {
            return Err(KernelPanic("a run was started from inside a run".into()));
        }
        let outcome = self.run_once(count, job);
        IN_RUN.set(false);
        outcome
    }

    fn run_once(&self, count: usize, job: Job<'_>) -> Result<(), KernelPanic> {
        let mut helpers = self.helpers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = 1 + self.start_helpers(&mut helpers, count.clamp(1, WORKERS_MAX) - 1);
        if count == 1 {
            return catch_unwind(AssertUnwindSafe(|| job(Worker::ALONE)))
                .map_err(|panic| KernelPanic(panic_text(&*panic)));
        }
        let board = self.board;
        // SAFETY: helpers use the job only between here and the wait for `finished` below, which is reached
        // even when the job panics; so the borrow outlives every use.
        let job: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        *lock(&board.panic) = None;
        board.barrier.given_up.store(false, Ordering::Release);
        board.barrier.arrived.store(0, Ordering::Release);
        board.finished.store(0, Ordering::Release);
        *lock(&board.job) = Some(Posted { job, count });
        board.run.fetch_add(1, Ordering::AcqRel);
        wake_all(&board.sleepers, &board.wake);
        board.work(job, 0, count);
        wait_until(&board.sleepers, &board.wake, || board.finished.load(Ordering::Acquire) == *helpers);
        match lock(&board.panic).take() {
            Some(text) => Err(KernelPanic(text)),
            None => Ok(()),
        }
    }

    /// Makes sure that up to `wanted` helpers exist; returns how many of them can take part.
    fn start_helpers(&self, helpers: &mut usize, wanted: usize) -> usize {
        while *helpers < wanted {
            let (board, index) = (self.board, *helpers + 1);
            let seen = board.run.load(Ordering::Acquire);
            let name = format!("ssmgraph-{index}");
            if thread::Builder::new().name(name).spawn(move || board.help(index, seen)).is_err() {
                break;
            }
            *helpers += 1;
        }
        wanted.min(*helpers)
    }
}

impl Board {
    fn help(&self, index: usize, mut seen: usize) {
        IN_RUN.set(true);
        loop {
            wait_until(&self.sleepers, &self.wake, || self.run.load(Ordering::Acquire) != seen);
            seen = self.run.load(Ordering::Acquire);
            let posted = *lock(&self.job);
            if let Some(Posted { job, count }) = posted.filter(|posted| index < posted.count) {
                self.work(job, index, count);
            }
            self.finished.fetch_add(1, Ordering::AcqRel);
            wake_all(&self.sleepers, &self.wake);
        }
    }

    fn work(&self, job: Job<'_>, index: usize, count: usize) {
        let worker = Worker { index, count, barrier: Some(&self.barrier) };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(worker))) {
            let text = panic_text(&*panic);
            if text != GIVEN_UP {
                lock(&self.panic).get_or_insert(text);
            }
            self.barrier.give_up();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
        .unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for count in [1, 2, 3, 7] {
            let mut next = 0;
            for index in 0..count {
                let share = Worker { index, count, barrier: None }.share(10);
                assert_eq!(share.start, next);
                next = share.end;
            }
            assert_eq!(next, 10);
        }
    }

    #[test]
    fn barriers_order_the_phases() {
        for count in [1, 2, 7] {
            let sum = AtomicUsize::new(0);
            Pool::global()
                .run(count, &|worker| {
                    for phase in 0..200 {
                        sum.fetch_add(1, Ordering::Relaxed);
                        worker.barrier();
                        assert_eq!(sum.load(Ordering::Relaxed), worker.count * (phase + 1));
                        worker.barrier();
                    }
                })
                .unwrap();
            assert_eq!(sum.load(Ordering::Relaxed), count * 200);
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let pool = Pool::global();
        for index in 0..3 {
            let error = pool
                .run(3, &|worker| {
                    assert!(worker.index != index, "worker {index} fails");
                    worker.barrier();
                })
                .unwrap_err();
            assert_eq!(error.0, format!("worker {index} fails"));
        }
        pool.run(3, &|worker| worker.barrier()).unwrap();
    }

    #[test]
    fn a_run_inside_a_run_is_an_error_not_a_deadlock() {
        let inner = Mutex::new(Vec::new());
        Pool::global().run(2, &|_| lock(&inner).push(Pool::global().run(1, &|_| {}))).unwrap();
        let inner = inner.into_inner().unwrap();
        assert!(inner.iter().all(Result::is_err), "{inner:?}");
    }

    #[test]
    fn several_threads_may_run_at_once() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        Pool::global().run(2, &|worker| worker.barrier()).unwrap();
                    }
                });
            }
        });
    }
}
