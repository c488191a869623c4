//! The parameter block of a launch, byte for byte what the kernel's struct holds.

use super::DeviceTensor;
use smallvec::SmallVec;
use ssmgraph_ops::DType;

/// Bytes of a C struct that a kernel takes by value: fields in order, each at a multiple of its size, as
/// C lays them out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params(SmallVec<[u8; 256]>);

impl Params {
    /// An empty struct.
    pub fn new() -> Params {
        Params::default()
    }

    /// Appends a `Tensor` (see `common.cuh`).
    pub fn tensor(self, tensor: &DeviceTensor) -> Params {
        let layout = &tensor.layout;
        let start = self.address(tensor.address);
        let sizes = layout.ne.iter().chain(&layout.nb);
        let laid = sizes.fold(start, |params, &size| params.i64(size as i64));
        laid.i32(dtype_code(layout.dtype)).i32(0)
    }

    /// Appends a `Tensor`, or one without memory.
    pub fn optional(self, tensor: Option<&DeviceTensor>) -> Params {
        match tensor {
            Some(tensor) => self.tensor(tensor),
            None => (0..10).fold(self, |params, _| params.i64(0)),
        }
    }

    /// Appends a pointer.
    pub fn address(self, address: u64) -> Params {
        self.field(&address.to_le_bytes())
    }

    /// Appends a `long long`.
    pub fn i64(self, value: i64) -> Params {
        self.field(&value.to_le_bytes())
    }

    /// Appends a `long long` count or stride.
    pub fn size(self, value: usize) -> Params {
        self.i64(value as i64)
    }

    /// Appends an `int`.
    pub fn i32(self, value: i32) -> Params {
        self.field(&value.to_le_bytes())
    }

    /// Appends a `double`.
    pub fn f64(self, value: f64) -> Params {
        self.field(&value.to_le_bytes())
    }

    /// Appends a `float`.
    pub fn f32(self, value: f32) -> Params {
        self.field(&value.to_le_bytes())
    }

    /// The bytes, as long as the struct, whose alignment is 8.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn field(mut self, bytes: &[u8]) -> Params {
        let start = self.0.len().next_multiple_of(bytes.len());
        self.0.resize(start, 0);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// How `common.cuh` names an element type; −1 for types that no CUDA kernel reads.
fn dtype_code(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I32 => 3,
        DType::I64 => 4,
        DType::Q8_0 => 5,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_c_puts_them() {
        let params = Params::new().i32(1).f32(2.0).i32(3).i64(4).i32(5);
        let bytes = params.bytes();
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[16..24], 4i64.to_le_bytes());
        assert_eq!(bytes[24..28], 5i32.to_le_bytes());
    }
}
