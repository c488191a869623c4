//! Modules, functions, launches.

use super::place::{Out, Text};
use crate::driver::device;
use crate::driver::faults::Call;
use crate::driver::launch::{Arguments, Shape};
use crate::driver::report::{problem, trace};
use crate::driver::state::{Handle, in_context, stateless};
use crate::driver::status::Status;
use crate::driver::work::Work;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<Handle>, image: Text) -> c_int {
    in_context(Call::Module, |driver| module.set(driver.load_module(image.bytes()?)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: Text,
    _option_count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> c_int {
    cuModuleLoadData(module, image)
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: Out<Handle>, path: Text) -> c_int {
    in_context(Call::Module, |driver| {
        let image = std::fs::read(path.text()?).map_err(|_| Status::FILE_NOT_FOUND)?;
        module.set(driver.load_module(&image)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.unload_module(module))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> c_int {
    in_context(Call::Other, |driver| function.set(driver.module_function(module, name.text()?)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetGlobal_v2(
    _address: Out<usize>,
    _bytes: Out<usize>,
    _module: Handle,
    name: Text,
) -> c_int {
    in_context(Call::Other, |_| {
        problem(&format!("cuModuleGetGlobal of `{}`: the emulator has no module globals", name.text()?));
        Err(Status::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) -> c_int {
    in_context(Call::Other, |driver| {
        let function = driver.function(function)?;
        value.set(match attribute {
            0 => function.entry.threads_max as c_int,
            // Registers: of no particular compiler.
            4 => 32,
            // PTX and binary version.
            5 => 70,
            6 => device::COMPUTE_CAPABILITY as c_int,
            8 => function.shared_bytes_max() as c_int,
            _ => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> c_int {
    in_context(Call::Other, |driver| {
        let function = driver.function(function)?;
        match (attribute, u32::try_from(value)) {
            (8, Ok(bytes)) => function.allow_shared_bytes(bytes),
            (8, Err(_)) => Err(Status::INVALID_VALUE),
            _ => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(_function: Handle, _config: c_int) -> c_int {
    stateless(|| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<c_int>,
    _function: Handle,
    threads: c_int,
    _shared_bytes: usize,
) -> c_int {
    stateless(|| blocks.set((2048 / threads.max(1)).min(32)))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    shared_bytes: usize,
    _flags: c_uint,
) -> c_int {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes)
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    arguments: Arguments,
    extra: *const c_void,
) -> c_int {
    in_context(Call::Launch, |driver| {
        if !extra.is_null() {
            return Err(Status::NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let launch = driver.prepare_launch(function, Shape { grid, block, shared_bytes }, arguments)?;
        let name = &driver.function(function)?.entry.name;
        trace(|| format!("{name}: {grid:?} blocks of {block:?} threads, {shared_bytes} bytes shared"));
        driver.submit(stream, Work::Kernel(Arc::new(launch)))
    })
}
