//! Initialisation, the device, contexts.

use super::place::Out;
use crate::driver::state::{
    Handle, current_context, giving_back, in_context, set_current_context, stateless, with_state,
};
use crate::driver::status::{Status, code, texts};
use crate::driver::{device, faults::Call, settings::settings};
use std::ffi::{c_char, c_int, c_uint};

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> c_int {
    stateless(|| version.set(device::DRIVER_VERSION))
}

// The texts of errors stay at hand when the device is lost.
#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: c_int, text: Out<*const c_char>) -> c_int {
    let name = texts(error).map(|texts| texts.0);
    text.offer(name.map_or(std::ptr::null(), |name| name.as_ptr()));
    code(name.map(|_| ()).ok_or(Status::INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: c_int, text: Out<*const c_char>) -> c_int {
    let description = texts(error).map(|texts| texts.1);
    text.offer(description.map_or(std::ptr::null(), |text| text.as_ptr()));
    code(description.map(|_| ()).ok_or(Status::INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> c_int {
    stateless(|| count.set(1))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> c_int {
    stateless(|| if ordinal == 0 { device.set(0) } else { Err(Status::INVALID_DEVICE) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Out<c_char>, room: c_int, _device: c_int) -> c_int {
    stateless(|| {
        let text = device::NAME.to_bytes_with_nul();
        if name.is_null() || (room as usize) < text.len() {
            return Err(Status::INVALID_VALUE);
        }
        name.fill(room as usize, text.iter().map(|&byte| byte as c_char));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, _device: c_int) -> c_int {
    stateless(|| uuid.set(device::UUID))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, _device: c_int) -> c_int {
    stateless(|| uuid.set(device::UUID))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, _device: c_int) -> c_int {
    stateless(|| bytes.set(settings().memory_bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, _device: c_int) -> c_int {
    stateless(|| value.set(device::attribute(attribute)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, _device: c_int) -> c_int {
    with_state(|driver| context.set(driver.retain_primary()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int {
    giving_back(|driver| driver.release_primary())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: Out<Handle>, _flags: c_uint, _device: c_int) -> c_int {
    with_state(|driver| {
        let created = driver.create_context();
        set_current_context(created);
        context.set(created)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    context: Out<Handle>,
    _affinities: *const c_int,
    _affinity_count: c_int,
    flags: c_uint,
    device: c_int,
) -> c_int {
    cuCtxCreate_v2(context, flags, device)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: Handle) -> c_int {
    giving_back(|driver| {
        driver.destroy_context(context)?;
        if current_context() == context {
            set_current_context(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> c_int {
    stateless(|| context.set(current_context()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> c_int {
    stateless(|| {
        set_current_context(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> c_int {
    stateless(|| device.set(0))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(_flags: c_uint) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, _limit: c_int) -> c_int {
    stateless(|| value.set(8 << 20))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(_limit: c_int, _value: usize) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(config: Out<c_int>) -> c_int {
    stateless(|| config.set(0))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(_config: c_int) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> c_int {
    stateless(|| {
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    in_context(Call::Sync, |driver| driver.synchronize())
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStart() -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStop() -> c_int {
    stateless(|| Ok(()))
}
