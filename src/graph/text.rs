//! Text forms of a graph: one line per node, Graphviz, Mermaid.

use super::{Action, Flags, Graph, Node, Tensor};
use std::fmt::Write;

impl Graph {
    /// One line per node: name, op with attributes, operands, layouts, flags. Leaves that are only named in
    /// the lines of their users are left out.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (index, node) in self.nodes() {
            if let Action::Op(_) = node.action {
                writeln!(text, "{}", self.line(index, node)).expect("writing to a string");
            }
        }
        for (pool, last) in &self.states {
            if pool != last {
                writeln!(text, "{} <- {}", self.label(*pool), self.label(*last))
                    .expect("writing to a string");
            }
        }
        text
    }

    /// A node as one line.
    pub(crate) fn line(&self, index: usize, node: &Node) -> String {
        let operands: Vec<String> = node.operands.iter().map(|&operand| self.operand_text(operand)).collect();
        let results: Vec<String> = node.results.iter().map(|layout| layout.to_string()).collect();
        let (op, attributes) = match &node.action {
            Action::Op(op) => (op.name(), op.attributes()),
            Action::Leaf | Action::Slots(_) => (kind_of(node.flags), String::new()),
        };
        let separator = if attributes.is_empty() { "" } else { " " };
        let flags = flag_text(node.flags);
        format!(
            "{} = {op}({}){separator}{attributes} -> {}{flags}",
            self.label(self.tensor(index, 0)),
            operands.join(", "),
            results.join(", ")
        )
    }

    /// `%12`, `%12.1` for a second result, or the node's name.
    pub(crate) fn label(&self, tensor: Tensor) -> String {
        let base = match &self.node(tensor.node()).name {
            Some(name) => name.clone(),
            None => format!("%{}", tensor.node),
        };
        if tensor.result == 0 { base } else { format!("{base}.{}", tensor.result) }
    }

    /// An operand as its label; leaves with their layout.
    fn operand_text(&self, tensor: Tensor) -> String {
        let node = self.node(tensor.node());
        match node.action {
            Action::Op(_) => self.label(tensor),
            Action::Leaf | Action::Slots(_) => {
                format!("{}: {}", self.label(tensor), node.results[tensor.result()])
            }
        }
    }

    /// Graphviz source.
    pub fn to_dot(&self) -> String {
        let mut text =
            String::from("digraph ssmgraph {\n  rankdir=TB;\n  node [shape=box, fontname=monospace];\n");
        self.boxes(|index, label, leaf| {
            let shape = if leaf { ", style=rounded" } else { "" };
            writeln!(text, "  n{index} [label={label:?}{shape}];").expect("writing to a string");
        });
        for (index, node) in self.nodes() {
            for operand in &node.operands {
                writeln!(text, "  n{} -> n{index};", operand.node).expect("writing to a string");
            }
        }
        text.push_str("}\n");
        text
    }

    /// Mermaid source.
    pub fn to_mermaid(&self) -> String {
        let mut text = String::from("flowchart TB\n");
        self.boxes(|index, label, leaf| {
            let label = label.replace('"', "'").replace('\n', "<br/>");
            let (open, close) = if leaf { ("([", "])") } else { ("[", "]") };
            writeln!(text, "  n{index}{open}\"{label}\"{close}").expect("writing to a string");
        });
        for (index, node) in self.nodes() {
            for operand in &node.operands {
                writeln!(text, "  n{} --> n{index}", operand.node).expect("writing to a string");
            }
        }
        text
    }

    /// Calls `draw` with index, two-line label and whether the node is a leaf.
    fn boxes(&self, mut draw: impl FnMut(usize, String, bool)) {
        for (index, node) in self.nodes() {
            let layout = node.results[0].to_string();
            match &node.action {
                Action::Op(op) => {
                    let name = node.name.as_deref().unwrap_or(op.name());
                    draw(index, format!("{name}\n{layout}"), false)
                }
                Action::Leaf | Action::Slots(_) => {
                    draw(index, format!("{}\n{layout}", self.label(self.tensor(index, 0))), true)
                }
            }
        }
    }
}

fn kind_of(flags: Flags) -> &'static str {
    if flags.contains(Flags::WEIGHT) {
        "weight"
    } else if flags.contains(Flags::CACHE) {
        "cache"
    } else if flags.contains(Flags::STATE) {
        "state"
    } else {
        "input"
    }
}

fn flag_text(flags: Flags) -> &'static str {
    if flags.contains(Flags::OUTPUT) {
        " [output]"
    } else if flags.contains(Flags::KEEP) {
        " [keep]"
    } else {
        ""
    }
}
