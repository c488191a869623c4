//! Which device runs each node: the first, in order of preference, that supports it.

use super::PlanError;
use crate::backend::Devices;
use crate::graph::{Action, Graph};
use ssmgraph_ops::{Layout, Storage};

/// Where a node runs and who declined it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Index of the device.
    pub device: usize,
    /// For each preferred device that declined, in order, its reason.
    pub declined: Vec<String>,
}

/// Asks the devices about every node that computes; leaves and views get `None`.
///
/// Errors: a node that all devices decline.
pub fn assign(graph: &Graph, devices: &Devices) -> Result<Vec<Option<Assignment>>, PlanError> {
    graph
        .nodes()
        .map(|(_, node)| {
            let Action::Op(op) = &node.action else { return Ok(None) };
            if matches!(op.storage(), Storage::View { .. }) {
                return Ok(None);
            }
            let layouts: Vec<Layout> =
                node.operands.iter().map(|t| graph.node(t.node()).results[t.result()]).collect();
            let mut declined = Vec::new();
            for (device, backend) in devices.backends().iter().enumerate() {
                match backend.supports(op, &layouts) {
                    Ok(()) => return Ok(Some(Assignment { device, declined })),
                    Err(reason) => declined.push(format!("{}: {reason}", backend.name())),
                }
            }
            Err(PlanError::Unsupported { op: op.name(), reasons: declined.join("; ") })
        })
        .collect()
}
