//! Device memory and pinned host memory.
//!
//! Each allocation is a mapping of its own that ends at a guard page, so that a kernel that runs past it faults.
//! Freed mappings stay unreadable for a while instead of being given to someone else: a late access faults too.
//! A lock of its own keeps this apart from the driver's state, for kernels look addresses up while that is held.

use super::report::problem;
use super::settings::settings;
use super::status::{Outcome, Status};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Alignment of device memory.
const ALIGNMENT: usize = 256;
const PAGE: usize = 4096;
/// Bytes of an allocation, from its start, that are filled when it is made. What lies behind them stays untouched,
/// so that a large allocation costs only the memory that a program uses; it reads as zeros.
const FILLED_BYTES_MAX: usize = 64 << 20;
/// From this size on, zeros are given by taking pages away rather than by writing.
const LAZY_ZEROS_BYTES_MIN: usize = 256 << 10;
/// Freed mappings that are kept unreadable.
const QUARANTINE: usize = 1024;

/// An allocation: where it starts is the key of the map that holds it.
#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: usize,
    mapping: usize,
    mapping_bytes: usize,
}

#[derive(Debug, Default)]
struct Memory {
    live: BTreeMap<usize, Block>,
    freed: VecDeque<(usize, Block)>,
    /// Blocks that a reset took away from a program that does not know yet.
    abandoned: HashSet<usize>,
    /// The same of pinned memory, which stays readable.
    abandoned_pinned: BTreeMap<usize, usize>,
    bytes: usize,
    peak_bytes: usize,
    pinned: BTreeMap<usize, Pinned>,
}

#[derive(Clone, Copy, Debug)]
struct Pinned {
    bytes: usize,
    /// Whether the memory is ours rather than the program's own.
    allocated: bool,
}

static MEMORY: LazyLock<RwLock<Memory>> = LazyLock::new(Default::default);

fn reading() -> RwLockReadGuard<'static, Memory> {
    MEMORY.read().unwrap_or_else(PoisonError::into_inner)
}

fn writing() -> RwLockWriteGuard<'static, Memory> {
    MEMORY.write().unwrap_or_else(PoisonError::into_inner)
}

/// What there is at this time.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Device allocations.
    pub allocations: usize,
    /// Bytes of those.
    pub bytes: usize,
    /// Most bytes at a time since the last [`reset_peak`].
    pub peak_bytes: usize,
    /// Pinned host allocations and registrations.
    pub pinned: usize,
}

/// What there is at this time.
pub fn usage() -> Usage {
    let memory = reading();
    Usage {
        allocations: memory.live.len(),
        bytes: memory.bytes,
        peak_bytes: memory.peak_bytes,
        pinned: memory.pinned.len(),
    }
}

/// Measures the peak from now on.
pub fn reset_peak() {
    let mut memory = writing();
    memory.peak_bytes = memory.bytes;
}

/// Takes device memory, its beginning filled with 0xff so that a read of what nobody wrote shows as NaN.
pub fn allocate(bytes: usize) -> Outcome<usize> {
    let limit = settings().memory_bytes;
    let mut memory = writing();
    let after = memory.bytes.checked_add(bytes).filter(|&after| after <= limit);
    let after = after.ok_or(Status::OUT_OF_MEMORY)?;
    let (start, block) = map(bytes)?;
    // The system gives addresses out again, once those of abandoned blocks leave the quarantine.
    memory.abandoned.remove(&start);
    memory.bytes = after;
    memory.peak_bytes = memory.peak_bytes.max(after);
    memory.live.insert(start, block);
    Ok(start)
}

fn map(bytes: usize) -> Outcome<(usize, Block)> {
    let room = bytes.max(1).next_multiple_of(ALIGNMENT);
    let mapping_bytes = room.next_multiple_of(PAGE) + 2 * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place of the system's choice touches no memory of ours; the part made
    // writable and filled lies inside it.
    unsafe {
        let mapping = libc::mmap(std::ptr::null_mut(), mapping_bytes, libc::PROT_NONE, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            return Err(Status::OUT_OF_MEMORY);
        }
        let inside = mapping.byte_add(PAGE);
        let readable = libc::PROT_READ | libc::PROT_WRITE;
        if libc::mprotect(inside, mapping_bytes - 2 * PAGE, readable) != 0 {
            libc::munmap(mapping, mapping_bytes);
            return Err(Status::OUT_OF_MEMORY);
        }
        let start = mapping.byte_add(mapping_bytes - PAGE - room);
        start.cast::<u8>().write_bytes(0xff, room.min(FILLED_BYTES_MAX));
        Ok((start as usize, Block { bytes, mapping: mapping as usize, mapping_bytes }))
    }
}

