//! Device memory: a pool of blocks, buffers on it, and copies through page-locked staging on a stream of
//! their own.
//!
//! Copies are queued, not waited for: a program that starts later waits for them with one event. Programs
//! hold their buffers and wait for their own end, so that reading a buffer needs no more than the copy stream.

use super::driver::{Context, CudaError, DeviceMemory, Event, Pinned, Stream};
use super::{Device, backend_error};
use crate::backend::{BackendError, Buffer, check_range};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks start and end at multiples of this many bytes.
const GRAIN: usize = 256;

/// Above this size, blocks come in multiples of it, so that near sizes share one.
const LARGE: usize = 1 << 20;

/// Most bytes of free blocks that the pool keeps.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// Bytes of one piece of staging.
const CHUNK_BYTES: usize = 1 << 20;

/// Pieces of staging: one is filled while the device reads the others.
const CHUNKS: usize = 4;

/// Free blocks by size.
#[derive(Default)]
pub struct Pool {
    free: BTreeMap<usize, Vec<DeviceMemory>>,
    free_bytes: usize,
}

impl Pool {
    fn take(&mut self, bytes: usize) -> Option<DeviceMemory> {
        let (&size, _) = self.free.range(bytes..).next().filter(|(size, _)| **size <= bytes + bytes / 4)?;
        let blocks = self.free.get_mut(&size).expect("just found");
        let block = blocks.pop().expect("an empty list is removed");
        if blocks.is_empty() {
            self.free.remove(&size);
        }
        self.free_bytes -= size;
        Some(block)
    }

    /// Keeps a block, and gives back those for which there is no room.
    fn put(&mut self, block: DeviceMemory) -> Vec<DeviceMemory> {
        self.free_bytes += block.len();
        self.free.entry(block.len()).or_default().push(block);
        let mut surplus = Vec::new();
        while self.free_bytes > KEPT_BYTES_MAX {
            let (_, blocks) = self.free.pop_last().expect("free bytes are in some block");
            self.free_bytes -= blocks.iter().map(DeviceMemory::len).sum::<usize>();
            surplus.extend(blocks);
        }
        surplus
    }

    fn drain(&mut self) -> Vec<DeviceMemory> {
        self.free_bytes = 0;
        std::mem::take(&mut self.free).into_values().flatten().collect()
    }
}

/// A block of a device's pool; it goes back there.
pub struct Block {
    device: Arc<Device>,
    memory: Option<DeviceMemory>,
}

impl Block {
    /// A block of at least `bytes` bytes with undefined contents. Without room, free blocks are given back
    /// to the driver first.
    ///
    /// Errors: the driver's.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Block, CudaError> {
        let grain = if bytes > LARGE { LARGE } else { GRAIN };
        let size = bytes.max(1).checked_next_multiple_of(grain);
        let size = size.ok_or_else(|| CudaError::before("cuMemAlloc", "more bytes than can be addressed"))?;
        device.context.enter()?;
        let taken = lock(&device.pool).take(size);
        let memory = match taken {
            Some(memory) => memory,
            None => match DeviceMemory::new(&device.context, size) {
                Err(error) if error.is_out_of_memory() => {
                    let free = lock(&device.pool).drain();
                    device.release(free)?;
                    DeviceMemory::new(&device.context, size)?
                }
                result => result?,
            },
        };
        Ok(Block { device: device.clone(), memory: Some(memory) })
    }

    /// Its first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceMemory::address)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let surplus = lock(&self.device.pool).put(memory);
        let _ = self.device.release(surplus);
    }
}

/// The copy stream with its staging.
pub struct Copies {
    stream: Stream,
    chunks: Vec<Chunk>,
    current: usize,
    /// The end of everything queued so far, once `mark` was called.
    end: Event,
    queued_since_mark: bool,
    marked: bool,
}

struct Chunk {
    memory: Pinned,
    used: usize,
    /// Where the stream has read the whole chunk.
    read: Event,
    in_flight: bool,
}

