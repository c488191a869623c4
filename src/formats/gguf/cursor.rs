//! Reading forward through bytes that nobody has checked yet.

use super::error::GgufError;

/// A place in the file. Every read is checked against the end; `what` names the thing read, for the error.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], offset: usize) -> Cursor<'a> {
        Cursor { bytes, offset }
    }

    /// Bytes read so far, from the start of the file.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// An error at this place.
    pub(super) fn error(&self, what: String) -> GgufError {
        GgufError::Malformed { offset: self.offset, what }
    }

    fn take(&mut self, len: usize, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        if len > self.left() {
            return Err(self.error(format!("{}: needs {len} bytes, the file has {}", what(), self.left())));
        }
        let taken = &self.bytes[self.offset..self.offset + len];
        self.offset += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: impl Fn() -> String) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A 64-bit count of things that take at least `bytes_min` bytes each. What is returned is small enough
    /// to reserve memory for.
    pub(super) fn count(&mut self, bytes_min: usize, what: impl Fn() -> String) -> Result<usize, GgufError> {
        let at = self.offset;
        let count = self.u64(&what)?;
        let fit = (self.left() / bytes_min) as u64;
        if count > fit {
            return Err(GgufError::Malformed {
                offset: at,
                what: format!("{count} {}, but at most {fit} fit into the rest of the file", what()),
            });
        }
        Ok(count as usize)
    }

    /// A length of 64 bits and as many bytes.
    pub(super) fn string(
        &mut self,
        bytes_max: usize,
        what: impl Fn() -> String,
    ) -> Result<&'a [u8], GgufError> {
        let at = self.offset;
        let len = self.u64(&what)?;
        let fit = self.left().min(bytes_max);
        if len > fit as u64 {
            return Err(GgufError::Malformed {
                offset: at,
                what: format!("{} has a length of {len} bytes, at most {fit} are possible", what()),
            });
        }
        self.take(len as usize, what)
    }
}
