//! Buffers: sizes, contents, their end.

use crate::graph::{Arena, blank, edit};
use crate::plugin::{BufferType, Device, Host, free_buffer};
use crate::{Add, Hosts};
use ssmgraph::ops::{DType, Layout};
use ssmgraph_ggml::abi;

pub fn add(add: Add<'_>) {
    add("buffers::contents", Hosts::All, contents);
    add("buffers::sizes", Hosts::All, sizes);
    add("buffers::types", Hosts::All, types);
    add("buffers::outside", Hosts::All, outside);
    add("buffers::over_host_memory", Hosts::OwnAndShared, over_host_memory);
}

fn bytes(count: usize) -> Layout {
    Layout::contiguous(DType::I8, &[count]).expect("fits")
}

/// The device's own type: also where it wants the CPU's.
fn own_type(device: Device) -> BufferType {
    let mut place = 0u8;
    // SAFETY: the place outlives the buffer, which is freed below.
    let buffer = unsafe {
        let over = device.table().buffer_from_host_ptr.expect("is there");
        over(device.0, (&raw mut place).cast(), 1, 1)
    };
    if buffer.is_null() {
        return device.buffer_type();
    }
    // SAFETY: the buffer lives.
    let own = BufferType(unsafe { (*buffer).buffer_type }, device.1);
    free_buffer(buffer);
    own
}

fn contents(host: Host) {
    let device = host.device();
    let mut arena = Arena::of(own_type(device), 4096);
    let tensor = arena.tensor(&bytes(1000));
    let values: Vec<u8> = (0..1000).map(|index| index as u8).collect();
    arena.write(tensor, &values);
    assert_eq!(arena.read(tensor).bytes(), values);
    // SAFETY: ranges inside the tensor.
    unsafe {
        let table = (*arena.buffer).table;
        let mut part = [0u8; 10];
        table.get_tensor.expect("is there")(arena.buffer, tensor, part.as_mut_ptr().cast(), 990, 10);
        assert_eq!(part, values[990..]);
        table.set_tensor.expect("is there")(arena.buffer, tensor, [7u8; 3].as_ptr().cast(), 5, 3);
        table.memset_tensor.expect("is there")(arena.buffer, tensor, 9, 100, 50);
        // No bytes need no address.
        table.set_tensor.expect("is there")(arena.buffer, tensor, std::ptr::null(), 5, 0);
        table.get_tensor.expect("is there")(arena.buffer, tensor, std::ptr::null_mut(), 1000, 0);
        table.memset_tensor.expect("is there")(arena.buffer, tensor, 1, 1000, 0);
    }
    let mut expected = values;
    expected[5..8].fill(7);
    expected[100..150].fill(9);
    assert_eq!(arena.read(tensor).bytes(), expected);
    let own = expected.iter().filter(|&&byte| byte == 0xA5).count();
    let dump = arena.dump();
    assert_eq!(dump.iter().filter(|&&byte| byte == 0xA5).count(), 4096 - 1000 + own);
    // SAFETY: the buffer lives.
    unsafe { (*arena.buffer).table.clear.expect("is there")(arena.buffer, 0) };
    assert!(arena.dump().iter().all(|&byte| byte == 0));
}

fn sizes(host: Host) {
    let device = host.device();
    let own = own_type(device);
    assert!(own.alignment().is_power_of_two());
    for bytes in [0, 1, 7, 4096, 3 << 20] {
        let buffer = own.allocate(bytes);
        assert!(!buffer.is_null(), "{bytes} bytes");
        // SAFETY: the buffer lives.
        unsafe {
            let base = (*buffer).table.get_base.expect("is there")(buffer) as usize;
            assert!(base != 0 && base.is_multiple_of(own.alignment()));
            assert_eq!((*buffer).size, bytes);
            assert_eq!((*buffer).buffer_type, own.0);
            (*buffer).table.clear.expect("is there")(buffer, 3);
        }
        free_buffer(buffer);
    }
    for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
        let start = host.lines().len();
        assert!(own.allocate(bytes).is_null(), "{bytes} bytes");
        let lines = host.lines_since(start);
        assert!(
            lines.contains(&device.name()) && (lines.contains("memory") || lines.contains("addressed")),
            "{lines}"
        );
    }
}

