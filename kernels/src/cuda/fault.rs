//! What kernels write when they meet an id outside a table.

/// Size of a fault record: `Fault` in `common.cuh`.
pub const FAULT_BYTES: usize = 40;

/// A fault record that was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// Which of the launch's guards the id broke.
    pub guard: usize,
    /// The id.
    pub id: i64,
    /// Its place among the ids.
    pub place: [usize; 3],
}

impl FaultRecord {
    /// Reads a record; `None` when no fault was raised, or when there are fewer than [`FAULT_BYTES`] bytes.
    pub fn read(bytes: &[u8]) -> Option<FaultRecord> {
        let word = |index: usize| {
            let word = bytes.get(8 * index..8 * index + 8)?;
            Some(i64::from_le_bytes(word.try_into().expect("eight bytes")))
        };
        let guard = (word(0)? as u32).checked_sub(1)? as usize;
        let place = [word(2)? as usize, word(3)? as usize, word(4)? as usize];
        Some(FaultRecord { guard, id: word(1)?, place })
    }
}
