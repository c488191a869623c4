//! Element types: plain scalars and the block formats of GGUF.
//!
//! A block format stores `block_len` elements in `block_bytes` bytes; a plain type is a block of one.
//! Every size in the library is derived from these two numbers.
//! Source: the GGUF specification (type numbers) and the public block layouts of ggml.

use std::fmt;

/// Declares the types once: variant, GGUF number, printed name, elements per block, bytes per block.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $gguf:literal, $name:literal, $len:literal x $bytes:literal;)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $($(#[$doc])* $variant,)* }

        impl DType {
            /// Every type, in the order of the declaration.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The type's number in a GGUF file.
            pub fn gguf_id(self) -> u32 { match self { $(DType::$variant => $gguf,)* } }

            /// The type with this number in a GGUF file; `None` for numbers that are unknown or were removed.
            pub fn from_gguf_id(id: u32) -> Option<DType> {
                match id { $($gguf => Some(DType::$variant),)* _ => None }
            }

            /// The name used in texts and on the command line, such as `f32` or `q8_0`.
            pub fn name(self) -> &'static str { match self { $(DType::$variant => $name,)* } }

            /// Elements per block; 1 for plain types.
            #[inline]
            pub fn block_len(self) -> usize { match self { $(DType::$variant => $len,)* } }

            /// Bytes per block.
            #[inline]
            pub fn block_bytes(self) -> usize { match self { $(DType::$variant => $bytes,)* } }
        }
    };
}

dtypes! {
    /// 32-bit IEEE float.
    F32 = 0, "f32", 1 x 4;
    /// 16-bit IEEE float.
    F16 = 1, "f16", 1 x 2;
    /// 16-bit brain float: the upper half of an `f32`.
    BF16 = 30, "bf16", 1 x 2;
    /// 32-bit signed integer.
    I32 = 26, "i32", 1 x 4;
    /// 64-bit signed integer.
    I64 = 27, "i64", 1 x 8;
    /// 8-bit signed integer (layout only).
    I8 = 24, "i8", 1 x 1;
    /// 16-bit signed integer (layout only).
    I16 = 25, "i16", 1 x 2;
    /// 64-bit IEEE float (layout only).
    F64 = 28, "f64", 1 x 8;
    /// 32 × i8 with one f16 scale.
    Q8_0 = 8, "q8_0", 32 x 34;
    /// 32 × 4 bits with one f16 scale.
    Q4_0 = 2, "q4_0", 32 x 18;
    /// 32 × 4 bits with f16 scale and minimum (layout only).
    Q4_1 = 3, "q4_1", 32 x 20;
    /// 32 × 5 bits with one f16 scale (layout only).
    Q5_0 = 6, "q5_0", 32 x 22;
    /// 32 × 5 bits with f16 scale and minimum (layout only).
    Q5_1 = 7, "q5_1", 32 x 24;
    /// 32 × i8 with f16 scale and sum (layout only).
    Q8_1 = 9, "q8_1", 32 x 36;
    /// 256 × 2 bits, K-quant (layout only).
    Q2K = 10, "q2_k", 256 x 84;
    /// 256 × 3 bits, K-quant (layout only).
    Q3K = 11, "q3_k", 256 x 110;
    /// 256 × 4 bits, K-quant: 8 scales and minima of 6 bits.
    Q4K = 12, "q4_k", 256 x 144;
    /// 256 × 5 bits, K-quant (layout only).
    Q5K = 13, "q5_k", 256 x 176;
    /// 256 × 6 bits, K-quant: 16 scales of 8 bits.
    Q6K = 14, "q6_k", 256 x 210;
    /// 256 × 8 bits, K-quant (layout only).
    Q8K = 15, "q8_k", 256 x 292;
    /// 2.06 bits per weight (layout only).
    Iq2Xxs = 16, "iq2_xxs", 256 x 66;
    /// 2.31 bits per weight (layout only).
    Iq2Xs = 17, "iq2_xs", 256 x 74;
    /// 3.06 bits per weight (layout only).
    Iq3Xxs = 18, "iq3_xxs", 256 x 98;
    /// 1.56 bits per weight (layout only).
    Iq1S = 19, "iq1_s", 256 x 50;
    /// 4.5 bits per weight, non-linear (layout only).
    Iq4Nl = 20, "iq4_nl", 32 x 18;
    /// 3.44 bits per weight (layout only).
    Iq3S = 21, "iq3_s", 256 x 110;
    /// 2.56 bits per weight (layout only).
    Iq2S = 22, "iq2_s", 256 x 82;
    /// 4.25 bits per weight, non-linear (layout only).
    Iq4Xs = 23, "iq4_xs", 256 x 136;
    /// 1.75 bits per weight (layout only).
    Iq1M = 29, "iq1_m", 256 x 56;
    /// 1.69 bits per weight, ternary (layout only).
    Tq1_0 = 34, "tq1_0", 256 x 54;
    /// 2.06 bits per weight, ternary (layout only).
    Tq2_0 = 35, "tq2_0", 256 x 66;
    /// 32 × 4-bit floats with one shared exponent byte (layout only).
    Mxfp4 = 39, "mxfp4", 32 x 17;
}

impl DType {
    /// Whether elements are real numbers that the reference functions can read and write one by one.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether elements are integers that the reference functions can read and write one by one.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// Whether several elements share one block.
    pub fn is_block(self) -> bool {
        self.block_len() > 1
    }

    /// Whether elements are integers in blocks with scales, which [`crate::quant`] unpacks; other block formats have a
    /// layout alone.
    pub fn is_quantized(self) -> bool {
        matches!(self, DType::Q8_0 | DType::Q4_0 | DType::Q4K | DType::Q6K)
    }

    /// Whether single elements can be read as numbers at all.
    pub fn is_readable(self) -> bool {
        self.is_float() || self.is_int() || self.is_quantized()
    }

    /// The type called `name`, as [`DType::name`] prints it.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_numbers_are_unique_and_round_trip() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_gguf_id(dtype.gguf_id()), Some(dtype));
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
    }

    #[test]
    fn removed_gguf_numbers_are_unknown() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 9999, u32::MAX] {
            assert_eq!(DType::from_gguf_id(id), None, "type number {id}");
        }
    }
}
