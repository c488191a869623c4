//! Host memory that kernels read and write through raw pointers.
//!
//! Safe code sees [`Memory`] only: copies in and copies out, each under the buffer's own lock. A program
//! holds the locks of all its buffers while it runs, so that safe code cannot race with a kernel.

use crate::mapped;
use crate::mul_mat::panels::{Cache, Format, Packed};
use crate::shared::call::In;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Alignment of every owned buffer, in bytes: one cache line, and the widest vector.
pub const ALIGN_BYTES: usize = 64;

/// The system refused memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {bytes} bytes were refused")]
pub struct OutOfMemory {
    /// Size of the request.
    pub bytes: usize,
}

/// Host bytes: owned and writable, or borrowed from elsewhere (a mapped file) and read-only.
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
    turn: Mutex<Turn>,
    given_up: Condvar,
    /// Panels of the weights that lie here, for read-only bytes.
    panels: Cache,
}

/// Whose turn it is with the bytes.
#[derive(Default)]
struct Turn {
    taken: bool,
    waiting: usize,
}

enum Owner {
    /// Allocated here; freed on drop.
    Heap,
    /// The same, and never written any more.
    Frozen,
    /// Kept alive by somebody else's bytes, never written.
    Shared { _keep: Arc<dyn AsRef<[u8]> + Send + Sync> },
    /// Owned by a program in another language, which has promised to keep it.
    Foreign,
}

