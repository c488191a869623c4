//! What outlives a run: weights, bound by name, and states, one row per slot. Sessions of one store share
//! both, so that a prompt's graph and a token's graph continue one another.

use crate::backend::{BackendError, Buffer, Devices, SharedBytes};
use crate::graph::{SlotInput, SlotsSpec};
use ssmgraph_ops::{HostTensor, Layout};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of one weight.
#[derive(Clone)]
pub struct WeightBytes {
    /// Where its elements lie, from the start of the range.
    pub layout: Layout,
    /// The bytes of the whole source.
    pub bytes: SharedBytes,
    /// Which of them are the weight's.
    pub range: Range<usize>,
}

/// Where weights come from: a model file, or tensors in memory.
pub trait Weights: Send + Sync {
    /// The weight with this name.
    fn find(&self, name: &str) -> Option<WeightBytes>;
}

impl Weights for HashMap<String, HostTensor> {
    fn find(&self, name: &str) -> Option<WeightBytes> {
        let tensor = self.get(name)?;
        let bytes = tensor.bytes().to_vec();
        let range = 0..bytes.len();
        Some(WeightBytes { layout: *tensor.layout(), bytes: Arc::new(bytes), range })
    }
}

/// Why a store refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A weight that no source has.
    #[error("weight `{name}` is missing: no source of this store has it")]
    MissingWeight {
        /// Its name.
        name: String,
    },
    /// A weight whose source lays it out in another way than the graph says.
    #[error("weight `{name}` is {found}, expected {expected}")]
    WeightLayout {
        /// Its name.
        name: String,
        /// What the source has.
        found: Box<Layout>,
        /// What the graph says.
        expected: Box<Layout>,
    },
    /// A weight whose source has fewer bytes than its layout spans.
    #[error("weight `{name}` has {found} bytes, expected {expected} (the span of its layout)")]
    WeightBytes {
        /// Its name.
        name: String,
        /// Bytes of the source's range.
        found: usize,
        /// Bytes that the layout spans.
        expected: usize,
    },
    /// A state that another graph of this store declared in another way.
    #[error("state `{name}` is {expected} here, but {found} in another graph of this store")]
    StateLayout {
        /// Its name.
        name: String,
        /// As declared before.
        found: Box<Layout>,
        /// As declared now.
        expected: Box<Layout>,
    },
    /// Slots declared differently by two graphs, or a slot that does not exist.
    #[error("slots: {0}")]
    Slots(String),
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The state of one slot, taken out of a store: everything needed to continue the sequence elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedSlot {
    /// Tokens seen so far.
    pub position: usize,
    /// For each state its row, in the order of the names; empty when nothing was seen.
    pub rows: Vec<(String, HostTensor)>,
}

/// What the store knows of one slot.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Tokens seen.
    position: usize,
    /// How many of the ring's rows hold states of this sequence, the current one included.
    rows_valid: usize,
    /// A run failed while it was writing this slot.
    lost: bool,
}

/// What a pool holds of each slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// A ring of states: axis 3 counts rows.
    Ring,
    /// A row for each token: axis 2 counts tokens, axis 3 slots.
    Cache,
}

/// A state's buffers; one of them is current.
struct Pool {
    layout: Layout,
    kind: PoolKind,
    current: usize,
    buffers: HashMap<usize, Arc<dyn Buffer>>,
}

/// The guarded part of a store. A session holds the guard while it runs.
pub(crate) struct Contents {
    weights: HashMap<(usize, String), (Arc<dyn Buffer>, usize)>,
    pools: HashMap<String, Pool>,
    slots: Vec<Slot>,
    depth: usize,
    /// Tokens that each slot has room for in caches, once a graph has some.
    capacity: Option<usize>,
}

/// Weights and states on a list of devices.
pub struct Store {
    devices: Devices,
    sources: Vec<Arc<dyn Weights>>,
    contents: Mutex<Contents>,
}

impl Store {
    /// A store without states; weights are looked up in `sources` in order, when a session needs them.
    pub fn new(devices: &Devices, sources: Vec<Arc<dyn Weights>>) -> Arc<Store> {
        let contents = Contents {
            weights: HashMap::new(),
            pools: HashMap::new(),
            slots: Vec::new(),
            depth: 0,
            capacity: None,
        };
        Arc::new(Store { devices: devices.clone(), sources, contents: Mutex::new(contents) })
    }

