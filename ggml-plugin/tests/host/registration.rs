//! What the plugin tells of itself.

use crate::plugin::{Host, text};
use crate::{Add, Hosts, PLAIN, base::Base};
use ssmgraph_ggml::abi::{self, DeviceType};

pub fn add(add: Add<'_>) {
    add("registration::entries", Hosts::All, entries);
    add("registration::twice", Hosts::Own, twice);
    add("registration::functions", Hosts::Own, functions);
    add(
        "registration::static_host",
        Hosts::Only(crate::Setting { base: Base::None, kind: "accel", ..PLAIN }),
        no_ggml,
    );
    let odd = crate::Setting { variables: &[("SSMGRAPH_GGML_TYPE", "tpu")], ..PLAIN };
    add("registration::unknown_type", Hosts::Only(odd), unknown_type);
    let forced = crate::Setting { variables: &[("SSMGRAPH_GGML_API", "2")], ..PLAIN };
    add("registration::forced_version", Hosts::Only(forced), forced_version);
    let wrong = |base, kind| crate::Setting { base, kind, ..PLAIN };
    add("registration::other_tensor", Hosts::Only(wrong(Base::OtherTensor, "accel")), other_tensor);
    add("registration::other_numbers", Hosts::Only(wrong(Base::OtherNumbers, "accel")), other_numbers);
}

/// The entries that every host calls are there (those that may not be null are not options in the structs).
fn entries(host: Host) {
    let registry = host.init();
    // SAFETY: a registry of the plugin, which stays.
    let table = unsafe {
        assert_eq!((*registry).api_version, host.setting.version);
        assert_eq!(text(((*registry).table.get_name)(registry)), "SSMGRAPH");
        &(*registry).table
    };
    let devices = host.devices();
    let names: Vec<String> = devices.iter().map(|device| device.name()).collect();
    let expected: &[&str] = if host.setting.cuda { &["SSMGRAPH", "SSMGRAPH-CUDA0"] } else { &["SSMGRAPH"] };
    assert_eq!(names, expected, "{}", host.lines());
    // SAFETY: an index past the count is answered.
    assert!(unsafe { (table.get_device)(registry, devices.len()) }.is_null());
    for (index, device) in devices.iter().enumerate() {
        let own_type = if host.setting.kind == "accel" { DeviceType::Accel } else { DeviceType::Gpu };
        let kind = if index == 0 { own_type } else { DeviceType::Gpu } as i32;
        assert_eq!(device.kind(), kind);
        let properties = device.properties();
        assert_eq!((text(properties.name), properties.kind), (device.name(), kind));
        assert!(text(properties.description).starts_with("ssmgraph on "));
        assert!(properties.memory_total > 0 && properties.memory_free <= properties.memory_total);
        assert!(!properties.capabilities.asynchronous && !properties.capabilities.events);
        assert_eq!(properties.capabilities.buffer_from_host_ptr, index == 0);
        let (mut free, mut total) = (0, 0);
        // SAFETY: devices and registries of the plugin, which stay.
        unsafe {
            assert_eq!((*device.0).registry, registry);
            (device.table().get_memory)(device.0, &mut free, &mut total);
            assert!(!text((device.table().get_description)(device.0)).is_empty());
        }
        assert_eq!(total, properties.memory_total);
        let stream = device.stream();
        // SAFETY: the stream lives.
        let backend = unsafe { &*stream.0 };
        assert_eq!(backend.device, device.0);
        // SAFETY: a guid is 16 bytes that stay.
        assert!(unsafe { *backend.guid }.iter().any(|&byte| byte != 0));
        // SAFETY: the stream's own function.
        assert_eq!(text(unsafe { (backend.table.get_name)(stream.0) }), device.name());
        // SAFETY: as above.
        assert!(unsafe { (device.table().supports_buft)(device.0, device.buffer_type().0) });
        // SAFETY: null is answered.
        assert!(!unsafe { (device.table().supports_buft)(device.0, std::ptr::null_mut()) });
    }
    assert_eq!(host.score(), 1);
}

fn twice(host: Host) {
    let first = host.init();
    assert!(!first.is_null());
    assert_eq!(first, host.init());
}

fn functions(host: Host) {
    assert!(!host.function("ggml_backend_set_n_threads").is_null());
    assert!(!host.function("ssmgraph_counts").is_null());
    for name in ["", "ggml_backend_split_buffer_type", "ggml_backend_set_n_thread", "SSMGRAPH_COUNTS"] {
        assert!(host.function(name).is_null(), "{name}");
    }
    let registry = host.init();
    // SAFETY: null is answered.
    let answer = unsafe { (*registry).table.get_proc_address.expect("is there")(registry, std::ptr::null()) };
    assert!(answer.is_null());
}

/// Without symbols the device makes its own buffers, whose structs can be freed as ggml frees them.
fn no_ggml(host: Host) {
    let device = host.device();
    assert_eq!(device.kind(), DeviceType::Accel as i32);
    assert_eq!(device.buffer_type().name(), "SSMGRAPH");
    crate::compute::add_two(&host);
    // SAFETY: a registry of the plugin.
    assert_eq!(unsafe { (*host.init()).api_version }, host.setting.version);
}

fn unknown_type(host: Host) {
    assert_eq!(host.device().kind(), DeviceType::Accel as i32);
    assert!(host.lines().contains("SSMGRAPH_GGML_TYPE=tpu is neither accel nor gpu"), "{}", host.lines());
}

fn forced_version(host: Host) {
    // SAFETY: a registry of the plugin.
    assert_eq!(unsafe { (*host.init()).api_version }, 2);
}

fn refused(host: &Host, why: &str) {
    for _ in 0..2 {
        assert_eq!(host.init(), std::ptr::null_mut::<abi::Registry>());
    }
    let lines = host.lines();
    assert!(lines.contains("ssmgraph: not registered: ") && lines.contains(why), "{lines}");
    assert_eq!(lines.matches("not registered").count(), 1, "said once: {lines}");
}

fn other_tensor(host: Host) {
    refused(&host, "a tensor of this ggml takes 384 bytes, expected 368");
}

fn other_numbers(host: Host) {
    refused(&host, "op 0 of this ggml is DUP, expected NONE");
}
