//! Cutting sequences of different lengths into runs, in each of which all sequences have equally many
//! tokens.

use super::Logits;

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which sequences of the call take part.
    pub active: Vec<usize>,
    /// The first token of each that is taken.
    pub start: usize,
    /// How many of each.
    pub tokens: usize,
    /// For each active sequence whether its last token is among them.
    pub ends: Vec<bool>,
}

impl Piece {
    /// The sequence and the row in the run of each row of logits that is wanted, sequence after sequence.
    pub fn outputs(&self, logits: Logits) -> Vec<(usize, usize)> {
        let mut outputs = Vec::new();
        for (place, (&sequence, &ends)) in self.active.iter().zip(&self.ends).enumerate() {
            let rows = place * self.tokens..(place + 1) * self.tokens;
            match logits {
                Logits::None => {}
                Logits::Last if ends => outputs.push((sequence, rows.end - 1)),
                Logits::Last => {}
                Logits::All => outputs.extend(rows.map(|row| (sequence, row))),
            }
        }
        outputs
    }
}

/// The runs for sequences of these lengths. All that still have tokens take part in each run, with as many
/// tokens as the shortest of them has left, and at most `tokens_max` together where that is one each or more.
pub(super) fn pieces(lengths: &[usize], tokens_max: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut start = 0;
    loop {
        let active: Vec<usize> = (0..lengths.len()).filter(|&index| lengths[index] > start).collect();
        let Some(shortest) = active.iter().map(|&index| lengths[index] - start).min() else { return pieces };
        let tokens = shortest.min((tokens_max / active.len()).max(1));
        let ends = active.iter().map(|&index| lengths[index] == start + tokens).collect();
        pieces.push(Piece { active, start, tokens, ends });
        start += tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(lengths: &[usize], tokens_max: usize) -> Vec<(usize, usize)> {
        pieces(lengths, tokens_max).iter().map(|piece| (piece.active.len(), piece.tokens)).collect()
    }

    #[test]
    fn sequences_run_together_as_long_as_they_can() {
        assert_eq!(sizes(&[64, 41], 512), [(2, 41), (1, 23)]);
        assert_eq!(sizes(&[3, 0, 3], 512), [(2, 3)]);
        assert_eq!(sizes(&[], 512), []);
        assert_eq!(sizes(&[0, 0], 512), []);
    }

    #[test]
    fn a_piece_has_a_largest_size() {
        assert_eq!(sizes(&[300], 128), [(1, 128), (1, 128), (1, 44)]);
        assert_eq!(sizes(&[5, 2], 4), [(2, 2), (1, 3)]);
        assert_eq!(sizes(&[2, 2, 2], 1), [(3, 1), (3, 1)]);
    }

    #[test]
    fn logits_are_named_by_sequence_and_row() {
        let all = pieces(&[3, 2], 512);
        assert_eq!(all[0].outputs(Logits::Last), [(1, 3)]);
        assert_eq!(all[1].outputs(Logits::Last), [(0, 0)]);
        assert_eq!(all[0].outputs(Logits::All), [(0, 0), (0, 1), (1, 2), (1, 3)]);
        assert_eq!(all[0].outputs(Logits::None), []);
    }
}
