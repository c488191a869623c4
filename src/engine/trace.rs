//! Watching the nodes of an engine's runs.

use crate::graph::Action;
use crate::plan::Plan;
use crate::session::NodeObserver;

/// Sees every node of an engine's runs begin and end, in order, on the thread that runs the engine.
pub trait NodeTracer: Send + Sync {
    /// Before a node: its op, and the node as one line of text.
    fn begin(&self, op: &'static str, line: &str);
    /// After the node that began last.
    fn end(&self);
}

/// Op and text of each node of a plan.
pub(super) fn labels(plan: &Plan) -> Vec<(&'static str, String)> {
    let label = |(index, node): (usize, &crate::graph::Node)| match &node.action {
        Action::Op(op) => (op.name(), plan.graph.line(index, node)),
        Action::Leaf | Action::Slots(_) => ("leaf", String::new()),
    };
    plan.graph.nodes().map(label).collect()
}

/// A tracer as the observer of one session.
pub(super) struct Labelled<'a> {
    pub tracer: &'a dyn NodeTracer,
    pub labels: &'a [(&'static str, String)],
}

impl NodeObserver for Labelled<'_> {
    fn begin(&self, node: usize) {
        let (op, line) = &self.labels[node];
        self.tracer.begin(op, line);
    }

    fn end(&self, _node: usize) {
        self.tracer.end();
    }
}
