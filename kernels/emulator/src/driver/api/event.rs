//! Events.

use super::place::Out;
use crate::driver::faults::Call;
use crate::driver::state::{Handle, in_context};
use std::ffi::{c_int, c_uint};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<Handle>, flags: c_uint) -> c_int {
    in_context(Call::Other, |driver| event.set(driver.create_event(flags & DISABLE_TIMING == 0)))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.destroy_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.record_event(event, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.query_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> c_int {
    in_context(Call::Sync, |driver| driver.synchronize_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, from: Handle, to: Handle) -> c_int {
    in_context(Call::Other, |driver| milliseconds.set(driver.elapsed_ms(from, to)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, from: Handle, to: Handle) -> c_int {
    cuEventElapsedTime(milliseconds, from, to)
}
