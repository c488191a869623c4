//! State matrices turned so that the lanes of a vector run across rows, and sums over lanes in one order for both ways
//! round.
//!
//! A row's sum in a kernel whose vectors run *along* rows is one running vector, then the sum over its lanes: halves
//! first, then quarters, and so on ([`fold`], [`Halves`]). A block turned by [`Turn`] has element k of many rows side
//! by side, and its sums need no shuffles: the elements whose k is the same modulo the lanes form a running sum, and
//! these are added pairwise in the same tree ([`Tree`]). So one token on rows as they lie in memory and many tokens on
//! a turned block give the same bits, each in the form that suits it.

use super::simd;
use pulp::{Simd, WithSimd};

/// Most lanes of a vector.
pub const LANES_MAX: usize = 16;
/// Depth of the tree over [`LANES_MAX`] lanes, and the leaf.
const LEVELS: usize = 5;

/// Lanes of a vector of the chosen instruction set.
pub fn lanes() -> usize {
    struct Count;
    impl WithSimd for Count {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _simd: S) -> usize {
            S::F32_LANES
        }
    }
    simd::arch().dispatch(Count)
}

/// The lane visited at a place of the order in which a [`Tree`] takes them; its own inverse.
#[inline(always)]
pub fn lane_at<S: Simd>(place: usize) -> usize {
    // One lane: shifting all bits out would overflow.
    let unused = usize::BITS - S::F32_LANES.trailing_zeros();
    if S::F32_LANES == 1 { 0 } else { place.reverse_bits() >> unused }
}

/// Adds N sums over the lanes while they come lane by lane, in the order of [`lane_at`].
#[derive(Clone, Copy)]
pub struct Tree<S: Simd, const N: usize> {
    levels: [[S::f32s; N]; LEVELS],
}

impl<S: Simd, const N: usize> Tree<S, N> {
    /// Without sums yet.
    #[inline(always)]
    pub fn new(simd: S) -> Tree<S, N> {
        Tree { levels: [[simd.splat_f32s(0.0); N]; LEVELS] }
    }

    /// Takes the sums of the lane at `place`; after the last one, returns the whole.
    #[inline(always)]
    pub fn add(&mut self, simd: S, place: usize, mut sums: [S::f32s; N]) -> [S::f32s; N] {
        let mut level = 0;
        while place >> level & 1 == 1 {
            for (sum, earlier) in sums.iter_mut().zip(&self.levels[level]) {
                *sum = simd.add_f32s(*earlier, *sum);
            }
            level += 1;
        }
        self.levels[level] = sums;
        sums
    }
}

/// The sum over the lanes of one vector: halves, then quarters, and so on.
#[inline(always)]
pub fn fold<S: Simd>(simd: S, mut a: S::f32s) -> f32 {
    let mut half = S::F32_LANES / 2;
    while half > 0 {
        a = simd.add_f32s(a, simd.rotate_left_f32s(a, half));
        half /= 2;
    }
    bytemuck::cast_slice::<S::f32s, f32>(&[a])[0]
}

/// Shuffles that cut vectors in halves, quarters, and so on.
#[derive(Clone, Copy)]
pub struct Halves<S: Simd> {
    /// Lanes in the lower half of each group of 2, 4, 8 and 16.
    lower: [S::m32s; LEVELS - 1],
}

impl<S: Simd> Halves<S> {
    /// The masks of this instruction set.
    #[inline(always)]
    pub fn new(simd: S) -> Halves<S> {
        let mut lower = [simd.greater_than_f32s(simd.splat_f32s(1.0), simd.splat_f32s(0.0)); LEVELS - 1];
        for (level, mask) in lower.iter_mut().enumerate() {
            let mut upper = [0.0f32; LANES_MAX];
            for (lane, value) in upper.iter_mut().enumerate() {
                *value = (lane >> level & 1) as f32;
            }
            *mask = simd.less_than_f32s(S::as_simd_f32s(&upper).0[0], simd.splat_f32s(0.5));
        }
        Halves { lower }
    }

