//! Many users of one engine: sequences that join, leave, go back and break in their slots, each held to what it gives
//! alone.

use crate::arrays::assert_bits;
use crate::laws::noise;
use ssmgraph::ops::tensor::indices;
use ssmgraph::ops::{DType, HostTensor};
use ssmgraph::{Engine, EngineError, Logits, SavedSlot};

/// What happens to a crowd. Slots are counted round.
#[derive(Clone, Debug)]
pub enum Event {
    /// Some slots get so many new tokens, in one call and in this order. A slot named again is passed over.
    Feed(Vec<(usize, usize)>),
    /// Every slot with a sequence gets one token, the given slot first.
    Decode(usize),
    /// A slot forgets its sequence.
    Reset(usize),
    /// A slot takes back some tokens.
    Rollback(usize, usize),
    /// Everything that a slot remembers, keys and values included, becomes this number.
    Poison(usize, f32),
    /// A slot goes on where another is.
    Copy(usize, usize),
}

/// What a slot should hold.
#[derive(Clone, Default)]
struct Sequence {
    tokens: Vec<u32>,
    /// The logits after each token.
    rows: Vec<Vec<f32>>,
    /// States that the slot can go back to, the present one included.
    remembered: usize,
    /// Its state is no number; nothing is known of what it computes.
    poisoned: bool,
}

/// An engine with its slots, beside one in which each sequence can be run alone.
pub struct Crowd {
    engine: Engine,
    alone: Engine,
    /// Most tokens of a run alone.
    alone_piece: usize,
    slots: Vec<Sequence>,
    depth: usize,
    seed: u64,
    fed: usize,
}

impl Crowd {
    /// A crowd of as many sequences as `engine` has slots. `alone` is an engine of the same model; its first slot is
    /// used, `alone_piece` tokens at a time.
    pub fn new(engine: Engine, alone: Engine, alone_piece: usize, seed: u64) -> Crowd {
        let slots = vec![Sequence::default(); engine.slots()];
        let depth = engine.slots_spec(1, 1).depth();
        Crowd { engine, alone, alone_piece, slots, depth, seed, fed: 0 }
    }

    /// Lets something happen.
    ///
    /// Panics where a sequence is not what it would be alone, or a call is refused or accepted wrongly.
    pub fn act(&mut self, event: &Event) {
        let count = self.slots.len();
        match event {
            Event::Feed(parts) => {
                let mut calls: Vec<(usize, usize)> = Vec::new();
                for &(slot, tokens) in parts {
                    if calls.iter().all(|&(other, _)| other != slot % count) {
                        calls.push((slot % count, tokens));
                    }
                }
                self.feed(&calls);
            }
            Event::Decode(first) => {
                let order = (0..count).map(|index| (first + index) % count);
                let running = order.filter(|&slot| !self.slots[slot].tokens.is_empty());
                let calls: Vec<(usize, usize)> = running.map(|slot| (slot, 1)).collect();
                self.feed(&calls);
            }
            Event::Reset(slot) => {
                self.check(slot % count);
                self.engine.reset(slot % count).unwrap();
                self.slots[slot % count] = Sequence::default();
            }
            Event::Rollback(slot, tokens) => self.roll_back(slot % count, *tokens),
            Event::Poison(slot, number) => self.poison(slot % count, *number),
            Event::Copy(from, to) => {
                let (from, to) = (from % count, to % count);
                self.check(to);
                let saved = self.engine.save(from).unwrap();
                self.engine.restore(to, &saved).unwrap();
                self.slots[to] = self.slots[from].clone();
                self.slots[to].remembered = usize::from(saved.position > 0);
            }
        }
        for (slot, sequence) in self.slots.iter().enumerate() {
            assert_eq!(self.engine.position(slot).unwrap(), sequence.tokens.len(), "position of slot {slot}");
        }
    }

    /// Holds every sequence to what it gives alone.
    ///
    /// Panics where one differs.
    pub fn check_all(&mut self) {
        (0..self.slots.len()).for_each(|slot| self.check(slot));
    }

