//! Buffers that the plugin gives to the host, and the host's own, as buffers of our backends.

use crate::abi::{self, BufferTable};
use crate::guard::guarded;
use crate::host::{Level, is_host_memory, log};
use crate::tensor::Tensor;
use ssmgraph::backend::{Backend, BackendError, Buffer, CpuBackend, Memory};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What buffers in memory of a device, and tensors in them, are aligned to.
pub const DEVICE_ALIGN_BYTES: usize = 256;
/// The same in the host's memory: hosts count on the buffer's own address, so it is no more than [`Memory`] gives.
pub const HOST_ALIGN_BYTES: usize = 64;
/// Bytes that a fill writes at a time.
const FILL_BYTES: usize = 1 << 20;

/// What holds buffers that it does not own, and lets go of one that the host frees: the memory shall be free at once,
/// since a host frees a buffer to make room for a larger one.
pub trait Keeper: Send + Sync {
    /// Lets go of a buffer.
    fn forget(&self, buffer: &Arc<dyn Buffer>);
}

/// Tells a keeper, as long as it lives, of buffers that end.
pub fn tell_of_ends(keeper: Weak<dyn Keeper>) {
    let mut keepers = keepers();
    keepers.retain(|keeper| keeper.strong_count() > 0);
    keepers.push(keeper);
}

fn keepers() -> MutexGuard<'static, Vec<Weak<dyn Keeper>>> {
    static KEEPERS: Mutex<Vec<Weak<dyn Keeper>>> = Mutex::new(Vec::new());
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the context of each of our buffers points to.
pub struct Storage {
    buffer: Arc<dyn Buffer>,
    /// What the host takes for the address of the first byte.
    base: usize,
}

impl Storage {
    /// Memory of the host, at its own address.
    pub fn host(memory: Memory) -> Storage {
        let base = memory.address();
        Storage { buffer: CpuBackend::buffer(Arc::new(memory)), base }
    }

    /// Memory of a device that the host cannot reach: its addresses are names of places, which nobody follows.
    ///
    /// Errors: memory was refused.
    pub fn device(backend: &dyn Backend, bytes: usize) -> Result<Storage, BackendError> {
        /// Far from any address of the host.
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 52);
        let buffer = backend.allocate(bytes)?;
        let room = (bytes / DEVICE_ALIGN_BYTES + 2).saturating_mul(DEVICE_ALIGN_BYTES);
        Ok(Storage { buffer, base: NEXT.fetch_add(room, Ordering::Relaxed) })
    }

    /// What our backends read and write.
    pub fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }

    /// What the host takes for the address of the first byte.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Where an address of the host lies in the buffer.
    ///
    /// Errors: before its start.
    pub fn offset(&self, address: usize) -> Result<usize, String> {
        address.checked_sub(self.base).ok_or_else(|| "a tensor lies before its buffer".to_owned())
    }

    /// Gives the storage to the host as a buffer of this type; null when the host's memory is refused.
    pub fn into_host(self, buffer_type: abi::BufferTypePointer, size: usize) -> *mut abi::Buffer {
        let context = Box::into_raw(Box::new(self));
        let buffer = crate::host::new_buffer(buffer_type, TABLE, context.cast(), size);
        if buffer.is_null() {
            // SAFETY: made above, and nobody else has it.
            drop(unsafe { Box::from_raw(context) });
        }
        buffer
    }
}

/// The storage of one of our buffers; `None` for buffers that others made.
///
/// # Safety
/// `buffer` points to a living buffer, and stays so for `'a`.
pub unsafe fn storage_of<'a>(buffer: *mut abi::Buffer) -> Option<&'a Storage> {
    // SAFETY: the caller's promise.
    let buffer = unsafe { buffer.as_ref() }?;
    // SAFETY: `into_host` put a storage into each buffer of our types, which `free` alone takes away.
    crate::registry::owns(buffer.buffer_type).then(|| unsafe { &*buffer.context.cast::<Storage>() })
}

/// A buffer that another backend of the host made, in memory that the plugin can reach.
///
/// Errors: it lies in memory of a device, it has no address.
///
/// # Safety
/// `buffer` points to a living buffer, which stays while the result is used.
pub unsafe fn foreign(buffer: *mut abi::Buffer) -> Result<Storage, String> {
    // SAFETY: the caller's promise.
    let (table, size, buffer_type) = unsafe { ((*buffer).table, (*buffer).size, (*buffer).buffer_type) };
    // SAFETY: a living buffer has a type of the host's version.
    if buffer_type.is_null() || !unsafe { is_host_memory(buffer_type, crate::version()) } {
        return Err("a buffer lies in memory that only its own device reaches".into());
    }
    // SAFETY: the buffer's own function on itself.
    let start = table.get_base.map(|get_base| unsafe { get_base(buffer) });
    let start = start.and_then(|start| NonNull::new(start.cast::<u8>())).ok_or("a buffer has no address")?;
    // SAFETY: the host keeps the buffer while its tensors are computed, and leaves it alone meanwhile.
    Ok(Storage::host(unsafe { Memory::foreign(start, size) }))
}

