//! Streams and their capture.

use super::place::Out;
use crate::driver::capture::{Strictness, exchange_strictness};
use crate::driver::faults::Call;
use crate::driver::state::{Handle, in_context, stateless};
use crate::driver::work::{HostFunction, Work};
use std::ffi::{c_int, c_uint};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) -> c_int {
    in_context(Call::Other, |driver| stream.set(driver.create_stream(flags & NON_BLOCKING == 0)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, _priority: c_int) -> c_int {
    cuStreamCreate(stream, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.destroy_stream(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> c_int {
    in_context(Call::Sync, |driver| driver.synchronize_stream(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.query_stream(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> c_int {
    in_context(Call::Other, |driver| driver.wait_event(stream, event))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: Handle, function: HostFunction, data: usize) -> c_int {
    in_context(Call::Other, |driver| driver.submit(stream, Work::Host(function, data)))
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) -> c_int {
    stateless(|| {
        let wanted = Strictness::from_number(mode.get()?)?;
        mode.set(exchange_strictness(wanted))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> c_int {
    in_context(Call::Capture, |driver| driver.begin_capture(stream, Strictness::from_number(mode)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> c_int {
    in_context(Call::Other, |driver| {
        graph.set(0)?;
        graph.set(driver.end_capture(stream)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) -> c_int {
    in_context(Call::Other, |driver| status.set(driver.capture_status(stream)?.0))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: Out<c_int>,
    number: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<*const Handle>,
    count: Out<usize>,
) -> c_int {
    in_context(Call::Other, |driver| {
        let (state, capture) = driver.capture_status(stream)?;
        status.set(state)?;
        number.offer(capture.unwrap_or_default() as u64);
        // A graph under construction has no handle here, nor have its nodes.
        graph.offer(0);
        dependencies.offer(std::ptr::null());
        count.offer(0);
        Ok(())
    })
}