    fn feed(&mut self, calls: &[(usize, usize)]) {
        let n_vocab = self.engine.info().n_vocab;
        let mut token = || {
            self.fed += 1;
            ((noise(self.seed, self.fed) + 1.0) / 2.0 * n_vocab as f32) as u32 % n_vocab as u32
        };
        let new: Vec<(usize, Vec<u32>)> =
            calls.iter().map(|&(slot, tokens)| (slot, (0..tokens).map(|_| token()).collect())).collect();
        let call: Vec<(usize, &[u32])> =
            new.iter().map(|(slot, tokens)| (*slot, tokens.as_slice())).collect();
        let full = self.engine.context().and_then(|context| {
            let after = |&(slot, tokens): &(usize, usize)| self.slots[slot].tokens.len() + tokens;
            calls.iter().find(|call| after(call) > context).map(|&(slot, _)| slot)
        });
        let result = self.engine.step(&call, Logits::All);
        if let Some(full) = full {
            assert!(
                matches!(result, Err(EngineError::Context { slot, .. }) if slot == full),
                "no room in slot {full}"
            );
            return;
        }
        for ((slot, tokens), logits) in new.into_iter().zip(result.unwrap()) {
            let sequence = &mut self.slots[slot];
            assert_eq!(logits.len(), tokens.len() * n_vocab);
            sequence.remembered = (sequence.remembered + tokens.len()).min(self.depth);
            sequence.rows.extend(logits.chunks_exact(n_vocab).map(<[f32]>::to_vec));
            sequence.tokens.extend(tokens);
        }
    }

    /// Every state that was written since the slot was reset or restored, as far as its ring goes, can be gone back
    /// to; nothing else can, but for the beginning.
    fn roll_back(&mut self, slot: usize, tokens: usize) {
        let sequence = &mut self.slots[slot];
        let seen = sequence.tokens.len();
        let begins = tokens == seen && seen < self.depth;
        let possible = tokens <= seen && (tokens == 0 || tokens < sequence.remembered || begins);
        let result = self.engine.rollback(slot, tokens);
        assert_eq!(
            result.is_ok(),
            possible,
            "back {tokens} of {seen}, {} remembered: {result:?}",
            sequence.remembered
        );
        if possible {
            sequence.tokens.truncate(seen - tokens);
            sequence.rows.truncate(seen - tokens);
            sequence.remembered = sequence.remembered.saturating_sub(tokens);
        }
    }

    fn poison(&mut self, slot: usize, number: f32) {
        let saved = self.engine.save(slot).unwrap();
        let rows = saved.rows.iter().map(|(name, tensor)| (name.clone(), filled(tensor, number))).collect();
        self.engine.restore(slot, &SavedSlot { position: saved.position, rows }).unwrap();
        let sequence = &mut self.slots[slot];
        sequence.poisoned |= saved.position > 0;
        sequence.remembered = usize::from(saved.position > 0);
    }

    /// Runs a slot's tokens alone and compares logits and states.
    fn check(&mut self, slot: usize) {
        let sequence = &self.slots[slot];
        if sequence.poisoned {
            return;
        }
        self.alone.reset(0).unwrap();
        let mut rows = Vec::new();
        for part in sequence.tokens.chunks(self.alone_piece) {
            rows.extend(self.alone.step(&[(0, part)], Logits::All).unwrap().concat());
        }
        assert_bits(&sequence.rows.concat(), &rows, &format!("slot {slot}"));
        let (found, expected) = (self.engine.save(slot).unwrap(), self.alone.save(0).unwrap());
        assert_eq!(found.rows.len(), expected.rows.len());
        for ((name, found), (_, expected)) in found.rows.iter().zip(&expected.rows) {
            assert!(found == expected, "slot {slot}: {name} is not as alone");
        }
    }
}

fn filled(tensor: &HostTensor, number: f32) -> HostTensor {
    let mut filled = HostTensor::zeros(*tensor.layout());
    let mut view = filled.view_mut().unwrap();
    assert!([DType::F32, DType::F16].contains(&tensor.layout().dtype));
    indices(tensor.ne()).for_each(|index| view.set(index, number.into()));
    filled
}
