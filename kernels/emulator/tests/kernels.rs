//! Every case of every op that has a CUDA kernel, launched directly on the engine, without a driver.
//!
//! Each case runs in fast mode with three schedules and in check mode; names are `mode/op/case`.

use cuda::engine::{Engine, Geometry, Mode};
use libtest_mimic::{Arguments, Failed, Trial};
use ssmgraph_kernels::cuda::{CudaCall, CudaKernel, DeviceTensor, FAULT_BYTES, FaultRecord};
use ssmgraph_ops::shape::checked_row;
use ssmgraph_ops::{Case, HostTensor, Layout, OpKind, Storage};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

/// A check-mode case costs far more; larger ones run in fast mode only.
const CHECKED_ELEMENTS_MAX: usize = 200_000;

fn main() {
    let arguments = Arguments::from_args();
    let engines: Vec<(&str, Arc<Engine>)> = [("fast", Mode::Fast), ("check", Mode::Check)]
        .into_iter()
        .map(|(name, mode)| (name, Arc::new(Engine::load(mode.library()).expect("built by build.rs"))))
        .collect();
    let mut trials = Vec::new();
    for kind in OpKind::ALL {
        for case in kind.cases() {
            let Some(kernel) = ssmgraph_kernels::cuda_kernel(&case.op) else { continue };
            let layouts: Vec<Layout> = case.inputs.iter().map(|tensor| *tensor.layout()).collect();
            if kernel.supports(&layouts).is_err() {
                continue;
            }
            for (mode, engine) in &engines {
                let elements: usize = layouts.iter().map(|layout| layout.elements()).sum();
                if *mode == "check" && elements > CHECKED_ELEMENTS_MAX {
                    continue;
                }
                let name = format!("{mode}/{}/{}", case.op.name(), case.name);
                let (engine, case) = (engine.clone(), case.clone());
                trials.push(Trial::test(name, move || run_case(&engine, &case)));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn run_case(engine: &Engine, case: &Case) -> Result<(), Failed> {
    let expected = case.expected()?;
    let mut first: Option<Vec<HostTensor>> = None;
    for seed in [0, 1, 2] {
        let got = compute(engine, case, seed)?;
        for (index, (got, want)) in got.iter().zip(&expected).enumerate() {
            if let Some(mismatch) = case.tolerance.mismatch(got, want) {
                return Err(format!("{} {mismatch} (seed {seed})", case.op.result_name(index)).into());
            }
        }
        match &first {
            None => first = Some(got),
            Some(first) if *first != got => return Err(format!("seed {seed} gave other bits").into()),
            Some(_) => {}
        }
    }
    Ok(())
}

/// The results of a case, its launches run in order with threads and blocks ordered by `seed`.
fn compute(engine: &Engine, case: &Case, seed: u32) -> Result<Vec<HostTensor>, Failed> {
    let kernel: &dyn CudaKernel = ssmgraph_kernels::cuda_kernel(&case.op).expect("asked before");
    let layouts: Vec<Layout> = case.inputs.iter().map(|tensor| *tensor.layout()).collect();
    let result_layouts = case.op.infer(&layouts)?;
    let buffers: Vec<Device> = case.inputs.iter().map(|tensor| Device::holding(tensor.bytes())).collect();
    let tensors: Vec<DeviceTensor> =
        buffers.iter().zip(&layouts).map(|(buffer, &layout)| buffer.tensor(layout)).collect();
    let update = case.op.storage() == Storage::Update;
    let fresh: Vec<Device> =
        result_layouts.iter().map(|layout| Device::holding(&vec![0xff; layout.span_bytes()])).collect();
    let results: Vec<DeviceTensor> = match update {
        true => vec![tensors[0]],
        false => fresh.iter().zip(&result_layouts).map(|(buffer, &layout)| buffer.tensor(layout)).collect(),
    };
    let scratch = Device::holding(&vec![0xff; kernel.scratch_bytes(&layouts, &result_layouts)]);
    let fault = Device::holding(&[0; FAULT_BYTES]);
    let call =
        CudaCall { inputs: &tensors, results: &results, scratch: scratch.start(), fault: fault.start() };
    for launch in kernel.launches(&call) {
        let geometry =
            Geometry { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes, seed };
        // SAFETY: all addresses are of buffers that live until the end of this function.
        unsafe { engine.run(launch.entry, geometry, &[&launch.params.bytes()], lookup)? };
        if let Some(fault) = FaultRecord::read(&fault.bytes()) {
            let guard = launch.guard.ok_or("a launch without a guard raised a fault")?;
            checked_row(case.op.name(), guard.operand, fault.place, fault.id, guard.rows)?;
            return Err("a fault was raised for an id that is inside its table".into());
        }
    }
    let read = |buffer: &Device, layout: &Layout| {
        let strided = HostTensor::from_bytes(*layout, buffer.bytes()).map_err(|error| error.to_string())?;
        let mut packed = HostTensor::zeros(layout.to_contiguous());
        packed.view_mut().map_err(|error| error.to_string())?.copy_from(&strided.view());
        Ok(packed)
    };
    match update {
        true => Ok(vec![read(&buffers[0], &layouts[0])?]),
        false => fresh.iter().zip(&result_layouts).map(|(buffer, layout)| read(buffer, layout)).collect(),
    }
}

static ALLOCATIONS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

extern "C" fn lookup(address: usize, low: *mut usize, high: *mut usize) -> c_int {
    let allocations = ALLOCATIONS.lock().expect("no test panics while it holds the lock");
    match allocations.range(..=address).next_back() {
        Some((&start, &bytes)) if address < start + bytes => {
            // SAFETY: the engine passes two valid places.
            unsafe {
                *low = start;
                *high = start + bytes;
            }
            1
        }
        _ => 0,
    }
}

/// Memory that a kernel sees as its device's.
struct Device {
    words: Box<[std::cell::UnsafeCell<[u128; 16]>]>,
    skip: usize,
    bytes: usize,
}

impl Device {
    fn holding(bytes: &[u8]) -> Device {
        let words: Box<[_]> =
            (0..bytes.len() / 256 + 2).map(|_| std::cell::UnsafeCell::new([u128::MAX; 16])).collect();
        let base = words.as_ptr() as usize;
        let skip = base.next_multiple_of(256) - base;
        // SAFETY: `skip` is below 256, so that the bytes end inside the words.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (base + skip) as *mut u8, bytes.len());
        }
        let device = Device { words, skip, bytes: bytes.len() };
        ALLOCATIONS.lock().expect("as in lookup").insert(device.start() as usize, bytes.len());
        device
    }

    fn start(&self) -> u64 {
        (self.words.as_ptr() as usize + self.skip) as u64
    }

    fn tensor(&self, layout: Layout) -> DeviceTensor {
        DeviceTensor { address: self.start(), layout }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: inside the words, which no kernel writes at this time.
        unsafe { std::slice::from_raw_parts(self.start() as *const u8, self.bytes).to_vec() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        ALLOCATIONS.lock().expect("as in lookup").remove(&(self.start() as usize));
    }
}
