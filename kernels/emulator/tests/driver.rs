//! The emulated driver through cudarc, as a program uses it.
//!
//! The emulator's state is the process's, so that these tests run one after the other.

use cuda::engine::Mode;
use cuda::{Emulator, Fault};
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode as CaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaGraph, CudaSlice, CudaStream, DeviceRepr, DriverError, LaunchConfig,
    PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use std::ffi::c_void;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const ELEMENTS: usize = 128;
const THREADS: u32 = 64;
const NO_FLAGS: sys::CUgraphInstantiate_flags = sys::CUgraphInstantiate_flags(0);
const CAPTURE: CaptureMode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// `TestParams` of `driver.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Params {
    from: u64,
    to: u64,
    value: f32,
    elements: i32,
}

// SAFETY: plain data, laid out as the kernel's struct.
unsafe impl DeviceRepr for Params {}

/// A context on a device as a new process finds it, and nobody else on it.
struct Device {
    emulator: &'static Emulator,
    context: Arc<CudaContext>,
    _alone: MutexGuard<'static, ()>,
}

impl Device {
    fn open() -> Device {
        static ONE: Mutex<()> = Mutex::new(());
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let emulator = cuda::install().expect("built beside this test");
        emulator.reset_device(true);
        emulator.reset_counts();
        emulator.set_seed(0);
        emulator.set_lazy(true);
        emulator.set_mode(Mode::Fast);
        emulator.set_memory_bytes(1 << 30);
        emulator.add_kernels(Path::new(env!("EMULATOR_KERNELS_DRIVER")));
        let context = CudaContext::new(0).expect("a device");
        // SAFETY: the tests order their streams themselves.
        unsafe { context.disable_event_tracking() };
        Device { emulator, context, _alone: alone }
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().expect("a stream")
    }

    fn function(&self, entry: &str) -> CudaFunction {
        let module = self.context.load_module(ptx(entry, 24)).expect("the library has it");
        module.load_function(entry).expect("the module has it")
    }
}

/// PTX as far as the emulator reads it.
fn ptx(entry: &str, parameter_bytes: usize) -> Ptx {
    Ptx::from_src(format!(
        ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry {entry}(\n\
         .param .align 8 .b8 {entry}_param_0[{parameter_bytes}]\n)\n.maxntid {THREADS}, 1, 1\n{{\nret;\n}}\n"
    ))
}

fn address(stream: &Arc<CudaStream>, buffer: &CudaSlice<f32>) -> u64 {
    use cudarc::driver::DevicePtr;
    buffer.device_ptr(stream).0
}

fn params(stream: &Arc<CudaStream>, from: &CudaSlice<f32>, to: &CudaSlice<f32>, value: f32) -> Params {
    Params { from: address(stream, from), to: address(stream, to), value, elements: to.len() as i32 }
}

fn launch(stream: &Arc<CudaStream>, function: &CudaFunction, params: Params) -> Result<(), DriverError> {
    let blocks = (params.elements as u32).div_ceil(THREADS);
    let shape =
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 4 * THREADS };
    // SAFETY: the kernel takes one such struct; a wrong address is what some tests are about.
    unsafe { stream.launch_builder(function).arg(&params).launch(shape).map(|_| ()) }
}

fn numbers(start: f32) -> Vec<f32> {
    (0..ELEMENTS).map(|index| start + index as f32).collect()
}

fn status<T>(result: Result<T, DriverError>) -> CUresult {
    match result {
        Ok(_) => CUresult::CUDA_SUCCESS,
        Err(error) => error.0,
    }
}

#[test]
fn what_is_copied_in_comes_out() {
    let device = Device::open();
    let stream = device.stream();
    let x = stream.clone_htod(&numbers(1.0)).unwrap();
    let mut y = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), [0.0; ELEMENTS]);
    stream.memcpy_dtod(&x, &mut y).unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), numbers(1.0));
    let counts = device.emulator.counts();
    assert_eq!((counts.allocations, counts.live_allocations), (2, 2));
    assert_eq!((counts.h2d_copies, counts.d2h_copies, counts.d2d_copies), (1, 2, 1));
    assert_eq!((counts.h2d_bytes, counts.live_bytes), (4 * ELEMENTS as u64, 8 * ELEMENTS as u64));
    drop((x, y));
    stream.synchronize().unwrap();
    assert_eq!(device.emulator.counts().live_allocations, 0);
}

