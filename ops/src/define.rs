//! The trait every op implements. No method has a default: a new op states each point itself.

use crate::{Case, Layout, Op, OpError, View, ViewMut};
use smallvec::SmallVec;
use std::fmt::Debug;

/// Layouts of an op's results.
pub type Layouts = SmallVec<[Layout; 2]>;

/// Operands of a reference call.
pub type Views<'a> = [View<'a>];

/// One row of an op's operand table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Name used in errors and texts.
    pub name: &'static str,
    /// Shape, innermost axis first, in the letters of the op's documentation.
    pub shape: &'static str,
    /// Element types accepted.
    pub dtypes: &'static str,
    /// What the values are: unit, range, meaning.
    pub meaning: &'static str,
    /// Whether any further operands are of the same kind (last row only).
    pub repeats: bool,
}

impl Operand {
    /// A row for exactly one operand.
    pub const fn new(
        name: &'static str,
        shape: &'static str,
        dtypes: &'static str,
        meaning: &'static str,
    ) -> Operand {
        Operand { name, shape, dtypes, meaning, repeats: false }
    }
}

/// Where the results of an op live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Results have memory of their own. Result 0 may take over the memory of one of the operands listed,
    /// when that operand has the same layout and is not read again: each element is read before it is
    /// written.
    Fresh {
        /// Operands whose memory result 0 may take over.
        reuse: &'static [usize],
    },
    /// The only result shows the bytes of operand 0 under another layout; nothing is computed.
    View {
        /// Bytes from element 0 of the operand to element 0 of the view.
        offset_bytes: usize,
    },
    /// The only result is operand 0 after an update. It happens in place when the plan proves that nobody
    /// reads the old value later, and in a copy otherwise.
    Update,
}

/// What an op means. Implemented by the small struct that holds the op's attributes.
pub trait Define: Sized + Clone + Debug + PartialEq + Into<Op> {
    /// The op's name in errors, texts, documentation and on the command line.
    fn name(&self) -> &'static str;

    /// The operand table; an op with optional operands returns the rows that its attributes ask for.
    fn operands(&self) -> &'static [Operand];

    /// The name of a result in texts and test vectors.
    fn result_name(&self, index: usize) -> String;

    /// The attributes as text, such as `eps=1e-5`; empty when there are none.
    fn attributes(&self) -> String;

    /// The shape rule: layouts of the results for operands of these layouts. The number of operands was
    /// checked before.
    ///
    /// Errors: name the op, the operand, the dimension, what came and what was wanted.
    fn infer(&self, inputs: &[Layout]) -> Result<Layouts, OpError>;

    /// Where the results live.
    fn storage(&self) -> Storage;

    /// The definition in code: `f64` inside, rounded once when written.
    ///
    /// Errors: a value the op cannot accept, such as an index outside the table.
    fn reference(&self, inputs: &Views<'_>, results: &mut [ViewMut<'_>]) -> Result<(), OpError>;

    /// Inputs on which every backend is compared with the reference.
    fn cases() -> Vec<Case>;
}
