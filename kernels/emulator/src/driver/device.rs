//! What is emulated: the figures of the device and of its driver.

use std::ffi::c_int;

/// CUDA's version, as `cuDriverGetVersion` gives it.
pub const DRIVER_VERSION: c_int = 12_000;

/// The newest PTX that such a driver reads, as 10 · major + minor.
pub const PTX_VERSION: u32 = 80;

/// Compute capability, as 10 · major + minor.
pub const COMPUTE_CAPABILITY: u32 = 90;

/// The device's name.
pub const NAME: &std::ffi::CStr = c"ssmgraph CUDA emulator (CPU)";

/// The device's identity.
pub const UUID: [u8; 16] = *b"ssmgraph-emulatr";

/// Dynamic shared memory of a block, unless the function allows more.
pub const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Most dynamic shared memory of a block.
pub const SHARED_BYTES_MAX: u32 = 227 << 10;

/// A `CUdevice_attribute`; 0 for those that do not matter here.
pub fn attribute(number: c_int) -> c_int {
    match number {
        // Threads of a block; its sides; threads of a multiprocessor.
        1..=3 => 1024,
        4 => 64,
        39 => 2048,
        // Blocks of a grid along each axis.
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block, of a multiprocessor, of a block that asks for more.
        8 => SHARED_BYTES_DEFAULT as c_int,
        81 => 228 << 10,
        97 => SHARED_BYTES_MAX as c_int,
        // Constant memory; lanes of a warp; registers of a block and of a multiprocessor.
        9 => 64 << 10,
        10 => 32,
        12 | 82 => 64 << 10,
        // Clocks in kHz, multiprocessors, bus width, level-2 cache: of no particular device.
        13 => 1_500_000,
        16 => 5,
        36 => 1_000_000,
        37 => 256,
        38 => 4 << 20,
        // Concurrent kernels, unified addresses, stream priorities, memory pools.
        31 | 41 | 78 | 115 => 1,
        75 => (COMPUTE_CAPABILITY / 10) as c_int,
        76 => (COMPUTE_CAPABILITY % 10) as c_int,
        // Blocks of a multiprocessor; reserved shared memory.
        106 => 32,
        111 => 1024,
        _ => 0,
    }
}