    /// The sums over the lanes of as many vectors as a vector has lanes, in the order of [`fold`]: a node of the tree
    /// folds two vectors in half, each into one half of its result.
    #[inline(always)]
    pub fn fold_all(&self, simd: S, tree: &mut [S::f32s; LANES_MAX]) -> S::f32s {
        self.fold_level::<8>(simd, tree);
        self.fold_level::<4>(simd, tree);
        self.fold_level::<2>(simd, tree);
        self.fold_level::<1>(simd, tree);
        tree[0]
    }

    /// Halves of groups of 2 · HALF lanes. Constant, so that shuffles are chosen and loops unrolled at compile time.
    #[inline(always)]
    fn fold_level<const HALF: usize>(&self, simd: S, tree: &mut [S::f32s; LANES_MAX]) {
        if HALF >= S::F32_LANES {
            return;
        }
        let mask = self.lower[HALF.trailing_zeros() as usize];
        for place in 0..HALF {
            let (a, b) = (tree[place], tree[place + HALF]);
            let own = simd.select_f32s(mask, a, b);
            let (a, b) = (simd.rotate_left_f32s(a, HALF), simd.rotate_right_f32s(b, HALF));
            tree[place] = simd.add_f32s(own, simd.select_f32s(mask, a, b));
        }
    }

    /// Turns a square of as many vectors as a vector has lanes: lane i of vector j becomes lane j of vector i.
    #[inline(always)]
    pub fn turn(&self, simd: S, square: &mut [S::f32s; LANES_MAX]) {
        self.turn_level::<8>(simd, square);
        self.turn_level::<4>(simd, square);
        self.turn_level::<2>(simd, square);
        self.turn_level::<1>(simd, square);
    }

    /// As [`Halves::fold_level`].
    #[inline(always)]
    fn turn_level<const HALF: usize>(&self, simd: S, square: &mut [S::f32s; LANES_MAX]) {
        if HALF >= S::F32_LANES {
            return;
        }
        let mask = self.lower[HALF.trailing_zeros() as usize];
        for pair in 0..LANES_MAX / 2 {
            let low = pair / HALF * 2 * HALF + pair % HALF;
            if low < S::F32_LANES {
                let (a, b) = (square[low], square[low + HALF]);
                square[low] = simd.select_f32s(mask, a, simd.rotate_right_f32s(b, HALF));
                square[low + HALF] = simd.select_f32s(mask, simd.rotate_left_f32s(a, HALF), b);
            }
        }
    }
}

/// In which order a turned block has the elements of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Element k at place `lane_at(k mod lanes)`, then k div lanes, so that a [`Tree`] meets them one after another.
    Tree,
    /// Their own.
    Natural,
}

/// Where a block's elements go when it is turned. Rows are whole vectors.
pub enum Turn<'a> {
    /// From rows to the block.
    In {
        /// As many rows as a vector has lanes, one after another.
        rows: &'a [f32],
        /// `vectors` vectors for each element of a row.
        block: &'a mut [f32],
        /// How many vectors lie side by side in the block.
        vectors: usize,
        /// Which of them these rows are.
        vector: usize,
        /// How the block is ordered.
        order: Order,
    },
    /// From the block to rows.
    Out {
        /// As in `In`.
        rows: &'a mut [f32],
        /// As in `In`.
        block: &'a [f32],
        /// As in `In`.
        vectors: usize,
        /// As in `In`.
        vector: usize,
        /// As in `In`.
        order: Order,
    },
}

/// Of each vector of so many rows in blocks of two vectors: its first row, its block, and its place there.
pub fn vectors(rows: usize, lanes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..2 * rows.div_ceil(2 * lanes)).map(move |index| (index * lanes, index / 2, index % 2))
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Loops over a constant number of lanes are unrolled, and the square stays in registers.
        match S::F32_LANES {
            16 => turn::<S, 16>(simd, self),
            8 => turn::<S, 8>(simd, self),
            4 => turn::<S, 4>(simd, self),
            _ => turn::<S, 1>(simd, self),
        }
    }
}

