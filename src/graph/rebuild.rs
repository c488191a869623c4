//! A graph made from another one, node by node: how passes rewrite.

use super::{Graph, Node, Tensor};

/// Where the tensors of a graph went in a graph made from it.
#[derive(Clone, Debug)]
pub struct Moves {
    /// For each old node the tensor that its result 0 became; its other results follow that one.
    to: Vec<Option<Tensor>>,
}

impl Moves {
    /// The new tensor of an old one; `None` when it is not there any more.
    pub fn of(&self, tensor: Tensor) -> Option<Tensor> {
        let first = (*self.to.get(tensor.node())?)?;
        Some(Tensor { result: first.result + tensor.result, ..first })
    }

    /// These moves and then those of the graph they led to.
    pub(crate) fn then(self, next: &Moves) -> Moves {
        Moves { to: self.to.into_iter().map(|to| next.of(to?)).collect() }
    }
}

/// A graph in the making. Nodes of the old graph are copied, replaced, or left out.
pub(crate) struct Rebuild<'a> {
    old: &'a Graph,
    new: Graph,
    moves: Moves,
}

impl<'a> Rebuild<'a> {
    pub(crate) fn new(old: &'a Graph) -> Rebuild<'a> {
        let new = Graph { slots: old.slots.clone(), capacity: old.capacity, ..Graph::new() };
        Rebuild { old, new, moves: Moves { to: vec![None; old.len()] } }
    }

    /// The new tensor of an old one, if it is there yet.
    pub(crate) fn moved(&self, tensor: Tensor) -> Option<Tensor> {
        self.moves.of(tensor)
    }

    /// Copies a node, unless it is there already. Its operands must be there.
    pub(crate) fn copy(&mut self, index: usize) {
        if self.moves.to[index].is_some() {
            return;
        }
        let mut node = self.old.node(index).clone();
        for operand in &mut node.operands {
            *operand = self.moved(*operand).expect("operands come before their users");
        }
        self.moves.to[index] = Some(self.append(node));
    }

    /// Appends a node whose operands are tensors of the new graph. Returns its result 0.
    pub(crate) fn append(&mut self, node: Node) -> Tensor {
        if let Some(name) = &node.name {
            self.new.names.insert(name.clone(), self.new.len() as u32);
        }
        Tensor { graph: self.new.id, node: self.new.append(node), result: 0 }
    }

    /// Has users of an old node's results read new tensors, from `to` on.
    pub(crate) fn replace(&mut self, index: usize, to: Tensor) {
        self.moves.to[index] = Some(to);
    }

    /// The new graph, with the states whose pools are in it.
    pub(crate) fn finish(mut self) -> (Graph, Moves) {
        let states = self.old.states.iter();
        self.new.states =
            states.filter_map(|&(pool, last)| Some((self.moved(pool)?, self.moved(last)?))).collect();
        (self.new, self.moves)
    }
}