// SAFETY: owned bytes are reached under the lock or by a program that holds it; shared bytes are never
// written, and their owner is Send and Sync itself; who lends foreign bytes has promised the same for them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(start: NonNull<u8>, bytes: usize, owner: Owner) -> Memory {
        Memory {
            start,
            bytes,
            owner,
            turn: Mutex::default(),
            given_up: Condvar::new(),
            panels: Cache::default(),
        }
    }

    /// Owned bytes, all zero, aligned to [`ALIGN_BYTES`].
    ///
    /// Errors: the system refuses the memory.
    pub fn zeroed(bytes: usize) -> Result<Memory, OutOfMemory> {
        let layout = heap_layout(bytes).ok_or(OutOfMemory { bytes })?;
        // SAFETY: the layout has at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { bytes })?;
        Ok(Memory::new(start, bytes, Owner::Heap))
    }

    /// Read-only bytes of another owner, without a copy.
    pub fn shared(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Memory {
        let slice = (*owner).as_ref();
        let (start, bytes) = (NonNull::from(slice).cast(), slice.len());
        Memory::new(start, bytes, Owner::Shared { _keep: owner })
    }

    /// Writable bytes that another program owns, without a copy.
    ///
    /// # Safety
    /// While the memory lives, `start` is valid for reads and writes of `bytes` bytes (for reads, if no call writes
    /// there), and while a program over it runs or bytes are copied, nobody else writes there.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize) -> Memory {
        Memory::new(start, bytes, Owner::Foreign)
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether the bytes may be written.
    pub fn is_writable(&self) -> bool {
        !matches!(self.owner, Owner::Shared { .. } | Owner::Frozen)
    }

    /// Read-only from now on: weights that lie here are packed once.
    pub fn freeze(mut self) -> Memory {
        if let Owner::Heap = self.owner {
            self.owner = Owner::Frozen;
        }
        self
    }

    /// The panels of the weight `a`, which lies at this offset; `None` where somebody may write it, since they would
    /// not follow.
    ///
    /// Pages of a mapped file that have been packed are given back to the system, which brings them again when
    /// something else reads there: the panels take their place, and not more memory. Owned bytes stay beside theirs.
    ///
    /// Errors: the system refuses the memory.
    pub(crate) fn panels(
        &self,
        offset_bytes: usize,
        a: &In,
        format: Format,
        workers: usize,
    ) -> Result<Option<Arc<Packed>>, OutOfMemory> {
        // A repeated row is a short weight, but its panels may be longer than all memory.
        if self.is_writable() || a.layout().may_overlap() {
            return Ok(None);
        }
        let (panels, is_new) = self.panels.panels(offset_bytes, a, format, workers)?;
        if is_new {
            mapped::release(self.address() + offset_bytes, a.layout().span_bytes());
        }
        Ok(Some(panels))
    }

    /// Copies bytes in, starting at `offset`.
    ///
    /// Panics when the range lies outside, or the memory is read-only; callers have checked both.
    pub fn write(&self, offset: usize, source: &[u8]) {
        assert!(self.is_writable(), "the bytes of a mapped file are read-only");
        assert!(offset <= self.bytes && source.len() <= self.bytes - offset, "write past the end");
        let _held = self.hold();
        // SAFETY: the range was checked; the lock keeps kernels and other copies away.
        unsafe { self.start.as_ptr().add(offset).copy_from_nonoverlapping(source.as_ptr(), source.len()) }
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// Panics when the range lies outside; callers have checked it.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        assert!(offset <= self.bytes && target.len() <= self.bytes - offset, "read past the end");
        let _held = self.hold();
        // SAFETY: the range was checked; the lock keeps kernels and other copies away.
        unsafe { target.as_mut_ptr().copy_from_nonoverlapping(self.start.as_ptr().add(offset), target.len()) }
    }

    /// Sets a range to zero bytes.
    ///
    /// Panics as [`Memory::write`] does.
    pub fn clear(&self, offset: usize, bytes: usize) {
        assert!(self.is_writable(), "the bytes of a mapped file are read-only");
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "clear past the end");
        let _held = self.hold();
        // SAFETY: the range was checked; the lock keeps kernels and other copies away.
        unsafe { self.start.as_ptr().add(offset).write_bytes(0, bytes) }
    }

    /// The first byte, for kernels; valid for [`Memory::len`] bytes while `self` lives.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Keeps copies and other programs away until the guard is dropped.
    fn hold(&self) -> Hold<'_> {
        self.lock();
        Hold(self)
    }

    /// Keeps copies and other programs away until [`Memory::unlock`]. A program locks all its buffers, as many as a
    /// model has states, and taking memory for their guards is what a run must not do.
    pub(crate) fn lock(&self) {
        // A panic while it was locked leaves bytes, not an invariant, half-written; guards unlock on the way out.
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while turn.taken {
            turn.waiting += 1;
            turn = self.given_up.wait(turn).unwrap_or_else(PoisonError::into_inner);
            turn.waiting -= 1;
        }
        turn.taken = true;
    }

    /// Lets the next one in. Called once for each [`Memory::lock`].
    pub(crate) fn unlock(&self) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.taken = false;
        // Telling nobody would still be a call of the system.
        if turn.waiting > 0 {
            self.given_up.notify_one();
        }
    }
}

struct Hold<'a>(&'a Memory);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Owner::Heap | Owner::Frozen, Some(layout)) = (&self.owner, heap_layout(self.bytes)) {
            // SAFETY: allocated in `zeroed` with the same layout, and freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_writable() { "owned" } else { "shared" };
        write!(f, "Memory({} bytes, {kind})", self.bytes)
    }
}

fn heap_layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGN_BYTES).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_and_out() {
        let memory = Memory::zeroed(16).unwrap();
        memory.write(4, &[1, 2, 3]);
        let mut out = [9; 4];
        memory.read(3, &mut out);
        assert_eq!(out, [0, 1, 2, 3]);
        memory.clear(5, 1);
        memory.read(3, &mut out);
        assert_eq!(out, [0, 1, 0, 3]);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert_eq!(Memory::zeroed(usize::MAX).unwrap_err(), OutOfMemory { bytes: usize::MAX });
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn a_read_past_the_end_is_refused() {
        Memory::zeroed(4).unwrap().read(2, &mut [0; 3]);
    }
}