    /// The devices of this store's sessions.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Forgets a slot's sequence. The next run starts it from zero, whatever the pools hold.
    ///
    /// Errors: a slot that does not exist.
    pub fn reset(&self, slot: usize) -> Result<(), StoreError> {
        *self.lock().slot(slot)? = Slot::default();
        Ok(())
    }

    /// Tokens that a slot's sequence has seen.
    ///
    /// Errors: a slot that does not exist.
    pub fn position(&self, slot: usize) -> Result<usize, StoreError> {
        Ok(self.lock().slot(slot)?.position)
    }

    /// Forgets the last `tokens` tokens of a slot, in all states together.
    ///
    /// Errors: more tokens than the slot's ring remembers, or than it has seen.
    pub fn rollback(&self, slot: usize, tokens: usize) -> Result<(), StoreError> {
        let mut contents = self.lock();
        let depth = contents.depth;
        let entry = contents.usable(slot)?;
        // Position 0 needs no row: it is the state of zeros.
        let reaches_start = tokens == entry.position && entry.position < depth;
        if tokens > entry.position || (tokens >= entry.rows_valid.max(1) && !reaches_start) {
            return Err(StoreError::Slots(format!(
                "slot {slot} cannot go back {tokens} tokens: it has seen {} and remembers {} states; declare \
                 a larger rollback, and store as many states in each run",
                entry.position, entry.rows_valid
            )));
        }
        entry.position -= tokens;
        entry.rows_valid = entry.rows_valid.saturating_sub(tokens);
        Ok(())
    }

    /// Takes a copy of a slot's states.
    ///
    /// Errors: a slot that does not exist or was lost, a failed copy.
    pub fn save(&self, slot: usize) -> Result<SavedSlot, StoreError> {
        let mut contents = self.lock();
        let position = contents.usable(slot)?.position;
        let mut rows = Vec::new();
        if let Some(row) = contents.row(slot, position) {
            for (name, pool) in &contents.pools {
                let (layout, offset) = pool.part_of(slot, row, position);
                let mut copy = vec![0; layout.span_bytes()];
                pool.buffers[&pool.current].read(offset, &mut copy)?;
                let tensor = HostTensor::from_bytes(layout, copy).expect("as long as the part's layout");
                rows.push((name.clone(), tensor));
            }
        }
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(SavedSlot { position, rows })
    }