impl Copies {
    /// A stream with its staging.
    ///
    /// Errors: the driver's.
    pub fn new(context: &Arc<Context>) -> Result<Copies, CudaError> {
        let chunk = |_| {
            let memory = Pinned::new(context, CHUNK_BYTES)?;
            Ok(Chunk { memory, used: 0, read: Event::new(context)?, in_flight: false })
        };
        Ok(Copies {
            stream: Stream::new(context)?,
            chunks: (0..CHUNKS).map(chunk).collect::<Result<_, _>>()?,
            current: 0,
            end: Event::new(context)?,
            queued_since_mark: false,
            marked: false,
        })
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// The bytes lie in device memory that stays until the stream is synchronised.
    unsafe fn write(&mut self, mut target: u64, mut source: &[u8]) -> Result<(), CudaError> {
        while !source.is_empty() {
            if self.chunks[self.current].used == CHUNK_BYTES {
                self.next_chunk()?;
            }
            let chunk = &mut self.chunks[self.current];
            let start = chunk.used;
            let bytes = source.len().min(CHUNK_BYTES - start);
            chunk.memory.bytes_mut()[start..start + bytes].copy_from_slice(&source[..bytes]);
            // SAFETY: the target is promised by the caller; this part of the chunk is not written again
            // before the stream has read it.
            unsafe { self.stream.upload(&chunk.memory, start..start + bytes, target)? };
            chunk.used += bytes;
            self.queued_since_mark = true;
            target += bytes as u64;
            source = &source[bytes..];
        }
        Ok(())
    }

    /// Goes on to the next chunk, once the stream has read it.
    fn next_chunk(&mut self) -> Result<(), CudaError> {
        let filled = &mut self.chunks[self.current];
        filled.read.record(&self.stream)?;
        filled.in_flight = true;
        self.current = (self.current + 1) % self.chunks.len();
        let next = &mut self.chunks[self.current];
        if next.in_flight {
            next.read.synchronize()?;
            next.in_flight = false;
        }
        next.used = 0;
        Ok(())
    }

    /// Copies from the device, and waits.
    ///
    /// # Safety
    /// The bytes lie in device memory.
    unsafe fn read(&mut self, mut source: u64, target: &mut [u8]) -> Result<(), CudaError> {
        self.synchronize()?;
        for piece in target.chunks_mut(CHUNK_BYTES) {
            let staging = &self.chunks[self.current].memory;
            // SAFETY: promised by the caller; nothing else uses the chunk after the wait above.
            unsafe { self.stream.download(source, staging, piece.len())? };
            self.stream.synchronize()?;
            piece.copy_from_slice(&staging.bytes()[..piece.len()]);
            source += piece.len() as u64;
        }
        Ok(())
    }

    /// Waits for everything queued; all staging is free then.
    pub fn synchronize(&mut self) -> Result<(), CudaError> {
        self.stream.synchronize()?;
        for chunk in &mut self.chunks {
            chunk.in_flight = false;
        }
        self.chunks[self.current].used = 0;
        Ok(())
    }

    /// Lets a stream wait for everything queued so far.
    ///
    /// Errors: the driver's.
    pub fn let_wait(&mut self, other: &Stream) -> Result<(), CudaError> {
        if self.queued_since_mark {
            self.end.record(&self.stream)?;
            self.queued_since_mark = false;
            self.marked = true;
        }
        if self.marked {
            other.wait(&self.end)?;
        }
        Ok(())
    }
}

/// A buffer in device memory.
pub struct CudaBuffer {
    block: Block,
    bytes: usize,
    read_only: bool,
    /// Held while the bytes are copied and by programs while they run: a kernel may rely on what it has checked.
    in_use: Mutex<()>,
}

impl CudaBuffer {
    fn new(device: &Arc<Device>, bytes: usize, read_only: bool) -> Result<CudaBuffer, CudaError> {
        Ok(CudaBuffer { block: Block::new(device, bytes)?, bytes, read_only, in_use: Mutex::new(()) })
    }

    /// A buffer of zeros.
    ///
    /// Errors: the driver's.
    pub fn zeroed(device: &Arc<Device>, bytes: usize) -> Result<CudaBuffer, CudaError> {
        let buffer = CudaBuffer::new(device, bytes, false)?;
        let mut copies = lock(&device.copies);
        if bytes > 0 {
            // SAFETY: the buffer is this long, and blocks are given back only after a wait for the stream.
            unsafe { copies.stream.zero(buffer.address(), bytes)? };
            copies.queued_since_mark = true;
        }
        drop(copies);
        Ok(buffer)
    }

    /// A read-only buffer with these contents.
    ///
    /// Errors: the driver's.
    pub fn holding(device: &Arc<Device>, contents: &[u8]) -> Result<CudaBuffer, CudaError> {
        let buffer = CudaBuffer::new(device, contents.len(), true)?;
        // SAFETY: as in `zeroed`.
        unsafe { lock(&device.copies).write(buffer.address(), contents)? };
        Ok(buffer)
    }

    /// Its first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.block.address()
    }

    /// Whether it belongs to this device.
    pub fn is_on(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.block.device, device)
    }

    /// Whether nobody may write it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Keeps others from copying or running on the bytes. Who holds several buffers takes them in the order of
    /// their addresses, and the device's own locks after them.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        lock(&self.in_use)
    }
}

impl Buffer for CudaBuffer {
    fn len(&self) -> usize {
        self.bytes
    }

    fn write(&self, offset: usize, source: &[u8]) -> Result<(), BackendError> {
        let device = &self.block.device;
        check_range(&device.name, offset, source.len(), self.bytes)?;
        if self.read_only {
            return Err(device.other("weights on the device are read-only"));
        }
        let write = || {
            let _held = self.hold();
            device.context.enter()?;
            // SAFETY: the range was checked; blocks are given back only after a wait for the copy stream.
            unsafe { lock(&device.copies).write(self.address() + offset as u64, source) }
        };
        write().map_err(|error| backend_error(&device.name, error, source.len()))
    }

    fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), BackendError> {
        let device = &self.block.device;
        check_range(&device.name, offset, target.len(), self.bytes)?;
        let bytes = target.len();
        let mut read = || {
            let _held = self.hold();
            device.context.enter()?;
            // SAFETY: the range was checked; a program that writes the buffer holds it until its work is done.
            unsafe { lock(&device.copies).read(self.address() + offset as u64, target) }
        };
        read().map_err(|error| backend_error(&device.name, error, bytes))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The guarded value, whatever became of an earlier holder.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