#[inline(always)]
fn turn<S: Simd, const LANES: usize>(simd: S, turn: Turn<'_>) {
    assert_eq!(S::F32_LANES, LANES, "vectors of 1, 4, 8 or 16 lanes");
    let halves = Halves::new(simd);
    let mut square = [simd.splat_f32s(0.0); LANES_MAX];
    match turn {
        Turn::In { rows, block, vectors, vector, order } => {
            let (rows, block) = (S::as_simd_f32s(rows).0, S::as_mut_simd_f32s(block).0);
            let across = rows.len() / LANES;
            let (places, step) = places::<S, LANES>(order, across);
            for place in 0..across {
                for lane in 0..LANES {
                    square[lane] = rows[lane * across + place];
                }
                halves.turn(simd, &mut square);
                for lane in 0..LANES {
                    block[(places[lane] + place * step) * vectors + vector] = square[lane];
                }
            }
        }
        Turn::Out { rows, block, vectors, vector, order } => {
            let (rows, block) = (S::as_mut_simd_f32s(rows).0, S::as_simd_f32s(block).0);
            let across = rows.len() / LANES;
            let (places, step) = places::<S, LANES>(order, across);
            for place in 0..across {
                for lane in 0..LANES {
                    square[lane] = block[(places[lane] + place * step) * vectors + vector];
                }
                halves.turn(simd, &mut square);
                for lane in 0..LANES {
                    rows[lane * across + place] = square[lane];
                }
            }
        }
    }
}

/// Where the elements of a row's first vector go, and how far beyond them those of the next.
#[inline(always)]
fn places<S: Simd, const LANES: usize>(order: Order, across: usize) -> ([usize; LANES], usize) {
    match order {
        Order::Tree => (std::array::from_fn(|lane| lane_at::<S>(lane) * across), 1),
        Order::Natural => (std::array::from_fn(|lane| lane), LANES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of `lanes` rows of three vectors, both ways round.
    struct BothWays<'a>(&'a [f32]);

    impl WithSimd for BothWays<'_> {
        type Output = (Vec<f32>, Vec<f32>, Vec<f32>);

        fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
            let length = 3 * S::F32_LANES;
            let mut along = [simd.splat_f32s(0.0); LANES_MAX];
            for (sum, row) in along.iter_mut().zip(self.0.chunks_exact(length)).take(S::F32_LANES) {
                for &value in S::as_simd_f32s(row).0 {
                    *sum = simd.add_f32s(*sum, value);
                }
            }
            let folded = along.iter().take(S::F32_LANES).map(|&sum| fold(simd, sum)).collect();
            let together = [Halves::new(simd).fold_all(simd, &mut along)];
            let rows = &self.0[..S::F32_LANES * length];
            let mut block = vec![0.0; rows.len()];
            for order in [Order::Natural, Order::Tree] {
                let mut back = vec![0.0; rows.len()];
                Turn::In { rows, block: &mut block, vectors: 1, vector: 0, order }.with_simd(simd);
                Turn::Out { rows: &mut back, block: &block, vectors: 1, vector: 0, order }.with_simd(simd);
                assert_eq!(rows, back);
            }
            let (mut tree, mut turned) = (Tree::<S, 1>::new(simd), [simd.splat_f32s(0.0)]);
            for (place, values) in S::as_simd_f32s(&block).0.chunks_exact(3).enumerate() {
                let sum = values.iter().fold(simd.splat_f32s(0.0), |sum, &value| simd.add_f32s(sum, value));
                turned = tree.add(simd, place, [sum]);
            }
            let flat = |vectors: &[S::f32s]| bytemuck::cast_slice::<S::f32s, f32>(vectors).to_vec();
            (folded, flat(&together), flat(&turned))
        }
    }

    #[test]
    fn sums_along_rows_and_across_them_are_the_same() {
        let values: Vec<f32> = (0..3 * LANES_MAX * LANES_MAX).map(|i| (i as f32 * 0.37).sin()).collect();
        let (folded, together, turned) = simd::arch().dispatch(BothWays(&values));
        assert_eq!(folded, together);
        assert_eq!(folded, turned);
    }
}
