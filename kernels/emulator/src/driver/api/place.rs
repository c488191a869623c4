//! Pointers that a C caller passes. The C interface promises what they point at, so that the functions that take
//! them need no unsafe code of their own.

use crate::driver::status::{Outcome, Status};
use std::ffi::{CStr, c_char};

/// A place for a result. Made only by C callers, who pass null or a place that may be written.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes a result that the caller must want.
    pub fn set(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        self.offer(value);
        Ok(())
    }

    /// Writes a result that the caller may not want.
    pub fn offer(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so by the C interface a place for a `T`.
            unsafe { self.0.write(value) }
        }
    }

    /// Whether the caller does not want the result.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl<T: Copy> Out<T> {
    /// Reads what the caller put there.
    pub fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so by the C interface a place that holds a `T`.
        Ok(unsafe { self.0.read() })
    }

    /// Writes as many results as fit into the caller's array of `room` places.
    pub fn fill(&self, room: usize, values: impl Iterator<Item = T>) {
        for (index, value) in values.take(room).enumerate() {
            // SAFETY: `index` is below the number of places that the C caller states.
            unsafe { self.0.add(index).write(value) }
        }
    }
}

/// A value to read. Made only by C callers, who pass null or a place that holds one.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value.
    pub fn get(&self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so by the C interface a place that holds a `T`.
        Ok(unsafe { self.0.read() })
    }
}

/// Text that ends with a zero byte. Made only by C callers, who pass null or such a text.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The bytes before the zero byte.
    pub fn bytes(&self) -> Outcome<&[u8]> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so by the C interface a text that ends and that stays for the call.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The text.
    pub fn text(&self) -> Outcome<&str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Status::INVALID_VALUE)
    }
}
