//! What a CUDA kernel is: launches described as plain data.
//!
//! A kernel turns a call (addresses and layouts) into a list of [`Launch`]es. It touches no driver, so that the
//! backend can run the list, record it into a graph, compare it with an earlier one and patch what changed; the
//! emulator's tests run the same list without a driver.

mod fault;
mod image;
pub(crate) mod moves;
mod params;
mod quads;
pub(crate) mod snapshots;
pub(crate) mod walk;

pub use fault::{FAULT_BYTES, FaultRecord};
pub(crate) use image::embedded;
pub use image::{HEADERS, IMAGES, Image};
pub use params::Params;
pub(crate) use quads::quad_form;

use crate::{Declined, Forms, Variant};
use smallvec::SmallVec;
use ssmgraph_ops::shape::{checked_below, checked_row};
use ssmgraph_ops::{Layout, OpError};

/// Threads of a warp.
pub const WARP: usize = 32;

/// Most blocks along axis x of a grid. Tensor sizes go there alone: axes y and z end at 65 535.
pub const GRID_X_MAX: usize = i32::MAX as usize;

/// A tensor in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Address of element 0; aligned to the element type, in a buffer that starts at a multiple of 256.
    pub address: u64,
    /// Where the elements lie from there.
    pub layout: Layout,
}

/// One call of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct CudaCall<'a> {
    /// Operands in the order of the op's table.
    pub inputs: &'a [DeviceTensor],
    /// Results in the op's order.
    pub results: &'a [DeviceTensor],
    /// Address of as many bytes as the kernel asked for: a multiple of 256, contents undefined.
    pub scratch: u64,
    /// Address of the call's fault record of [`FAULT_BYTES`], all zero at first; see [`Guard`].
    pub fault: u64,
    /// The form that runs it: a place among the kernel's variants, 0 for a kernel of one form.
    pub variant: usize,
}

/// A launch that may meet an id outside a table. It then fills the call's fault record (`raise` in
/// `common.cuh`), unless that is filled already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The operand that holds the ids.
    pub operand: &'static str,
    /// Rows of the table.
    pub rows: usize,
    /// Where that number comes from, for ids that must name a row; without it −1 stands for none.
    pub why: Option<&'static str>,
}

impl Guard {
    /// What the op says of the id that a record holds.
    ///
    /// Errors: the id names no row.
    pub fn check(&self, op: &'static str, record: &FaultRecord) -> Result<(), OpError> {
        let Guard { operand, rows, why } = *self;
        match why {
            Some(why) => checked_below(op, operand, record.place, record.id, rows, why).map(|_| ()),
            None => checked_row(op, operand, record.place, record.id, rows).map(|_| ()),
        }
    }
}

/// One launch of a `__global__` function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Where the function is.
    pub image: &'static Image,
    /// Its name.
    pub entry: &'static str,
    /// Blocks along x, y and z; none may be 0.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z; at most 1024 together.
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes; at most 48 KiB, which every device has.
    pub shared_bytes: u32,
    /// The bytes of its one parameter, a struct by value.
    pub params: Params,
    /// The ids that it may find outside their tables; a fault record counts them.
    pub guards: SmallVec<[Guard; 2]>,
}

impl Launch {
    /// A launch of `blocks` blocks of `threads` threads, both along x.
    ///
    /// Panics when a size passes what CUDA allows or is 0; `supports` has declined such calls.
    pub fn line(
        image: &'static Image,
        entry: &'static str,
        blocks: usize,
        threads: usize,
        params: Params,
    ) -> Launch {
        assert!(
            (1..=GRID_X_MAX).contains(&blocks) && (1..=1024).contains(&threads),
            "{entry}: {blocks} blocks"
        );
        Launch {
            image,
            entry,
            grid: [blocks as u32, 1, 1],
            block: [threads as u32, 1, 1],
            shared_bytes: 0,
            params,
            guards: SmallVec::new(),
        }
    }

    /// The same launch with dynamic shared memory.
    pub fn with_shared(self, shared_bytes: usize) -> Launch {
        assert!(shared_bytes <= 48 << 10, "{}: {shared_bytes} bytes of shared memory", self.entry);
        Launch { shared_bytes: shared_bytes as u32, ..self }
    }

    /// The same launch, which may meet an id outside a table, −1 aside.
    pub fn guarded(self, operand: &'static str, rows: usize) -> Launch {
        self.with_guard(Guard { operand, rows, why: None })
    }

    /// The same launch, which may meet an id that is not below `rows`, or negative.
    pub fn guarded_below(self, operand: &'static str, rows: usize, why: &'static str) -> Launch {
        self.with_guard(Guard { operand, rows, why: Some(why) })
    }

    fn with_guard(mut self, guard: Guard) -> Launch {
        self.guards.push(guard);
        self
    }
}

/// The form in which a kernel runs operands of these layouts: its place among [`CudaKernel::variants`].
///
/// Errors: the kernel or the form declines.
pub fn variant_for(kernel: &dyn CudaKernel, forms: Forms, inputs: &[Layout]) -> Result<usize, Declined> {
    kernel.supports(inputs)?;
    forms.choose(kernel.variants(), |variant| kernel.covers(variant, inputs))
}

/// One op on CUDA. Implemented by the op's attribute struct.
pub trait CudaKernel: Sync {
    /// Whether the kernel computes the right result for operands of these layouts, which the op's shape
    /// rule has accepted.
    ///
    /// Errors: the reason why not.
    fn supports(&self, inputs: &[Layout]) -> Result<(), Declined>;

    /// The forms of the kernel, the exact default first; none where there is only one.
    fn variants(&self) -> &'static [Variant] {
        &[]
    }

    /// Whether the form at this place of [`CudaKernel::variants`] computes a call that the kernel supports.
    ///
    /// Errors: the reason why not.
    fn covers(&self, _variant: usize, _inputs: &[Layout]) -> Result<(), Declined> {
        Ok(())
    }

    /// Scratch in device memory that a call needs in whichever form, in bytes.
    fn scratch_bytes(&self, inputs: &[Layout], results: &[Layout]) -> usize;

    /// The launches of a call, in order; none where there is nothing to compute. The number and the entries
    /// depend on layouts alone, never on addresses.
    fn launches(&self, call: &CudaCall<'_>) -> Vec<Launch>;
}
