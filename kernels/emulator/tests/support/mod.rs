//! Runs a kernel's launches directly on the engine, in memory that it checks.

use cuda::engine::{Engine, Geometry};
use ssmgraph_kernels::Forms;
use ssmgraph_kernels::cuda::{CudaCall, CudaKernel, DeviceTensor, FAULT_BYTES, FaultRecord, variant_for};
use ssmgraph_ops::{HostTensor, Layout, Op, Storage};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::c_int;
use std::sync::Mutex;

/// The results of an op, packed, its launches run in order with threads and blocks ordered by `seed`; result 0 in
/// the memory of operand `reused`.
///
/// Errors: what the op refuses, what a kernel does wrong, ids outside their table. Panics when the op has no
/// kernel.
pub fn compute(
    engine: &Engine,
    op: &Op,
    inputs: &[HostTensor],
    seed: u32,
    reused: Option<usize>,
) -> Result<Vec<HostTensor>, Box<dyn Error>> {
    compute_as(engine, Forms::default(), op, inputs, seed, reused)
}

/// As [`compute`], in the form that `forms` chooses.
///
/// Errors: also what the form declines.
pub fn compute_as(
    engine: &Engine,
    forms: Forms,
    op: &Op,
    inputs: &[HostTensor],
    seed: u32,
    reused: Option<usize>,
) -> Result<Vec<HostTensor>, Box<dyn Error>> {
    let buffers: Vec<Device> = inputs.iter().map(|tensor| Device::holding(tensor.bytes())).collect();
    let layouts: Vec<Layout> = inputs.iter().map(|tensor| *tensor.layout()).collect();
    compute_in(engine, forms, op, &layouts, seed, reused, &buffers)
}

/// As [`compute_as`], of operands that lie in `buffers`.
pub fn compute_in(
    engine: &Engine,
    forms: Forms,
    op: &Op,
    layouts: &[Layout],
    seed: u32,
    reused: Option<usize>,
    buffers: &[Device],
) -> Result<Vec<HostTensor>, Box<dyn Error>> {
    let kernel: &dyn CudaKernel = ssmgraph_kernels::cuda_kernel(op).expect("an op with a kernel");
    let result_layouts = op.infer(layouts)?;
    let tensors: Vec<DeviceTensor> =
        buffers.iter().zip(layouts).map(|(buffer, &layout)| buffer.tensor(layout)).collect();
    let update = op.storage() == Storage::Update;
    let fresh: Vec<Device> =
        result_layouts.iter().map(|layout| Device::holding(&vec![0xff; layout.span_bytes()])).collect();
    let mut results: Vec<DeviceTensor> = match update {
        true => vec![tensors[0]],
        false => fresh.iter().zip(&result_layouts).map(|(buffer, &layout)| buffer.tensor(layout)).collect(),
    };
    if let Some(operand) = reused {
        results[0].address = tensors[operand].address;
    }
    let scratch = Device::holding(&vec![0xff; kernel.scratch_bytes(layouts, &result_layouts)]);
    let fault = Device::holding(&[0; FAULT_BYTES]);
    let call = CudaCall {
        inputs: &tensors,
        results: &results,
        scratch: scratch.start(),
        fault: fault.start(),
        variant: variant_for(kernel, forms, layouts)?,
    };
    let launches = kernel.launches(&call);
    for launch in &launches {
        let geometry =
            Geometry { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes, seed };
        // SAFETY: all addresses are of buffers that live until the end of this function.
        unsafe { engine.run(launch.entry, geometry, &[&launch.params.bytes()], lookup)? };
    }
    if let Some(fault) = FaultRecord::read(&fault.bytes()) {
        let guards = launches.iter().find(|launch| !launch.guards.is_empty()).map(|launch| &launch.guards);
        let guard = guards.and_then(|guards| guards.get(fault.guard));
        guard.ok_or("launches without a guard raised a fault")?.check(op.name(), &fault)?;
        return Err("a fault was raised for an id that is inside its table".into());
    }
    let read = |buffer: &Device, layout: &Layout| {
        let strided = HostTensor::from_bytes(*layout, buffer.bytes())?;
        let mut packed = HostTensor::zeros(layout.to_contiguous());
        packed.view_mut()?.copy_from(&strided.view());
        Ok(packed)
    };
    match reused.or(update.then_some(0)) {
        Some(operand) => Ok(vec![read(&buffers[operand], &result_layouts[0])?]),
        None => fresh.iter().zip(&result_layouts).map(|(buffer, layout)| read(buffer, layout)).collect(),
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
pub struct Device {
    words: Box<[std::cell::UnsafeCell<[u128; 16]>]>,
    skip: usize,
    bytes: usize,
}

impl Device {
    /// Memory with these contents.
    pub fn holding(bytes: &[u8]) -> Device {
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

    /// What is in it.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: inside the words, which no kernel writes at this time.
        unsafe { std::slice::from_raw_parts(self.start() as *const u8, self.bytes).to_vec() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        ALLOCATIONS.lock().expect("as in lookup").remove(&(self.start() as usize));
    }
}
