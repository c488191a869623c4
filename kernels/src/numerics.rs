//! How strictly results are held to one order of arithmetic.

/// Whether a result may depend on what it is computed together with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// A sequence's result depends neither on its neighbours in the batch nor on how its tokens were split
    /// over calls, to the bit.
    #[default]
    Exact,
    /// Sums may be taken in whatever order is fastest for the shape, within the tolerance of the op.
    Fast,
}