#[test]
fn fresh_memory_is_not_a_number() {
    let device = Device::open();
    let stream = device.stream();
    // SAFETY: read as bits only.
    let x = unsafe { stream.alloc::<f32>(ELEMENTS) }.unwrap();
    assert!(stream.clone_dtoh(&x).unwrap().iter().all(|value| value.is_nan()));
}

#[test]
fn kernels_run_in_order_for_every_seed() {
    let device = Device::open();
    for seed in 0..4 {
        device.emulator.set_seed(seed);
        let stream = device.stream();
        let x = stream.clone_htod(&numbers(0.0)).unwrap();
        let y = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
        launch(&stream, &device.function("test_add"), params(&stream, &x, &x, 5.0)).unwrap();
        launch(&stream, &device.function("test_reverse"), params(&stream, &x, &y, 0.0)).unwrap();
        let got = stream.clone_dtoh(&y).unwrap();
        assert_eq!(got[0], 5.0 + 63.0, "seed {seed}");
        assert_eq!(got[ELEMENTS - 1], 5.0 + 64.0, "seed {seed}");
    }
    assert_eq!(device.emulator.counts().kernel_launches, 8);
}

#[test]
fn work_is_late_until_someone_waits() {
    let device = Device::open();
    let stream = device.stream();
    let x = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
    let fill = device.function("test_fill");
    launch(&stream, &fill, params(&stream, &x, &x, 1.0)).unwrap();
    assert_eq!(device.emulator.counts().kernels_run, 0);
    stream.synchronize().unwrap();
    assert_eq!(device.emulator.counts().kernels_run, 1);
    device.emulator.set_lazy(false);
    launch(&stream, &fill, params(&stream, &x, &x, 1.0)).unwrap();
    assert_eq!(device.emulator.counts().kernels_run, 2);
}

#[test]
fn a_missing_wait_shows() {
    let device = Device::open();
    let (producer, consumer) = (device.stream(), device.stream());
    let x = producer.alloc_zeros::<f32>(ELEMENTS).unwrap();
    producer.synchronize().unwrap();
    let fill = device.function("test_fill");
    launch(&producer, &fill, params(&producer, &x, &x, 3.0)).unwrap();
    assert_eq!(consumer.clone_dtoh(&x).unwrap(), [0.0; ELEMENTS]);
    consumer.join(&producer).unwrap();
    assert_eq!(consumer.clone_dtoh(&x).unwrap(), [3.0; ELEMENTS]);
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let device = Device::open();
    let stream = device.stream();
    let mut x = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
    // SAFETY: written before it is read.
    let mut pinned = unsafe { device.context.alloc_pinned::<f32>(ELEMENTS) }.unwrap();
    pinned.as_mut_slice().unwrap().fill(1.0);
    stream.memcpy_htod(&pinned, &mut x).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [1.0; ELEMENTS]);
    assert_eq!(device.emulator.counts().live_pinned, 1);
    drop(pinned);
    assert_eq!(device.emulator.counts().live_pinned, 0);
}

fn record(
    stream: &Arc<CudaStream>,
    body: impl FnOnce() -> Result<(), DriverError>,
) -> Result<CudaGraph, DriverError> {
    stream.begin_capture(CAPTURE)?;
    let recorded = body();
    let graph = stream.end_capture(NO_FLAGS);
    recorded?;
    graph.map(|graph| graph.expect("a graph"))
}

