//! What stands in the place of what.

use super::look;
use crate::graph::{Action, Flags, Graph, Node, Rebuild, Tensor};
use smallvec::SmallVec;
use ssmgraph_ops::{Layout, Op, Reshape, Transpose};
use std::collections::{BTreeMap, BTreeSet};

/// The graph id in handles of nodes that a fusion adds; graphs count from 1.
const ADDED: u32 = 0;

/// Nodes that are taken out of a graph and nodes that stand in their place.
pub struct Fusion<'g> {
    graph: &'g Graph,
    /// Nodes that disappear.
    vanishing: BTreeSet<usize>,
    /// Nodes to add. Operands are tensors of the graph or of nodes added before.
    added: Vec<Node>,
    /// Nodes that are replaced, each with the tensor that its result 0 becomes.
    replaced: BTreeMap<usize, Tensor>,
    /// The node that was replaced first. It may be seen: what replaces it has its name and flags.
    seen: Option<usize>,
}

impl<'g> Fusion<'g> {
    /// Nothing yet.
    pub fn new(graph: &'g Graph) -> Fusion<'g> {
        Fusion { graph, vanishing: BTreeSet::new(), added: Vec::new(), replaced: BTreeMap::new(), seen: None }
    }

    /// Takes nodes that disappear.
    pub fn take(&mut self, parts: impl IntoIterator<Item = usize>) {
        self.vanishing.extend(parts);
    }

    /// Adds a node and returns its result 0; `None` when the op refuses the operands.
    pub fn op(&mut self, op: impl Into<Op>, operands: &[Tensor]) -> Option<Tensor> {
        let op = op.into();
        let layouts: SmallVec<[Layout; 8]> = operands.iter().map(|&operand| self.layout(operand)).collect();
        let results = op.infer(&layouts).ok()?;
        self.added.push(Node {
            action: Action::Op(op),
            operands: operands.iter().copied().collect(),
            results,
            flags: Flags::empty(),
            name: None,
        });
        Some(Tensor { graph: ADDED, node: self.added.len() as u32 - 1, result: 0 })
    }

    /// A tensor under another shape, read from below the reshapes that it already has.
    pub fn reshape(&mut self, tensor: Tensor, ne: [usize; 4]) -> Option<Tensor> {
        let mut base = tensor;
        while base.graph != ADDED
            && let Some((Op::Reshape(_), operands)) = look::op(self.graph, base.node())
        {
            base = operands[0];
        }
        match [base, tensor].into_iter().find(|&tensor| self.layout(tensor).ne == ne) {
            Some(tensor) => Some(tensor),
            None => self.op(Reshape { ne }, &[base]).or_else(|| self.op(Reshape { ne }, &[tensor])),
        }
    }

    /// A tensor with axes 0 and 1 exchanged.
    pub fn transpose(&mut self, tensor: Tensor) -> Option<Tensor> {
        self.op(Transpose, &[tensor])
    }

    /// Puts a new tensor, under the shape of the old one, in the place of a node's result 0. If the node has more
    /// results, those that follow the new tensor take theirs.
    ///
    /// `None` when they are not alike.
    pub fn replace(&mut self, index: usize, by: Tensor) -> Option<()> {
        let old = &self.graph.node(index).results;
        let by = match old.len() {
            1 => self.reshape(by, old[0].ne)?,
            _ => by,
        };
        let new = &self.added.get(by.node()).filter(|_| by.graph == ADDED)?.results;
        if new.get(by.result()..by.result() + old.len())? != old.as_slice() {
            return None;
        }
        self.seen.get_or_insert(index);
        self.replaced.insert(index, by);
        Some(())
    }

    /// The parts: what disappears and what is replaced.
    pub fn parts(&self) -> impl Iterator<Item = usize> {
        self.vanishing().chain(self.replaced.keys().copied())
    }

    /// Parts that have no place in the new graph.
    pub fn vanishing(&self) -> impl Iterator<Item = usize> {
        self.vanishing.iter().copied()
    }

    /// Whether a node has no place in the new graph.
    pub fn drops(&self, index: usize) -> bool {
        self.vanishing.contains(&index)
    }

    /// Tensors of the graph that the new nodes read.
    pub fn operands(&self) -> impl Iterator<Item = Tensor> {
        self.added.iter().flat_map(|node| &node.operands).copied().filter(|operand| operand.graph != ADDED)
    }

    /// The node at whose place the new nodes come.
    pub fn first(&self) -> usize {
        *self.replaced.keys().next().expect("a fusion replaces something")
    }

    /// Whether nobody else sees the parts: no name, no flag, no user outside, none a state's new value as
    /// `ends_state` says of each node. The first node replaced may be seen.
    pub fn is_unseen(&self, ends_state: &[bool]) -> bool {
        let hidden = |part: usize| {
            let node = self.graph.node(part);
            let flagged = node.flags.intersects(Flags::OUTPUT | Flags::KEEP);
            node.name.is_none() && !flagged && !ends_state[part]
        };
        let used_inside = |part: usize| self.graph.users(part).all(|user| self.has(user));
        self.parts().filter(|&part| Some(part) != self.seen).all(hidden) && self.vanishing().all(used_inside)
    }

    /// Whether everything that the new nodes read is there when they come: made before, or given from outside, and
    /// none of the parts.
    pub fn is_computable(&self) -> bool {
        let first = self.first();
        self.operands().all(|operand| {
            let given = || look::is_given(self.graph, operand);
            !self.has(operand.node()) && (operand.node() < first || given())
        })
    }

    /// Adds the new nodes to a graph in the making.
    pub fn apply(&self, rebuild: &mut Rebuild<'_>) {
        for operand in self.operands() {
            self.bring_forward(rebuild, operand.node());
        }
        let mut made: Vec<Tensor> = Vec::with_capacity(self.added.len());
        for (index, node) in self.added.iter().enumerate() {
            let mut node = node.clone();
            for operand in &mut node.operands {
                *operand = match operand.graph {
                    ADDED => Tensor { result: operand.result, ..made[operand.node()] },
                    _ => rebuild.moved(*operand).expect("checked to be computable"),
                };
            }
            if let Some(seen) = self.seen.filter(|seen| self.replaced[seen].node() == index) {
                let seen = self.graph.node(seen);
                (node.name, node.flags) = (seen.name.clone(), seen.flags);
            }
            made.push(rebuild.append(node));
        }
        for (&index, &by) in &self.replaced {
            rebuild.replace(index, Tensor { result: by.result, ..made[by.node()] });
        }
    }

    /// Copies a leaf, or a view of one, that was declared after the place of the new nodes.
    fn bring_forward(&self, rebuild: &mut Rebuild<'_>, index: usize) {
        let mut chain = vec![index];
        while let Some(&operand) = self.graph.node(chain[chain.len() - 1]).operands.first()
            && rebuild.moved(self.graph.tensor(chain[chain.len() - 1], 0)).is_none()
        {
            chain.push(operand.node());
        }
        chain.into_iter().rev().for_each(|node| rebuild.copy(node));
    }

    fn has(&self, index: usize) -> bool {
        self.vanishing.contains(&index) || self.replaced.contains_key(&index)
    }

    fn layout(&self, tensor: Tensor) -> Layout {
        match tensor.graph {
            ADDED => self.added[tensor.node()].results[tensor.result()],
            _ => look::layout(self.graph, tensor),
        }
    }
}
