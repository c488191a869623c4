//! What ran where, and why.

use std::fmt;

/// Where one node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Index of the node in the planned graph.
    pub node: usize,
    /// The node as one line of text.
    pub text: String,
    /// Name of the device.
    pub device: String,
    /// What each preferred device said when it declined; empty when the first choice took it.
    pub declined: Vec<String>,
}

/// Where the nodes of a plan run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// One entry per node that computes, in order.
    pub nodes: Vec<NodeReport>,
    /// Number of copies in one run.
    pub copies: usize,
    /// Bytes of these copies.
    pub bytes_copied: usize,
    /// What the devices say about how they run, such as a failed capture; one sentence each.
    pub notes: Vec<String>,
}

impl Report {
    /// Nodes that did not run on the first choice.
    pub fn fallbacks(&self) -> impl Iterator<Item = &NodeReport> {
        self.nodes.iter().filter(|node| !node.declined.is_empty())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            write!(f, "{}: {}", node.device, node.text)?;
            if !node.declined.is_empty() {
                write!(f, "  (declined: {})", node.declined.join("; "))?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{} copies, {} bytes", self.copies, self.bytes_copied)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}
