//! What tests ask of the emulator beyond CUDA. These calls count and fail nothing.

use super::place::{Out, Text};
use crate::driver::counts::{self, Counts};
use crate::driver::faults::{self, Call};
use crate::driver::settings::settings;
use crate::driver::status::{Outcome, Status, code};
use crate::driver::{memory, report, state};
use crate::engine::Mode;
use std::ffi::{c_char, c_int};
use std::path::PathBuf;

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_set_fault(kind: u32, n: u64) -> c_int {
    code(Call::from_number(kind).map(|call| faults::set(call, n)).ok_or(Status::INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_planned(kind: u32) -> u64 {
    Call::from_number(kind).map_or(0, faults::planned)
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_set_seed(seed: u32) -> c_int {
    settings().seed = seed;
    0
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_set_async(lazy: c_int) -> c_int {
    settings().lazy = lazy != 0;
    0
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_set_mode(check: c_int) -> c_int {
    settings().mode = if check != 0 { Mode::Check } else { Mode::Fast };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_set_memory_bytes(bytes: usize) -> c_int {
    settings().memory_bytes = bytes;
    0
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_add_kernels(path: Text) -> c_int {
    let add = || -> Outcome {
        let path = PathBuf::from(path.text()?);
        let mut settings = settings();
        if !settings.libraries.contains(&path) {
            settings.libraries.push(path);
        }
        Ok(())
    };
    code(add())
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_counts(place: Out<Counts>) -> c_int {
    let usage = memory::usage();
    code(place.set(Counts {
        live_allocations: usage.allocations as u64,
        live_bytes: usage.bytes as u64,
        peak_bytes: usage.peak_bytes as u64,
        live_pinned: usage.pinned as u64,
        ..counts::recorded()
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_reset_counts() -> c_int {
    counts::reset();
    memory::reset_peak();
    0
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_reset_device(force: c_int) -> c_int {
    code(state::reset_device(force != 0))
}

#[unsafe(no_mangle)]
extern "C" fn ssmgraph_emulator_last_problem(text: Out<c_char>, room: usize) -> usize {
    let problem = report::last();
    if !text.is_null() {
        text.fill(room, problem.bytes().map(|byte| byte as c_char));
    }
    problem.len()
}