    /// Makes a slot continue where `saved` was taken, in this store or in another with the same states.
    ///
    /// Errors: a slot that does not exist, states that `saved` lacks or that have another shape, a failed
    /// copy. The slot then stays as it was, or is lost if the copy had begun.
    pub fn restore(&self, slot: usize, saved: &SavedSlot) -> Result<(), StoreError> {
        let mut contents = self.lock();
        contents.slot(slot)?;
        if saved.position > 0 {
            contents.check_saved(saved)?;
            let row = contents.row(slot, saved.position).expect("a position above 0 has a row");
            contents.slot(slot)?.lost = true;
            for (name, tensor) in &saved.rows {
                let pool = &contents.pools[name];
                let (_, offset) = pool.part_of(slot, row, saved.position);
                pool.buffers[&pool.current].write(offset, tensor.bytes())?;
            }
        }
        *contents.slot(slot)? =
            Slot { position: saved.position, rows_valid: usize::from(saved.position > 0), lost: false };
        Ok(())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A weight's buffer on a device, and where it starts there.
    pub(crate) fn weight(
        &self,
        device: usize,
        name: &str,
        expected: &Layout,
    ) -> Result<(Arc<dyn Buffer>, usize), StoreError> {
        let mut contents = self.lock();
        let found = self.sources.iter().find_map(|source| source.find(name));
        let found = found.ok_or_else(|| StoreError::MissingWeight { name: name.to_owned() })?;
        if found.layout != *expected {
            return Err(StoreError::WeightLayout {
                name: name.to_owned(),
                found: Box::new(found.layout),
                expected: Box::new(*expected),
            });
        }
        if found.range.len() < expected.span_bytes() {
            return Err(StoreError::WeightBytes {
                name: name.to_owned(),
                found: found.range.len(),
                expected: expected.span_bytes(),
            });
        }
        let key = (device, name.to_owned());
        if let Some(held) = contents.weights.get(&key) {
            return Ok(held.clone());
        }
        let held = self.devices.backends()[device].adopt(&found.bytes, found.range)?;
        contents.weights.insert(key, held.clone());
        Ok(held)
    }

    /// A state's buffer on a device; made on first use.
    pub(crate) fn pool(
        &self,
        device: usize,
        name: &str,
        layout: &Layout,
        kind: PoolKind,
    ) -> Result<Arc<dyn Buffer>, StoreError> {
        let mut contents = self.lock();
        let pool = contents.pools.get(name);
        if let Some(pool) = pool.filter(|pool| pool.layout != *layout) {
            return Err(StoreError::StateLayout {
                name: name.to_owned(),
                found: Box::new(pool.layout),
                expected: Box::new(*layout),
            });
        }
        if let Some(buffer) = pool.and_then(|pool| pool.buffers.get(&device)) {
            return Ok(buffer.clone());
        }
        // Memory first: a pool whose memory was refused must not exist.
        let buffer = self.devices.backends()[device].allocate(layout.span_bytes())?;
        let new = || Pool { layout: *layout, kind, current: device, buffers: HashMap::new() };
        let pool = contents.pools.entry(name.to_owned()).or_insert_with(new);
        pool.buffers.insert(device, buffer.clone());
        Ok(buffer)
    }

    /// Makes room for a graph's slots, which have caches for `capacity` tokens each, if any.
    pub(crate) fn declare_slots(&self, spec: &SlotsSpec, capacity: Option<usize>) -> Result<(), StoreError> {
        let mut contents = self.lock();
        if let (Some(known), Some(wanted)) = (contents.capacity, capacity)
            && known != wanted
        {
            return Err(StoreError::Slots(format!(
                "caches for {wanted} tokens here, but for {known} in another graph of this store"
            )));
        }
        contents.capacity = contents.capacity.or(capacity);
        if contents.slots.is_empty() {
            contents
                .slots
                .try_reserve_exact(spec.slots)
                .map_err(|_| StoreError::Slots(format!("there is no memory for {} slots", spec.slots)))?;
            contents.slots.resize(spec.slots, Slot::default());
            contents.depth = spec.depth();
        }
        if contents.slots.len() != spec.slots || contents.depth != spec.depth() {
            return Err(StoreError::Slots(format!(
                "{} slots with rollback {} here, but {} with {} in another graph of this store",
                spec.slots,
                spec.rollback,
                contents.slots.len(),
                contents.depth - 1
            )));
        }
        Ok(())
    }
}

impl Pool {
    /// What a slot has at a position, whose ring row is `row`: its layout, and where it starts in the pool.
    fn part_of(&self, slot: usize, row: usize, position: usize) -> (Layout, usize) {
        let [a, b, c, _] = self.layout.ne;
        let (tokens, index) = match self.kind {
            PoolKind::Ring => (c, row),
            PoolKind::Cache => (position.min(c), slot),
        };
        let layout = Layout::contiguous(self.layout.dtype, &[a, b, tokens]);
        (layout.expect("no larger than the whole pool"), index * self.layout.nb[3])
    }
}

impl Contents {
    fn slot(&mut self, slot: usize) -> Result<&mut Slot, StoreError> {
        let count = self.slots.len();
        self.slots
            .get_mut(slot)
            .ok_or_else(|| StoreError::Slots(format!("slot {slot} does not exist, there are {count}")))
    }

    fn usable(&mut self, slot: usize) -> Result<&mut Slot, StoreError> {
        let entry = self.slot(slot)?;
        if entry.lost {
            return Err(StoreError::Slots(format!(
                "slot {slot} was being written when a run failed; reset or restore it"
            )));
        }
        Ok(entry)
    }

    /// The pool row that holds a slot's state at a position; `None` at position 0, the state of zeros.
    fn row(&self, slot: usize, position: usize) -> Option<usize> {
        (position > 0).then(|| slot * self.depth + (position - 1) % self.depth)
    }

