//! Graphs and their instances.

use super::place::{In, Out};
use crate::driver::faults::Call;
use crate::driver::launch::{Arguments, Shape};
use crate::driver::state::{Handle, in_context};
use crate::driver::status::Status;
use crate::driver::work::Work;
use std::ffi::{c_int, c_uint, c_void};

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelNodeParameters {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    arguments: Arguments,
    extra: *const c_void,
    kernel: Handle,
    context: Handle,
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
struct UpdateResult {
    result: c_int,
    error_node: Handle,
    error_from_node: Handle,
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) -> c_int {
    in_context(Call::Graph, |driver| exec.set(driver.instantiate(graph, flags)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(exec: Handle, stream: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.upload_graph(exec, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> c_int {
    in_context(Call::Graph, |driver| driver.launch_graph(exec, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.destroy_exec(exec))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    in_context(Call::Other, |driver| driver.destroy_graph(graph))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: Out<UpdateResult>) -> c_int {
    in_context(Call::Graph, |driver| {
        let answer = driver.update_exec(exec, graph)?;
        let (result, error_node) = answer.map_or_else(|(why, node)| (why as c_int, node), |()| (0, 0));
        info.offer(UpdateResult { result, error_node, error_from_node: 0 });
        answer.map_err(|_| Status::UPDATE_FAILURE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) -> c_int {
    in_context(Call::Other, |driver| {
        let there = driver.graph(graph)?.nodes.len();
        if nodes.is_null() {
            return count.set(there);
        }
        let given = count.get()?.min(there);
        nodes.fill(given, graph + 1..);
        count.set(given)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetType(node: Handle, kind: Out<c_int>) -> c_int {
    in_context(Call::Other, |driver| kind.set(driver.node(node)?.kind()))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeGetParams_v2(node: Handle, place: Out<KernelNodeParameters>) -> c_int {
    in_context(Call::Other, |driver| match &driver.node(node)?.work {
        Work::Kernel(launch) => {
            let Shape { grid, block, shared_bytes } = launch.shape;
            place.set(KernelNodeParameters {
                function: launch.handle,
                grid,
                block,
                shared_bytes,
                arguments: Arguments(std::ptr::null()),
                extra: std::ptr::null(),
                kernel: 0,
                context: 0,
            })
        }
        _ => Err(Status::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: Handle,
    node: Handle,
    parameters: In<KernelNodeParameters>,
) -> c_int {
    in_context(Call::Graph, |driver| {
        let wanted = parameters.get()?;
        let shape = Shape { grid: wanted.grid, block: wanted.block, shared_bytes: wanted.shared_bytes };
        let launch = driver.prepare_launch(wanted.function, shape, wanted.arguments)?;
        driver.set_node(exec, node, launch)
    })
}
