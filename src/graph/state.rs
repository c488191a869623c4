//! State: tensors that survive from run to run, one row per slot.
//!
//! A *slot* belongs to one sequence. To allow rolling back, each slot owns a ring of `rollback + 1` rows:
//! the state after the token at position p lies in row p mod (rollback + 1) of the slot, so that going back
//! is forgetting, not copying. A slot without history reads row −1, which is a row of zeros: whatever an
//! earlier sequence left in the pool, NaN included, is never seen.
//!
//! A graph describes one step of `sequences` sequences by `tokens` tokens each. Which slots take part is
//! said before each run (`Session::set_slots`).

use super::{Action, Flags, Graph, GraphError, Node, Tensor};
use smallvec::SmallVec;
use ssmgraph_ops::snapshots::SNAPSHOTS_MAX as STORED_MAX;
use ssmgraph_ops::{DType, Layout};

/// The slot space that all states of a graph share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotsSpec {
    /// Number of slots: sequences that can be alive at once.
    pub slots: usize,
    /// How many tokens a slot can be rolled back.
    pub rollback: usize,
    /// Sequences that take part in one run of this graph.
    pub sequences: usize,
    /// Tokens of each of them in one run.
    pub tokens: usize,
}

impl SlotsSpec {
    /// Rows of a slot's ring.
    pub fn depth(&self) -> usize {
        self.rollback.saturating_add(1)
    }

    /// How many states of one run are stored: one for each token a slot can go back to.
    pub fn stored(&self) -> usize {
        self.depth().min(self.tokens).max(1)
    }
}

/// What a leaf says of the slots that take part in a run; a session fills it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotInput {
    /// For each sequence the pool row that it starts from; −1 for a row of zeros.
    Read,
    /// For each sequence the pool row for its state some tokens before the last.
    Write {
        /// How many tokens before.
        back: usize,
    },
    /// For each sequence its slot.
    Slot,
    /// For each sequence how many tokens it has seen.
    Past,
    /// For each token its position in its sequence.
    Position,
    /// For each token its row in the caches.
    CacheRow,
}

/// The slot rows of a graph, as tensors.
#[derive(Clone, Debug)]
pub struct Slots {
    /// The slot space.
    pub spec: SlotsSpec,
    /// I32 {sequences}: the pool row that each sequence starts from; −1 for a row of zeros.
    pub read: Tensor,
    /// I32 {sequences} each: the pool rows for the states after the last token, one token back, and so on.
    pub write: Vec<Tensor>,
}

/// One state of a graph.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The whole pool as it was before the run: {shape of a row (three axes), slots × ring}.
    pub pool: Tensor,
}

impl Graph {
    /// Declares the slot space. One per graph.
    ///
    /// Errors: a second call, more sequences than slots, more rows than an I32 id can name, more stored states
    /// than a node can have results, names `slots.…` that are taken.
    pub fn slots(&mut self, spec: SlotsSpec) -> Result<Slots, GraphError> {
        if self.slots.is_some() {
            return Err(GraphError::State(
                "slots were declared twice; all states share one slot space".into(),
            ));
        }
        if spec.sequences > spec.slots {
            return Err(GraphError::State(format!(
                "{} sequences cannot run in {} slots; declare as many slots as sequences",
                spec.sequences, spec.slots
            )));
        }
        if spec.slots.checked_mul(spec.depth()).is_none_or(|rows| i32::try_from(rows).is_err()) {
            return Err(GraphError::State(format!(
                "{} slots with rollback {} need more rows than an i32 id can name; ask for fewer or for less \
                 rollback",
                spec.slots, spec.rollback
            )));
        }
        if spec.stored() > STORED_MAX {
            return Err(GraphError::State(format!(
                "rollback {} with {} tokens stores {} states in one run, at most {STORED_MAX} are possible",
                spec.rollback,
                spec.tokens,
                spec.stored()
            )));
        }
        let read = self.slot_input("slots.read", SlotInput::Read, spec.sequences)?;
        let write = (0..spec.stored())
            .map(|back| {
                self.slot_input(&format!("slots.write.{back}"), SlotInput::Write { back }, spec.sequences)
            })
            .collect::<Result<_, _>>()?;
        self.slots = Some(spec.clone());
        Ok(Slots { spec, read, write })
    }

    pub(super) fn slot_input(
        &mut self,
        name: &str,
        input: SlotInput,
        count: usize,
    ) -> Result<Tensor, GraphError> {
        let layout =
            Layout::contiguous(DType::I32, &[count]).map_err(|error| GraphError::leaf(name, error))?;
        self.take_name(name, self.len() as u32)?;
        let node = self.append(Node {
            action: Action::Slots(input),
            operands: SmallVec::new(),
            results: SmallVec::from_slice(&[layout]),
            flags: Flags::INPUT,
            name: Some(name.to_owned()),
        });
        Ok(Tensor { graph: self.id, node, result: 0 })
    }

    /// Declares a state whose row for one slot has up to three axes, `ne` innermost first.
    ///
    /// Errors: slots of another graph, a name that is taken, more than three axes, a size that cannot be
    /// addressed.
    pub fn state(
        &mut self,
        name: &str,
        dtype: DType,
        ne: &[usize],
        slots: &Slots,
    ) -> Result<State, GraphError> {
        self.checked(slots.read, "state", "slots")?;
        if ne.len() > 3 {
            return Err(GraphError::State(format!("`{name}` has {} axes, at most 3 are possible", ne.len())));
        }
        let rows = slots.spec.slots.checked_mul(slots.spec.depth());
        let mut full = [1, 1, 1, rows.unwrap_or(usize::MAX)];
        full[..ne.len()].copy_from_slice(ne);
        let layout = Layout::contiguous(dtype, &full).map_err(|error| GraphError::leaf(name, error))?;
        let pool = self.leaf(name, layout, Flags::STATE)?;
        self.states.push((pool, pool));
        Ok(State { pool })
    }