#[test]
fn a_graph_replays_and_takes_updates() {
    let device = Device::open();
    let stream = device.stream();
    let (add, fill) = (device.function("test_add"), device.function("test_fill"));
    let mut x = stream.clone_htod(&numbers(0.0)).unwrap();
    let y = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
    let (first, second) = (params(&stream, &x, &y, 10.0), params(&stream, &y, &y, 1.0));
    let capture = |value: f32| {
        record(&stream, || {
            launch(&stream, &add, Params { value, ..first })?;
            launch(&stream, &add, second)
        })
    };
    let graph = capture(10.0).unwrap();
    device.emulator.reset_counts();
    for start in [0.0, 7.0] {
        stream.memcpy_htod(&numbers(start), &mut x).unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&y).unwrap(), numbers(start + 11.0));
    }
    let counts = device.emulator.counts();
    assert_eq!((counts.graph_launches, counts.kernel_launches, counts.kernels_run), (2, 0, 4));

    update(&graph, &capture(20.0).unwrap()).unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), numbers(28.0));

    let other = record(&stream, || launch(&stream, &fill, second)).unwrap();
    assert_eq!(status(update(&graph, &other)), CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    set_first_node(&graph, Params { value: 30.0, ..first }).unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), numbers(38.0));
    let counts = device.emulator.counts();
    assert_eq!((counts.exec_updates, counts.node_param_sets, counts.captures), (1, 1, 2));
}

fn update(graph: &CudaGraph, from: &CudaGraph) -> Result<(), DriverError> {
    let mut info = std::mem::MaybeUninit::zeroed();
    // SAFETY: both handles are alive, and the place is as large as what is written.
    unsafe { sys::cuGraphExecUpdate_v2(graph.cu_graph_exec(), from.cu_graph(), info.as_mut_ptr()).result() }
}

/// Gives the first node other parameters and leaves the rest of it as it is.
fn set_first_node(graph: &CudaGraph, mut params: Params) -> Result<(), DriverError> {
    let (mut count, mut nodes) = (2, [std::ptr::null_mut(); 2]);
    let mut arguments = [(&raw mut params).cast::<c_void>()];
    let mut node = std::mem::MaybeUninit::zeroed();
    // SAFETY: the graph is alive; every place is as large as what is written.
    unsafe {
        sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &mut count).result()?;
        assert_eq!(count, 2);
        sys::cuGraphKernelNodeGetParams_v2(nodes[0], node.as_mut_ptr()).result()?;
        let mut node: sys::CUDA_KERNEL_NODE_PARAMS = node.assume_init();
        assert_eq!((node.gridDimX, node.blockDimX), (2, THREADS));
        node.kernelParams = arguments.as_mut_ptr();
        sys::cuGraphExecKernelNodeSetParams_v2(graph.cu_graph_exec(), nodes[0], &node).result()
    }
}

