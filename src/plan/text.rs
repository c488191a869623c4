//! The text form of a plan: one line per step, then the memory.

use super::{CopyReason, Home, Plan, PlanStep, Spot, ValueId};
use std::collections::BTreeMap;
use std::fmt::Write;

impl Plan {
    /// One line per step with the bytes it reads and writes, then the memory of each device.
    ///
    /// `[64..128)` are bytes of the arena; `in place` marks a result that takes the place of an operand.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            let line = match step {
                PlanStep::Compute { node, device, inputs, results } => {
                    self.compute_line(*node, *device, inputs, results)
                }
                PlanStep::Copy { from, to, why } => format!(
                    "copy {} {} -> {} {} ({} bytes: {})",
                    self.devices[self.values[*from].device],
                    self.value_text(*from),
                    self.devices[self.values[*to].device],
                    self.value_text(*to),
                    self.values[*from].bytes,
                    reason_text(*why)
                ),
            };
            writeln!(text, "{line}").expect("writing to a string");
        }
        text.push_str(&self.memory_text());
        text
    }

    fn compute_line(&self, node: usize, device: usize, inputs: &[Spot], results: &[Spot]) -> String {
        let places: Vec<String> = results
            .iter()
            .map(|result| {
                let in_place = inputs.iter().any(|input| input.value == result.value);
                format!("{}{}", self.value_text(result.value), if in_place { " in place" } else { "" })
            })
            .collect();
        format!(
            "{}: {} @ {}",
            self.devices[device],
            self.graph.line(node, self.graph.node(node)),
            places.join(", ")
        )
    }

    fn value_text(&self, value: ValueId) -> String {
        let value = &self.values[value];
        let leaf = |node: usize| self.graph.label(self.graph.tensor(node, 0));
        match value.home {
            Home::Input { node } | Home::Weight { node } | Home::State { node } => leaf(node),
            Home::Arena { offset_bytes } => format!("[{offset_bytes}..{})", offset_bytes + value.bytes),
        }
    }

    /// Bytes of each device by kind: weights, states, inputs, arena.
    pub fn memory(&self) -> Vec<BTreeMap<&'static str, usize>> {
        let mut sums = vec![BTreeMap::new(); self.devices.len()];
        for value in &self.values {
            let kind = match value.home {
                Home::Input { .. } => "inputs",
                Home::Weight { .. } => "weights",
                Home::State { .. } => "states",
                Home::Arena { .. } => continue,
            };
            *sums[value.device].entry(kind).or_insert(0) += value.bytes;
        }
        for (device, bytes) in self.arena_bytes.iter().enumerate() {
            sums[device].insert("arena", *bytes);
        }
        sums
    }

    fn memory_text(&self) -> String {
        let mut text = String::new();
        for (device, kinds) in self.memory().iter().enumerate() {
            if kinds.values().all(|&bytes| bytes == 0) {
                continue;
            }
            let parts: Vec<String> = kinds.iter().map(|(kind, bytes)| format!("{kind} {bytes}")).collect();
            writeln!(text, "memory {}: {} bytes", self.devices[device], parts.join(", "))
                .expect("writing to a string");
        }
        text
    }
}

fn reason_text(why: CopyReason) -> &'static str {
    match why {
        CopyReason::OtherDevice => "read on another device",
        CopyReason::OldValueNeeded => "the old value is read later",
        CopyReason::KeptState => "kept, but the pool changes",
        CopyReason::StateWriteBack => "new value of the state",
    }
}