fn types(host: Host) {
    let device = host.device();
    let (shared, own) = (device.buffer_type(), own_type(device));
    assert_eq!(own.name(), device.name());
    assert_eq!(own.is_host(), !host.setting.cuda);
    let expected = if host.setting.kind == "accel" { "CPU".to_owned() } else { device.name() };
    assert_eq!(shared.name(), expected);
    for of in [shared, own] {
        // SAFETY: types that live.
        assert!(unsafe { (device.table().supports_buft)(device.0, of.0) });
    }
    if host.setting.cuda {
        let cpu = host.devices()[0].buffer_type();
        // SAFETY: as above.
        assert!(!unsafe { (device.table().supports_buft)(device.0, cpu.0) }, "a GPU does not reach the host");
        // SAFETY: as above.
        assert!(!unsafe { (host.devices()[0].table().supports_buft)(host.devices()[0].0, own.0) });
    }
}

/// Copies that reach outside are refused, and said.
fn outside(host: Host) {
    let mut arena = Arena::of(own_type(host.device()), 1024);
    let tensor = arena.tensor(&bytes(16));
    let before = arena.dump();
    let mut target = [1u8; 64];
    // SAFETY: the buffer refuses these ranges; the host's own memory is as large as said.
    unsafe {
        let (buffer, table) = (arena.buffer, (*arena.buffer).table);
        for offset in [1024, usize::MAX - 3, usize::MAX / 2] {
            let start = host.lines().len();
            table.set_tensor.expect("is there")(buffer, tensor, target.as_ptr().cast(), offset, 64);
            table.get_tensor.expect("is there")(buffer, tensor, target.as_mut_ptr().cast(), offset, 64);
            table.memset_tensor.expect("is there")(buffer, tensor, 0, offset, 64);
            let lines = host.lines_since(start);
            assert_eq!(lines.matches("_tensor of ").count(), 3, "{lines}");
        }
        // A tensor that lies elsewhere.
        let stray = blank(&bytes(16));
        edit(stray, |stray| stray.data = 64 as *mut _);
        let start = host.lines().len();
        table.set_tensor.expect("is there")(buffer, stray, target.as_ptr().cast(), 0, 16);
        assert!(host.lines_since(start).contains("before its buffer"), "{}", host.lines());
    }
    assert_eq!(target, [1; 64]);
    assert_eq!(arena.dump(), before);
}

/// Weights that a host has mapped, at any alignment.
fn over_host_memory(host: Host) {
    let device = host.device();
    let values: Vec<u8> = (0..400).map(|index| index as u8).collect();
    let over = device.table().buffer_from_host_ptr.expect("is there");
    // SAFETY: the bytes outlive the buffer.
    unsafe {
        let buffer = over(device.0, values.as_ptr().add(1).cast_mut().cast(), 300, 300);
        assert!(!buffer.is_null());
        let base = (*buffer).table.get_base.expect("is there")(buffer);
        assert_eq!(base.cast_const(), values.as_ptr().add(1).cast());
        let tensor = blank(&bytes(4));
        edit(tensor, |tensor| (tensor.buffer, tensor.data) = (buffer, base.cast::<u8>().add(10).cast()));
        let mut part = [0u8; 4];
        (*buffer).table.get_tensor.expect("is there")(buffer, tensor, part.as_mut_ptr().cast(), 0, 4);
        assert_eq!(part, values[11..15]);
        free_buffer(buffer);
        assert_eq!(over(device.0, std::ptr::null_mut(), 300, 300), std::ptr::null_mut::<abi::Buffer>());
    }
}
