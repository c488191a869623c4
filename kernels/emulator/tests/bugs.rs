//! The deliberately wrong kernels of `bugs.cu`: each is reported, as what it is, with its file and line.

use cuda::engine::{Engine, Geometry};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

const ILLEGAL_ADDRESS: i32 = 700;
const LAUNCH_FAILED: i32 = 719;

static ENGINE: LazyLock<Engine> =
    LazyLock::new(|| Engine::load(Path::new(env!("EMULATOR_KERNELS_BUGS"))).expect("built by build.rs"));

/// The 64 floats that kernels write; what lies behind them belongs to nobody.
#[repr(align(256))]
struct Output(UnsafeCell<[f32; 8192]>);

// SAFETY: only kernels touch it, and `report` runs one at a time.
unsafe impl Sync for Output {}

static OUTPUT: Output = Output(UnsafeCell::new([0.0; 8192]));
const OUTPUT_BYTES: usize = 256;

extern "C" fn lookup(address: usize, low: *mut usize, high: *mut usize) -> c_int {
    let start = OUTPUT.0.get() as usize;
    if !(start..start + OUTPUT_BYTES).contains(&address) {
        return 0;
    }
    // SAFETY: the engine passes two places of its own.
    unsafe {
        *low = start;
        *high = start + OUTPUT_BYTES;
    }
    1
}

/// What is reported of a kernel that takes the output and maybe an index.
fn report(entry: &str, blocks: u32, threads: u32, shared_bytes: u32, k: Option<i32>) -> (i32, String) {
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = (OUTPUT.0.get() as u64).to_le_bytes();
    let k = k.map(i32::to_le_bytes);
    let parameters: Vec<&[u8]> =
        [Some(&output[..]), k.as_ref().map(|k| &k[..])].into_iter().flatten().collect();
    let geometry = Geometry { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes, seed: 0 };
    // SAFETY: the output is larger than what these kernels wrongly reach; the other addresses they use are
    // unmapped and fault, which the engine catches.
    match unsafe { ENGINE.run(entry, geometry, &parameters, lookup) } {
        Ok(()) => panic!("{entry} was not reported"),
        Err(error) => (error.code, error.message),
    }
}

#[track_caller]
fn expect(got: (i32, String), code: i32, parts: &[&str]) {
    println!("{}", got.1);
    assert_eq!(got.0, code, "{}", got.1);
    for part in parts {
        assert!(got.1.contains(part), "`{part}` is not in: {}", got.1);
    }
}

#[test]
fn a_barrier_that_half_a_warp_misses() {
    let got = report("bug_divergent_barrier", 1, 32, 0, None);
    let parts = ["divergence", "16 wait in __syncthreads", "16 wait in __syncwarp", "bugs.cu:"];
    expect(got, LAUNCH_FAILED, &parts);
}

#[test]
fn a_barrier_after_some_threads_returned() {
    let got = report("bug_early_exit", 1, 64, 0, None);
    expect(got, LAUNCH_FAILED, &["24 of 64 threads had already returned", "bugs.cu:"]);
}

#[test]
fn threads_that_meet_at_different_barriers() {
    let got = report("bug_two_barriers", 1, 32, 0, None);
    expect(got, LAUNCH_FAILED, &["met at different barriers", "bugs.cu:"]);
}

#[test]
fn a_shuffle_that_lanes_of_its_mask_miss() {
    let got = report("bug_shuffle_mask", 1, 32, 0, None);
    expect(got, LAUNCH_FAILED, &["__shfl_xor_sync(mask 0xffffffff)", "bugs.cu:"]);
}

#[test]
fn a_race_in_shared_memory() {
    let got = report("bug_race", 1, 64, 0, None);
    assert!(got.1.contains("data race in shared memory") || got.1.contains("uninitialised"), "{}", got.1);
    expect(got, LAUNCH_FAILED, &["bugs.cu:"]);
}

#[test]
fn a_write_after_read_in_dynamic_shared_memory() {
    let got = report("bug_race_dynamic", 1, 64, 256, None);
    expect(got, LAUNCH_FAILED, &["data race in shared memory", "bugs.cu:"]);
}

#[test]
fn a_race_between_blocks() {
    let got = report("bug_race_global", 2, 32, 0, None);
    expect(got, LAUNCH_FAILED, &["data race in global memory", "bugs.cu:"]);
}

#[test]
fn global_memory_past_its_end() {
    let got = report("bug_bounds_global", 1, 64, 0, Some(64));
    expect(got, ILLEGAL_ADDRESS, &["write of 4 bytes", "in no allocation", "bugs.cu:"]);
    let got = report("bug_bounds_global", 1, 64, 0, Some(1));
    expect(got, ILLEGAL_ADDRESS, &["in no allocation", "bugs.cu:"]);
}

#[test]
fn a_shared_array_past_its_end() {
    let got = report("bug_bounds_shared", 1, 64, 0, Some(64));
    expect(got, LAUNCH_FAILED, &["undefined behaviour", "bugs.cu:"]);
}

#[test]
fn dynamic_shared_memory_past_its_end() {
    let got = report("bug_bounds_dynamic", 1, 64, 256, Some(1));
    expect(got, ILLEGAL_ADDRESS, &["dynamic shared memory, which has 256 bytes", "bugs.cu:"]);
}

#[test]
fn shared_memory_that_nobody_wrote() {
    let got = report("bug_uninitialised", 1, 64, 0, None);
    expect(got, LAUNCH_FAILED, &["read of uninitialised shared memory", "bugs.cu:"]);
}

#[test]
fn a_vector_load_that_is_misaligned() {
    let got = report("bug_misaligned", 1, 32, 0, None);
    expect(got, LAUNCH_FAILED, &["undefined behaviour", "alignment", "bugs.cu:"]);
}

#[test]
fn a_null_pointer() {
    let got = report("bug_null", 1, 32, 0, None);
    assert!([ILLEGAL_ADDRESS, LAUNCH_FAILED].contains(&got.0), "{}", got.1);
    assert!(got.1.contains("bugs.cu:"), "{}", got.1);
}

#[test]
fn an_integer_that_overflows() {
    let got = report("bug_overflow", 1, 32, 0, Some(4096));
    expect(got, LAUNCH_FAILED, &["undefined behaviour", "overflow", "bugs.cu:"]);
}