const TABLE: BufferTable = BufferTable {
    free_buffer: Some(free),
    get_base: Some(base),
    init_tensor: None,
    memset_tensor: Some(memset),
    set_tensor: Some(set),
    get_tensor: Some(get),
    set_tensor_2d: None,
    get_tensor_2d: None,
    cpy_tensor: None,
    clear: Some(clear),
    reset: None,
};

unsafe extern "C" fn free(buffer: *mut abi::Buffer) {
    guarded("free_buffer", (), || {
        // SAFETY: `into_host` made the context; ggml frees a buffer once.
        let storage = unsafe { Box::from_raw((*buffer).context.cast::<Storage>()) };
        for keeper in keepers().iter().filter_map(Weak::upgrade) {
            keeper.forget(&storage.buffer);
        }
    });
}

unsafe extern "C" fn base(buffer: *mut abi::Buffer) -> *mut c_void {
    // SAFETY: the context of our buffers is a storage.
    unsafe { (*(*buffer).context.cast::<Storage>()).base as *mut c_void }
}

/// Runs a copy at `offset` into a tensor, and logs why it failed.
///
/// # Safety
/// `buffer` is one of ours and `tensor` lies in it.
unsafe fn at(
    entry: &'static str,
    buffer: *mut abi::Buffer,
    tensor: *const abi::Tensor,
    offset: usize,
    copy: impl FnOnce(&dyn Buffer, usize) -> Result<(), BackendError>,
) {
    guarded(entry, (), || {
        // SAFETY: the caller's promise.
        let (storage, tensor) = unsafe { (storage_of(buffer), Tensor::new(tensor)) };
        let (Some(storage), Some(tensor)) = (storage, tensor) else { return };
        let place = storage.offset(tensor.address()).map(|start| start.saturating_add(offset));
        let done = place.and_then(|place| copy(&*storage.buffer, place).map_err(|error| error.to_string()));
        if let Err(error) = done {
            log(Level::Error, &format!("{entry} of {}: {error}", tensor.name()));
        }
    });
}

/// Writes one byte over a range, piece by piece.
fn fill(buffer: &dyn Buffer, mut offset: usize, mut bytes: usize, value: u8) -> Result<(), BackendError> {
    let piece = vec![value; bytes.min(FILL_BYTES)];
    while bytes > 0 {
        let count = bytes.min(FILL_BYTES);
        buffer.write(offset, &piece[..count])?;
        (offset, bytes) = (offset + count, bytes - count);
    }
    Ok(())
}

unsafe extern "C" fn memset(
    buffer: *mut abi::Buffer,
    tensor: *mut abi::Tensor,
    value: u8,
    offset: usize,
    bytes: usize,
) {
    // SAFETY: ggml calls a buffer's table with that buffer and its tensors.
    unsafe { at("memset_tensor", buffer, tensor, offset, |buffer, place| fill(buffer, place, bytes, value)) }
}

unsafe extern "C" fn set(
    buffer: *mut abi::Buffer,
    tensor: *mut abi::Tensor,
    source: *const c_void,
    offset: usize,
    bytes: usize,
) {
    if bytes == 0 {
        return;
    }
    // SAFETY: ggml passes `bytes` readable bytes.
    let source = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) };
    // SAFETY: as in `memset`.
    unsafe { at("set_tensor", buffer, tensor, offset, |buffer, place| buffer.write(place, source)) }
}

unsafe extern "C" fn get(
    buffer: *mut abi::Buffer,
    tensor: *const abi::Tensor,
    target: *mut c_void,
    offset: usize,
    bytes: usize,
) {
    if bytes == 0 {
        return;
    }
    // SAFETY: ggml passes `bytes` writable bytes, which it has all to itself.
    let target = unsafe { std::slice::from_raw_parts_mut(target.cast::<u8>(), bytes) };
    // SAFETY: as in `memset`.
    unsafe { at("get_tensor", buffer, tensor, offset, |buffer, place| buffer.read(place, target)) }
}

unsafe extern "C" fn clear(buffer: *mut abi::Buffer, value: u8) {
    guarded("clear", (), || {
        // SAFETY: the context of our buffers is a storage.
        let Some(storage) = (unsafe { storage_of(buffer) }) else { return };
        // SAFETY: the buffer lives.
        let bytes = unsafe { (*buffer).size };
        if let Err(error) = fill(&*storage.buffer, 0, bytes, value) {
            log(Level::Error, &format!("clear: {error}"));
        }
    });
}