/// Writes bytes to device memory. Many zeros cost no memory.
///
/// # Safety
/// `to` lies inside a live allocation and `from` in readable memory, both for this many bytes, and nobody else uses
/// them meanwhile.
pub unsafe fn write(to: usize, from: usize, bytes: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        if bytes >= LAZY_ZEROS_BYTES_MIN && is_zero(from, bytes) {
            zero(to, bytes);
        } else {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        }
    }
}

/// Fills device memory with zeros. Whole pages of it cost no memory from then on.
///
/// # Safety
/// The bytes lie inside a live allocation, and nobody else uses them meanwhile.
pub unsafe fn zero(to: usize, bytes: usize) {
    let (first, end) = (to.next_multiple_of(PAGE), (to + bytes) / PAGE * PAGE);
    // SAFETY: the pages are whole ones of a private anonymous mapping, which read as zeros after this; the rest is
    // the caller's.
    unsafe {
        let lazy = bytes >= LAZY_ZEROS_BYTES_MIN
            && libc::madvise(first as *mut _, end - first, libc::MADV_DONTNEED) == 0;
        if lazy {
            (to as *mut u8).write_bytes(0, first - to);
            (end as *mut u8).write_bytes(0, to + bytes - end);
        } else {
            (to as *mut u8).write_bytes(0, bytes);
        }
    }
}

/// Whether there are zeros only: whether the first byte is one, and each byte equals the next. The comparison is the
/// C library's, since this crate is mostly built without optimisation.
///
/// # Safety
/// The bytes are readable; there is at least one.
unsafe fn is_zero(from: usize, bytes: usize) -> bool {
    let from = from as *const u8;
    // SAFETY: promised by the caller.
    unsafe { *from == 0 && libc::memcmp(from.cast(), from.add(1).cast(), bytes - 1) == 0 }
}

/// Gives device memory back.
///
/// Errors: an address at which no allocation starts; it is reported.
pub fn free(address: usize) -> Outcome {
    let mut memory = writing();
    if memory.abandoned.remove(&address) {
        return Ok(());
    }
    let Some(block) = memory.live.remove(&address) else {
        let what = memory.describe(address);
        drop(memory);
        problem(&format!("free of 0x{address:x}: {what}"));
        return Err(Status::INVALID_VALUE);
    };
    memory.bytes -= block.bytes;
    memory.retire(address, block);
    Ok(())
}

impl Memory {
    /// Makes a block unreadable, and forgets the oldest such one.
    fn retire(&mut self, address: usize, block: Block) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces exactly the mapping that `map` made for this block, to which nobody has a
        // reference: the driver copies through raw addresses under the driver's lock.
        unsafe {
            libc::mmap(block.mapping as *mut _, block.mapping_bytes, libc::PROT_NONE, flags, -1, 0);
        }
        self.freed.push_back((address, block));
        if self.freed.len() > QUARANTINE {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, block)) = self.freed.pop_front() {
            // SAFETY: the mapping is ours and unreadable already.
            unsafe {
                libc::munmap(block.mapping as *mut _, block.mapping_bytes);
            }
        }
    }

    fn holding(&self, address: usize) -> Option<(usize, usize)> {
        let (&start, block) = self.live.range(..=address).next_back()?;
        (address < start + block.bytes.max(1)).then_some((start, start + block.bytes))
    }

    fn pinned_holding(&self, address: usize) -> Option<(usize, usize)> {
        let (&start, pinned) = self.pinned.range(..=address).next_back()?;
        (address < start + pinned.bytes).then_some((start, start + pinned.bytes))
    }

    /// What is known of an address that was misused.
    fn describe(&self, address: usize) -> String {
        if let Some((start, end)) = self.holding(address) {
            let inside = address - start;
            return format!("it is {inside} bytes into an allocation of {} bytes", end - start);
        }
        let was =
            self.freed.iter().rev().find(|(start, b)| (*start..start + b.bytes.max(1)).contains(&address));
        match was {
            Some((start, block)) => {
                let inside = address - start;
                format!("it is {inside} bytes into an allocation of {} bytes that was freed", block.bytes)
            }
            None => "it is in no allocation".into(),
        }
    }
}