    /// The states that the sequences start from: {shape of a row, sequences}.
    ///
    /// Errors: a state or slots of another graph.
    pub fn read_state(&mut self, state: &State, slots: &Slots) -> Result<Tensor, GraphError> {
        let [a, b, c, rows] = self.checked(state.pool, "read_state", "state")?.ne;
        let table = self.reshape(state.pool, &[a * b * c, rows])?;
        let picked = self.get_rows(table, slots.read)?;
        self.reshape(picked, &[a, b, c, slots.spec.sequences])
    }

    /// Stores `rows` {shape of a row, sequences} as the states `back` tokens before the last. `back` must be
    /// below [`SlotsSpec::stored`]. A session refuses a graph that does not store the newest of each state it uses; where
    /// older ones are left out, slots cannot be rolled back to them.
    ///
    /// Errors: a state, slots or rows of another graph, another shape, `back` out of range.
    pub fn write_state(
        &mut self,
        state: &State,
        slots: &Slots,
        back: usize,
        rows: Tensor,
    ) -> Result<(), GraphError> {
        self.checked(state.pool, "write_state", "state")?;
        let ids = *slots.write.get(back).ok_or_else(|| {
            GraphError::State(format!("back = {back}, but this graph stores {} states", slots.write.len()))
        })?;
        let index = self.state_index(state.pool, "write_state")?;
        let last = self.states[index].1;
        let [a, b, c, count] = self.layout(last)?.ne;
        let table = self.reshape(last, &[a * b * c, count])?;
        let rows = self.rows_of_pool("write_state", rows, &[a, b, c], slots.spec.sequences)?;
        let updated = self.set_rows(table, rows, ids)?;
        self.states[index].1 = self.reshape(updated, &[a, b, c, count])?;
        Ok(())
    }

    /// `rows` with `count` rows of a pool, each as one axis: {elements of a row, count}.
    pub(super) fn rows_of_pool(
        &mut self,
        op: &'static str,
        rows: Tensor,
        row: &[usize],
        count: usize,
    ) -> Result<Tensor, GraphError> {
        let given = self.checked(rows, op, "rows")?;
        let (found, length) = (given.ne, row.iter().product::<usize>());
        if given.elements() != length.saturating_mul(count) {
            return Err(GraphError::State(format!(
                "{op}: rows has the shape {found:?}, expected {count} rows of {row:?}"
            )));
        }
        self.reshape(rows, &[length, count])
    }

    /// The states of a run in one packed tensor, oldest first: {elements of a row, sequences, states}.
    ///
    /// An op gives its states newest first, as many as it was asked for. With one for each of T tokens, this is the
    /// order of programs that draft T tokens and accept the first m of them: the state to go on from is row m − 1
    /// along the last axis, which is one contiguous block. It serves the states of [`super::Scan`], [`super::Delta`]
    /// and [`super::ConvStep`] alike. (States that a [`Store`](crate::Store) keeps need no copy at all: see its
    /// `rollback`.)
    ///
    /// Errors: no states, states of another graph or of different shapes.
    pub fn oldest_first(&mut self, states: &[Tensor]) -> Result<Tensor, GraphError> {
        let Some(&newest) = states.first() else {
            return Err(GraphError::State("oldest_first: no states, expected at least one".into()));
        };
        let expected = self.checked(newest, "oldest_first", "states")?.ne;
        let [a, b, c, sequences] = expected;
        let mut rows = Vec::with_capacity(states.len());
        for (back, &state) in states.iter().enumerate().rev() {
            let found = self.checked(state, "oldest_first", "states")?.ne;
            if found != expected {
                return Err(GraphError::State(format!(
                    "oldest_first: states[{back}] has the shape {found:?}, expected {expected:?} (that of states[0])"
                )));
            }
            rows.push(self.reshape(state, &[a * b * c, sequences, 1])?);
        }
        self.concat(&rows, 2)
    }

    /// How many states of a run, newest first, are stored for every state that this graph uses; `Err` is a state for
    /// which not even the newest is. Caches are no concern of it: they keep every token.
    pub(crate) fn states_written(&self) -> Result<usize, Tensor> {
        let mut least = usize::MAX;
        for &(pool, last) in &self.states {
            if self.node(pool.node()).flags.contains(Flags::CACHE) {
                continue;
            }
            if pool == last && self.users(pool.node()).next().is_none() {
                continue;
            }
            let backs = self.backs_written(pool, last);
            match (0..).take_while(|back| backs.contains(back)).count() {
                0 => return Err(pool),
                written => least = least.min(written),
            }
        }
        Ok(least)
    }

    /// The `back` of each [`Graph::write_state`] on the way from a pool to its new value.
    fn backs_written(&self, pool: Tensor, last: Tensor) -> Vec<usize> {
        let mut backs = Vec::new();
        let mut value = last;
        while value != pool {
            let operands = &self.node(value.node()).operands;
            for operand in &operands[1..] {
                if let Action::Slots(SlotInput::Write { back }) = self.node(operand.node()).action {
                    backs.push(back);
                }
            }
            value = operands[0];
        }
        backs
    }

    /// Which state has this pool.
    pub(super) fn state_index(&self, pool: Tensor, op: &'static str) -> Result<usize, GraphError> {
        let index = self.states.iter().position(|(known, _)| *known == pool);
        index.ok_or_else(|| GraphError::Foreign { op, operand: "state".into() })
    }
}
