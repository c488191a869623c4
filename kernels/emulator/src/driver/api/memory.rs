//! Device memory, pinned host memory, copies and fills.

use super::place::Out;
use crate::driver::counts::count;
use crate::driver::faults::Call;
use crate::driver::memory;
use crate::driver::settings::settings;
use crate::driver::state::{Driver, Handle, in_context, stateless};
use crate::driver::status::{Outcome, Status};
use crate::driver::work::{Copy, Direction, Fill, Work};
use std::ffi::{c_int, c_uint, c_void};

/// The handle of the device's one memory pool.
const POOL: Handle = 0xB001;

fn allocate(place: &Out<usize>, bytes: usize) -> Outcome {
    let address = memory::allocate(bytes)?;
    count(|counts| counts.allocations += 1);
    place.set(address)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> c_int {
    stateless(|| {
        let limit = settings().memory_bytes;
        free.set(limit.saturating_sub(memory::usage().bytes))?;
        total.set(limit)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<usize>, bytes: usize) -> c_int {
    in_context(Call::Alloc, |driver| {
        driver.forbid_in_capture("cuMemAlloc")?;
        if bytes == 0 { Err(Status::INVALID_VALUE) } else { allocate(&address, bytes) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: usize) -> c_int {
    in_context(Call::Other, |driver| {
        driver.forbid_in_capture("cuMemFree")?;
        if address == 0 {
            return Ok(());
        }
        driver.drain_all()?;
        count(|counts| counts.frees += 1);
        memory::free(address)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<usize>, bytes: usize, stream: Handle) -> c_int {
    in_context(Call::Alloc, |driver| {
        driver.refuse_allocation_while_capturing(stream)?;
        if bytes == 0 { address.set(0) } else { allocate(&address, bytes) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: usize, stream: Handle) -> c_int {
    in_context(Call::Other, |driver| match address {
        0 => Ok(()),
        _ => driver.submit(stream, Work::Free(address)),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(start: Out<usize>, bytes: Out<usize>, address: usize) -> c_int {
    stateless(|| {
        let (low, high) = memory::find(address).ok_or(Status::NOT_FOUND)?;
        start.offer(low);
        bytes.offer(high - low);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: Out<usize>, bytes: usize, _flags: c_uint) -> c_int {
    in_context(Call::Alloc, |driver| {
        driver.forbid_in_capture("cuMemHostAlloc")?;
        address.set(memory::allocate_pinned(bytes)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: usize) -> c_int {
    in_context(Call::Other, |driver| {
        driver.forbid_in_capture("cuMemFreeHost")?;
        driver.drain_all()?;
        memory::free_pinned(address)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(address: usize, bytes: usize, _flags: c_uint) -> c_int {
    in_context(Call::Alloc, |_| memory::register(address, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(address: usize) -> c_int {
    in_context(Call::Other, |driver| {
        driver.drain_all()?;
        memory::unregister(address)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, _device: c_int) -> c_int {
    stateless(|| pool.set(POOL))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(pool: Out<Handle>, _device: c_int) -> c_int {
    stateless(|| pool.set(POOL))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(_pool: Handle, _attribute: c_int, _value: *mut c_void) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(_pool: Handle, _attribute: c_int, value: Out<u64>) -> c_int {
    stateless(|| value.set(0))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(_pool: Handle, _bytes: usize) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) -> c_int {
    in_context(Call::Copy, |driver| {
        driver.forbid_in_capture("cuMemcpyHtoD")?;
        driver.copy_to_device(to, from, bytes, 0)?;
        driver.drain(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) -> c_int {
    in_context(Call::Copy, |driver| {
        driver.forbid_in_capture("cuMemcpyDtoH")?;
        driver.copy_to_host(to, from, bytes, 0)?;
        driver.drain(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) -> c_int {
    in_context(Call::Copy, |driver| {
        driver.forbid_in_capture("cuMemcpyDtoD")?;
        copy_inside(driver, to, from, bytes, 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) -> c_int {
    in_context(Call::Copy, |driver| driver.copy_to_device(to, from, bytes, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) -> c_int {
    in_context(Call::Copy, |driver| driver.copy_to_host(to, from, bytes, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) -> c_int {
    in_context(Call::Copy, |driver| copy_inside(driver, to, from, bytes, stream))
}

fn copy_inside(driver: &mut Driver, to: usize, from: usize, bytes: usize, stream: Handle) -> Outcome {
    let direction = Direction::DeviceToDevice;
    driver.submit(stream, Work::Copy(Copy { to, from, bytes, direction, pinned: false }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: usize, value: u8, elements: usize) -> c_int {
    in_context(Call::Copy, |driver| {
        driver.forbid_in_capture("cuMemsetD8")?;
        fill(driver, Fill { to, value: value.into(), width: 1, elements }, 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: usize, value: u8, elements: usize, stream: Handle) -> c_int {
    in_context(Call::Copy, |driver| {
        fill(driver, Fill { to, value: value.into(), width: 1, elements }, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(to: usize, value: u16, elements: usize, stream: Handle) -> c_int {
    in_context(Call::Copy, |driver| {
        fill(driver, Fill { to, value: value.into(), width: 2, elements }, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: usize, value: u32, elements: usize, stream: Handle) -> c_int {
    in_context(Call::Copy, |driver| fill(driver, Fill { to, value, width: 4, elements }, stream))
}

fn fill(driver: &mut Driver, fill: Fill, stream: Handle) -> Outcome {
    if !fill.to.is_multiple_of(fill.width) || fill.elements.checked_mul(fill.width).is_none() {
        return Err(Status::INVALID_VALUE);
    }
    driver.submit(stream, Work::Fill(fill))
}
