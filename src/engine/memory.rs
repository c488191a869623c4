//! What plans need on each device.

use crate::graph::Flags;
use crate::plan::{Home, Plan};
use std::collections::HashSet;

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Name of the device.
    pub device: String,
    /// Weights; on the CPU these are pages of the file.
    pub weight_bytes: usize,
    /// States of all slots.
    pub state_bytes: usize,
    /// Keys and values of all slots, with room for as many tokens as the engine was made for.
    pub cache_bytes: usize,
    /// Activations.
    pub arena_bytes: usize,
    /// Inputs.
    pub input_bytes: usize,
}

/// The sum over plans of one store: weights and states are shared, arenas and inputs are not.
pub(super) fn of_plans<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Vec<DeviceMemory> {
    let mut devices: Vec<DeviceMemory> = Vec::new();
    let mut shared: HashSet<(usize, &str)> = HashSet::new();
    for plan in plans {
        if devices.is_empty() {
            let empty = |device: &String| DeviceMemory {
                device: device.clone(),
                weight_bytes: 0,
                state_bytes: 0,
                cache_bytes: 0,
                arena_bytes: 0,
                input_bytes: 0,
            };
            devices = plan.devices.iter().map(empty).collect();
        }
        for (device, bytes) in devices.iter_mut().zip(&plan.arena_bytes) {
            device.arena_bytes += bytes;
        }
        for value in &plan.values {
            let device = &mut devices[value.device];
            let mut first = |node: usize| {
                shared.insert((value.device, plan.graph.node(node).name.as_deref().unwrap_or_default()))
            };
            match value.home {
                Home::Weight { node } if first(node) => device.weight_bytes += value.bytes,
                Home::State { node } if first(node) => {
                    match plan.graph.node(node).flags.contains(Flags::CACHE) {
                        true => device.cache_bytes += value.bytes,
                        false => device.state_bytes += value.bytes,
                    }
                }
                Home::Input { .. } => device.input_bytes += value.bytes,
                Home::Weight { .. } | Home::State { .. } | Home::Arena { .. } => {}
            }
        }
    }
    devices.retain(|d| d.weight_bytes + d.state_bytes + d.cache_bytes + d.arena_bytes + d.input_bytes > 0);
    devices
}