/// The allocation that holds an address: its start and end.
pub fn find(address: usize) -> Option<(usize, usize)> {
    reading().holding(address)
}

/// Checks that bytes lie inside one allocation of device memory.
///
/// Errors: a text that says what is there instead.
pub fn check_device(address: usize, bytes: usize) -> Result<(), String> {
    let memory = reading();
    let end = address.checked_add(bytes);
    match (memory.holding(address), end) {
        (Some((_, limit)), Some(end)) if end <= limit => Ok(()),
        _ if bytes == 0 => Ok(()),
        _ => Err(format!("{bytes} bytes at 0x{address:x}: {}", memory.describe(address))),
    }
}

/// Checks that bytes lie inside pinned host memory.
pub fn is_pinned(address: usize, bytes: usize) -> bool {
    let end = address.checked_add(bytes);
    reading().pinned_holding(address).zip(end).is_some_and(|((_, limit), end)| end <= limit)
}

/// What the engine asks: 1 and the bounds of the memory that holds an address, or 0. Kernels reach pinned host
/// memory too.
pub extern "C" fn lookup(address: usize, low: *mut usize, high: *mut usize) -> c_int {
    let memory = reading();
    let Some((start, end)) = memory.holding(address).or_else(|| memory.pinned_holding(address)) else {
        return 0;
    };
    // SAFETY: the engine passes two places of its own.
    unsafe {
        *low = start;
        *high = end;
    }
    1
}

/// Takes pinned host memory.
pub fn allocate_pinned(bytes: usize) -> Outcome<usize> {
    let layout = pinned_layout(bytes)?;
    // SAFETY: the layout's size is not 0.
    let start = unsafe { std::alloc::alloc(layout) } as usize;
    if start == 0 {
        return Err(Status::OUT_OF_MEMORY);
    }
    writing().pinned.insert(start, Pinned { bytes: layout.size(), allocated: true });
    Ok(start)
}

fn pinned_layout(bytes: usize) -> Outcome<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes.max(1), PAGE).map_err(|_| Status::OUT_OF_MEMORY)
}

/// Gives pinned host memory back.
pub fn free_pinned(address: usize) -> Outcome {
    let mut memory = writing();
    let live = memory.pinned.get(&address).filter(|pinned| pinned.allocated).map(|pinned| pinned.bytes);
    match live.or_else(|| memory.abandoned_pinned.remove(&address)) {
        Some(bytes) => {
            memory.pinned.remove(&address);
            let layout = pinned_layout(bytes)?;
            // SAFETY: allocated above with this layout and just taken out of the maps.
            unsafe { std::alloc::dealloc(address as *mut u8, layout) };
            Ok(())
        }
        None => {
            drop(memory);
            problem(&format!("free of pinned memory at 0x{address:x}: it is none, or freed twice"));
            Err(Status::INVALID_VALUE)
        }
    }
}

/// Takes the program's own memory as pinned.
pub fn register(address: usize, bytes: usize) -> Outcome {
    if address == 0 || bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    writing().pinned.insert(address, Pinned { bytes, allocated: false });
    Ok(())
}

/// Takes the program's own memory as ordinary again.
pub fn unregister(address: usize) -> Outcome {
    let mut memory = writing();
    match memory.pinned.get(&address) {
        Some(Pinned { allocated: false, .. }) => {
            memory.pinned.remove(&address);
            Ok(())
        }
        _ => Err(Status::NOT_REGISTERED),
    }
}

/// Takes everything away from a program that may still hold addresses; gives how many allocations there were, of
/// pinned memory too.
pub fn abandon() -> usize {
    let mut memory = writing();
    let live = std::mem::take(&mut memory.live);
    let pinned = std::mem::take(&mut memory.pinned);
    let (allocated, registered): (BTreeMap<_, _>, _) =
        pinned.into_iter().partition(|(_, pinned)| pinned.allocated);
    memory.pinned = registered;
    let count = live.len() + allocated.len();
    memory.abandoned_pinned.extend(allocated.into_iter().map(|(address, pinned)| (address, pinned.bytes)));
    for (address, block) in live {
        memory.abandoned.insert(address);
        memory.retire(address, block);
    }
    memory.bytes = 0;
    count
}
