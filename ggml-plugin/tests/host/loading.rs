//! The library in a process: without a GPU, closed too early, with a driver that shall be left alone.

use crate::plugin::{Device, Host, text};
use crate::{Add, Hosts, PLAIN, Setting};

pub fn add(add: Add<'_>) {
    add("loading::without_driver", Hosts::OwnAndShared, one_device);
    let off = Setting { cuda: true, variables: &[("SSMGRAPH_GGML_CUDA", "0")], ..PLAIN };
    add("loading::cuda_left_out", Hosts::Only(off), one_device);
    add("loading::closed_early", Hosts::OwnAndShared, closed_early);
}

fn one_device(host: Host) {
    assert_eq!(host.devices().len(), 1, "{}", host.lines());
}

/// A host may hold a registry past the library's end: the library stays.
fn closed_early(host: Host) {
    let (registry, version) = (host.init(), host.setting.version);
    let stream = host.device().stream();
    host.close();
    // SAFETY: what the plugin gave stays, its code included.
    unsafe {
        assert_eq!(text(((*registry).table.get_name)(registry)), "SSMGRAPH");
        let device = Device(((*registry).table.get_device)(registry, 0), version);
        assert_eq!(device.name(), "SSMGRAPH");
        let buffer = device.buffer_type().allocate(100);
        crate::plugin::free_buffer(buffer);
    }
    drop(stream);
}