    fn check_saved(&self, saved: &SavedSlot) -> Result<(), StoreError> {
        let names: Vec<&str> = saved.rows.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(name) = self.pools.keys().find(|name| !names.contains(&name.as_str())) {
            return Err(StoreError::Slots(format!("the saved slot has no state `{name}`")));
        }
        for (name, tensor) in &saved.rows {
            let pool = self.pools.get(name);
            let pool =
                pool.ok_or_else(|| StoreError::Slots(format!("no graph here has a state `{name}`")))?;
            let expected = pool.part_of(0, 0, saved.position).0;
            if *tensor.layout() != expected {
                return Err(StoreError::StateLayout {
                    name: name.clone(),
                    found: Box::new(*tensor.layout()),
                    expected: Box::new(expected),
                });
            }
        }
        Ok(())
    }

    /// Whether slots can take part in a run of `tokens` more tokens each.
    ///
    /// Errors: slots that do not exist, were lost, are named twice, or cannot count or keep as many more tokens.
    pub(crate) fn check_run(&mut self, slots: &[usize], tokens: usize) -> Result<(), StoreError> {
        for (index, &slot) in slots.iter().enumerate() {
            let position = self.usable(slot)?.position;
            if position.checked_add(tokens).is_none() {
                let what = format!("slot {slot} has seen {position} tokens and cannot count {tokens} more");
                return Err(StoreError::Slots(what));
            }
            if let Some(capacity) = self.capacity
                && position + tokens > capacity
            {
                return Err(StoreError::Slots(format!(
                    "slot {slot} has seen {position} tokens and its caches have room for {capacity}: {tokens} more do \
                     not fit"
                )));
            }
            if slots[..index].contains(&slot) {
                return Err(StoreError::Slots(format!("slot {slot} is named twice in one run")));
            }
        }
        Ok(())
    }

    /// What an input says of slots that [`Contents::check_run`] has accepted: a number for each slot, or one for each of
    /// its tokens, slot after slot.
    ///
    /// Errors: a number past an I32.
    pub(crate) fn tell(
        &self,
        input: SlotInput,
        slots: &[usize],
        tokens: usize,
        numbers: &mut Vec<i32>,
    ) -> Result<(), StoreError> {
        let per_slot = if matches!(input, SlotInput::Position | SlotInput::CacheRow) { tokens } else { 1 };
        numbers.clear();
        for (&slot, token) in slots.iter().flat_map(|slot| (0..per_slot).map(move |token| (slot, token))) {
            numbers.push(row_id(self.number(input, slot, token, tokens))?);
        }
        Ok(())
    }

    /// One number of [`Contents::tell`]; `None` for the row of zeros.
    fn number(&self, input: SlotInput, slot: usize, token: usize, tokens: usize) -> Option<usize> {
        let position = self.slots[slot].position;
        match input {
            SlotInput::Read => self.row(slot, position),
            SlotInput::Write { back } => self.row(slot, position + tokens - back),
            SlotInput::Slot => Some(slot),
            SlotInput::Past | SlotInput::Position => Some(position + token),
            SlotInput::CacheRow => Some(slot * self.capacity.unwrap_or(0) + position + token),
        }
    }

    /// Notes that a run is about to write the slots.
    pub(crate) fn begin_run(&mut self, slots: &[usize]) {
        slots.iter().for_each(|&slot| self.slots[slot].lost = true);
    }

    /// Notes that a run took in `tokens` more tokens, and stored the states after the last `written` of them.
    pub(crate) fn end_run(&mut self, slots: &[usize], tokens: usize, written: usize) {
        for &slot in slots {
            let entry = &mut self.slots[slot];
            entry.position += tokens;
            let gap = written < tokens.min(self.depth);
            entry.rows_valid = if gap { written } else { (entry.rows_valid + tokens).min(self.depth) };
            entry.lost = false;
        }
    }

    /// Makes a state's buffer on `device` the current one.
    pub(crate) fn bring(&mut self, name: &str, device: usize) -> Result<(), StoreError> {
        let pool = self.pools.get_mut(name).expect("made when the session was");
        if pool.current != device {
            let mut bytes = vec![0; pool.layout.span_bytes()];
            pool.buffers[&pool.current].read(0, &mut bytes)?;
            pool.buffers[&device].write(0, &bytes)?;
            pool.current = device;
        }
        Ok(())
    }
}

fn row_id(row: Option<usize>) -> Result<i32, StoreError> {
    match row {
        None => Ok(-1),
        Some(row) => i32::try_from(row).map_err(|_| StoreError::Slots(format!("row {row} passes an i32 id"))),
    }
}
