//! A hash that is the same on every machine and in every release, unlike the standard library's.

/// 64-bit FNV-1a over fields. Each field is preceded by its length, so that text cannot move from one field to
/// the next unnoticed.
#[derive(Clone, Copy, Debug)]
pub struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash::new()
    }
}

impl Hash {
    /// The hash of no field.
    pub fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    /// The hash with one more field.
    pub fn field(self, bytes: &[u8]) -> Hash {
        self.bytes(&(bytes.len() as u64).to_le_bytes()).bytes(bytes)
    }

    /// The number.
    pub fn value(self) -> u64 {
        self.0
    }

    fn bytes(self, bytes: &[u8]) -> Hash {
        Hash(bytes.iter().fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_hash_as_published() {
        assert_eq!(Hash::new().bytes(b"a").value(), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(Hash::new().bytes(b"foobar").value(), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn fields_do_not_run_together() {
        let two = |a: &[u8], b: &[u8]| Hash::new().field(a).field(b).value();
        assert_ne!(two(b"ab", b"c"), two(b"a", b"bc"));
    }
}