#[test]
fn a_capture_forks_and_joins() {
    let device = Device::open();
    let (main, side) = (device.stream(), device.stream());
    let add = device.function("test_add");
    let x = main.clone_htod(&numbers(0.0)).unwrap();
    let (y, z) = (main.alloc_zeros::<f32>(ELEMENTS).unwrap(), main.alloc_zeros::<f32>(ELEMENTS).unwrap());
    main.synchronize().unwrap();
    let forked = |joined: bool| {
        record(&main, || {
            side.join(&main)?;
            launch(&main, &add, params(&main, &x, &y, 1.0))?;
            launch(&side, &add, params(&side, &x, &z, 2.0))?;
            if joined { main.join(&side) } else { Ok(()) }
        })
    };
    let graph = forked(true).unwrap();
    for seed in 0..4 {
        device.emulator.set_seed(seed);
        graph.launch().unwrap();
        assert_eq!(main.clone_dtoh(&y).unwrap(), numbers(1.0));
        assert_eq!(main.clone_dtoh(&z).unwrap(), numbers(2.0));
    }
    assert_eq!(status(forked(false)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    // The streams are usable again.
    side.synchronize().unwrap();
}

#[test]
fn captures_forbid_what_cuda_forbids() {
    let device = Device::open();
    let stream = device.stream();
    let x = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
    let default = device.context.default_stream();
    assert_eq!(status(default.begin_capture(CAPTURE)), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let spoilt = |body: &dyn Fn() -> Result<(), DriverError>| {
        stream.begin_capture(CAPTURE).unwrap();
        let answer = status(body());
        let end = status(stream.end_capture(NO_FLAGS).map(|_| ()));
        assert_eq!(end, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{answer:?}");
        answer
    };
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    assert_eq!(spoilt(&|| stream.synchronize()), unsupported);
    assert_eq!(spoilt(&|| device.context.synchronize()), unsupported);
    assert_eq!(spoilt(&|| stream.alloc_zeros::<f32>(4).map(|_| ())), unsupported);
    assert_eq!(spoilt(&|| stream.clone_dtoh(&x).map(|_| ())), unsupported);
    assert_eq!(spoilt(&|| device.context.load_module(ptx("test_fill", 24)).map(|_| ())), unsupported);
    let other = device.stream();
    let outside = other.record_event(None).unwrap();
    assert_eq!(spoilt(&|| stream.wait(&outside)), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

#[test]
fn a_late_use_of_freed_memory_is_an_error() {
    let device = Device::open();
    let (owner, user) = (device.stream(), device.stream());
    let x = owner.clone_htod(&numbers(1.0)).unwrap();
    let mut y = user.alloc_zeros::<f32>(ELEMENTS).unwrap();
    owner.synchronize().unwrap();
    user.memcpy_dtod(&x, &mut y).unwrap();
    drop(x);
    owner.synchronize().unwrap();
    assert_eq!(status(user.synchronize()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(device.emulator.last_problem().contains("an allocation of 512 bytes that was freed"));
    // The error stays until the device is reset.
    assert_eq!(status(device.context.new_stream()), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    device.emulator.reset_device(true);
    assert_eq!(status(device.context.new_stream()), CUresult::CUDA_SUCCESS);
}

#[test]
fn a_wild_pointer_and_a_trap_are_errors() {
    for (entry, expected) in
        [("test_fill", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), ("test_trap", CUresult::CUDA_ERROR_ASSERT)]
    {
        let device = Device::open();
        let stream = device.stream();
        let wild = Params { from: 8, to: 8, value: 0.0, elements: 1 };
        launch(&stream, &device.function(entry), wild).unwrap();
        assert_eq!(status(stream.synchronize()), expected);
        assert!(device.emulator.last_problem().contains(entry), "{}", device.emulator.last_problem());
    }
}

#[test]
fn check_mode_reports_through_the_driver() {
    let device = Device::open();
    device.emulator.add_kernels(Path::new(env!("EMULATOR_KERNELS_BUGS")));
    let stream = device.stream();
    let x = stream.alloc_zeros::<f32>(64).unwrap();
    let function = device.context.load_module(ptx("bug_race_global", 8)).unwrap();
    let function = function.load_function("bug_race_global").unwrap();
    let shape = LaunchConfig { grid_dim: (2, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes one pointer.
    unsafe { stream.launch_builder(&function).arg(&x).launch(shape) }.unwrap();
    assert_eq!(status(stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert!(device.emulator.last_problem().contains("data race in global memory"));
}

#[test]
fn memory_freed_twice_and_memory_never_freed_are_reported() {
    let device = Device::open();
    let stream = device.stream();
    let x = allocate(512);
    // SAFETY: the double free is what this is about.
    let free = || unsafe { sys::cuMemFreeAsync(x, stream.cu_stream()).result() };
    free().and_then(|()| free()).unwrap();
    assert_eq!(status(stream.synchronize()), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(device.emulator.last_problem().starts_with("free of 0x"));
    drop((stream, device));

    let Device { emulator, context, _alone } = Device::open();
    assert_ne!(allocate(512), 0);
    drop(context);
    assert_eq!(emulator.counts().leaked_allocations, 1);
    assert!(emulator.last_problem().contains("1 allocations (512 bytes) not freed"));
}

/// Memory that nobody owns.
fn allocate(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the place is as large as what is written.
    unsafe { sys::cuMemAlloc_v2(&mut address, bytes).result().unwrap() };
    address
}

#[test]
fn memory_has_an_end() {
    let device = Device::open();
    device.emulator.set_memory_bytes(4096);
    let stream = device.stream();
    let half = stream.alloc_zeros::<u8>(2048).unwrap();
    assert_eq!(status(stream.alloc_zeros::<u8>(2049)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    drop(half);
    stream.synchronize().unwrap();
    stream.alloc_zeros::<u8>(4096).unwrap();
    assert_eq!(device.emulator.counts().peak_bytes, 4096);
}

#[test]
fn large_zeros_stop_where_they_should_and_cost_no_memory() {
    let device = Device::open();
    device.emulator.set_memory_bytes(1 << 40);
    let stream = device.stream();
    // More than any machine that runs this has.
    let mut far = stream.alloc_zeros::<u8>(1 << 38).unwrap();
    stream.memcpy_htod(&[7u8; 3], &mut far.slice_mut((1 << 38) - 3..)).unwrap();
    assert_eq!(stream.clone_dtoh(&far.slice((1 << 38) - 5..)).unwrap(), [0, 0, 7, 7, 7]);
    assert_eq!(stream.clone_dtoh(&far.slice(1 << 37..(1 << 37) + 4)).unwrap(), [0; 4]);
    // Neither starts nor ends with a page; by a fill, then by a copy.
    let (length, range) = (1_100_000, 1_001..1_099_998);
    for copied in [false, true] {
        let mut ones = stream.clone_htod(&vec![1u8; length]).unwrap();
        let mut inner = ones.slice_mut(range.clone());
        match copied {
            true => stream.memcpy_htod(&vec![0u8; range.len()], &mut inner).unwrap(),
            false => stream.memset_zeros(&mut inner).unwrap(),
        }
        let mut expected = vec![1u8; length];
        expected[range.clone()].fill(0);
        assert!(stream.clone_dtoh(&ones).unwrap() == expected, "copied: {copied}");
    }
}

#[test]
fn what_a_reset_takes_away_may_be_freed_later() {
    let device = Device::open();
    let stream = device.stream();
    // SAFETY: written by nobody, read by nobody.
    let pinned = unsafe { device.context.alloc_pinned::<u8>(4096) }.unwrap();
    let memory = stream.alloc_zeros::<u8>(512).unwrap();
    device.emulator.set_fault(Fault::Lost, 1);
    assert_eq!(status(stream.synchronize()), CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert!(device.emulator.reset_device(true));
    let counts = device.emulator.counts();
    assert_eq!((counts.live_allocations, counts.live_pinned), (0, 0));
    drop((pinned, memory));
    assert_eq!(device.emulator.last_problem(), "");
}

#[test]
fn images_are_checked_when_they_are_loaded() {
    let device = Device::open();
    let load = |image: Ptx| status(device.context.load_module(image));
    assert_eq!(load(Ptx::from_src("")), CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(device.emulator.last_problem().contains("the PTX of a module is empty"));
    assert_eq!(load(ptx("test_fill", 32)), CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(device.emulator.last_problem().contains("the PTX is stale"));
    let newer = ptx("test_fill", 24).to_src().replace("8.0", "8.1");
    assert_eq!(load(Ptx::from_src(newer)), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let beyond = ptx("test_fill", 24).to_src().replace("sm_70", "sm_100");
    assert_eq!(load(Ptx::from_src(beyond)), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let module = device.context.load_module(ptx("no_such_kernel", 24)).unwrap();
    assert_eq!(status(module.load_function("no_such_kernel")), CUresult::CUDA_ERROR_NOT_FOUND);
}

#[test]
fn every_embedded_image_loads_in_both_modes() {
    let device = Device::open();
    let written = ssmgraph_kernels::cuda::IMAGES.iter().filter(|image| !image.ptx.is_empty());
    for image in written {
        for mode in [Mode::Fast, Mode::Check] {
            device.emulator.set_mode(mode);
            let module = device.context.load_module(Ptx::from_src(image.ptx));
            assert_eq!(
                status(module),
                CUresult::CUDA_SUCCESS,
                "{}: {}",
                image.name,
                device.emulator.last_problem()
            );
        }
    }
}

#[test]
fn launches_keep_to_the_bounds() {
    let device = Device::open();
    let stream = device.stream();
    let fill = device.function("test_fill");
    let shaped = |blocks: u32, threads: u32, shared_mem_bytes: u32| {
        let shape = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes };
        let params = Params { from: 0, to: 0, value: 0.0, elements: 0 };
        // SAFETY: no elements, so that no pointer is followed.
        status(unsafe { stream.launch_builder(&fill).arg(&params).launch(shape) })
    };
    assert_eq!(shaped(1, 64, 48 << 10), CUresult::CUDA_SUCCESS);
    assert_eq!(shaped(0, 64, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shaped(1, 1025, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shaped(1, 65, 0), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_eq!(shaped(1, 64, (48 << 10) + 1), CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn each_kind_of_call_fails_on_demand() {
    let device = Device::open();
    let stream = device.stream();
    let (emulator, fill) = (device.emulator, device.function("test_fill"));
    let x = stream.alloc_zeros::<f32>(ELEMENTS).unwrap();
    let run = || launch(&stream, &fill, params(&stream, &x, &x, 1.0));
    let expect = |fault, calls: &dyn Fn() -> CUresult, expected| {
        emulator.set_fault(fault, 2);
        assert_eq!(calls(), CUresult::CUDA_SUCCESS, "{fault:?} 1");
        assert_eq!(calls(), expected, "{fault:?} 2");
        assert_eq!(calls(), CUresult::CUDA_SUCCESS, "{fault:?} 3");
    };
    // SAFETY: nobody reads the memory.
    let allocate = || status(unsafe { stream.alloc::<f32>(4) });
    expect(Fault::Alloc, &allocate, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    expect(Fault::Launch, &|| status(run()), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    expect(Fault::Copy, &|| status(stream.clone_dtoh(&x)), CUresult::CUDA_ERROR_INVALID_VALUE);
    let load = || status(device.context.load_module(ptx("test_fill", 24)));
    expect(Fault::Module, &load, CUresult::CUDA_ERROR_INVALID_PTX);
    let graph = record(&stream, run).unwrap();
    expect(Fault::Graph, &|| status(graph.launch()), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    for n in [1, 2] {
        emulator.set_fault(Fault::Capture, n);
        let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        assert_eq!(
            status(stream.begin_capture(CAPTURE).and_then(|()| stream.end_capture(NO_FLAGS))),
            unsupported
        );
        stream.synchronize().unwrap();
        record(&stream, run).unwrap();
    }
}

#[test]
fn a_failed_wait_and_a_lost_device_stay() {
    let device = Device::open();
    let stream = device.stream();
    device.emulator.set_fault(Fault::Sync, 1);
    assert_eq!(status(stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(status(device.context.new_stream()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    drop((stream, device));

    let device = Device::open();
    let stream = device.stream();
    device.emulator.set_fault(Fault::Lost, 3);
    let answers = [(); 4].map(|()| status(device.context.bind_to_thread()));
    let (good, lost) = (CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(answers, [good, good, lost, lost]);
    assert_eq!(status(stream.synchronize()), lost);
    assert!(device.emulator.reset_device(true));
    assert_eq!(status(device.context.new_stream()), CUresult::CUDA_SUCCESS);
}

#[test]
fn threads_use_streams_of_their_own() {
    let device = Device::open();
    let add = device.function("test_add");
    std::thread::scope(|scope| {
        for start in 0..4 {
            let (device, add) = (&device, &add);
            scope.spawn(move || {
                let context = CudaContext::new(0).unwrap();
                let stream = device.stream();
                let x = stream.clone_htod(&numbers(start as f32)).unwrap();
                for _ in 0..20 {
                    launch(&stream, add, params(&stream, &x, &x, 1.0)).unwrap();
                }
                assert_eq!(stream.clone_dtoh(&x).unwrap(), numbers(start as f32 + 20.0));
                drop((x, stream, context));
            });
        }
    });
    device.context.synchronize().unwrap();
    assert_eq!(device.emulator.counts().live_allocations, 0);
}
