//! Why a GGUF file, or something asked of it, was refused.

use std::path::PathBuf;

/// Why a GGUF file cannot be read, or does not hold what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The first four bytes are not those of a GGUF file.
    #[error("not a GGUF file: the first bytes are {found:02x?}, expected \"GGUF\"")]
    NotGguf {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// The version number reads as a small number with its bytes swapped.
    #[error(
        "big-endian GGUF (version {version} with swapped bytes); convert the file to little-endian first"
    )]
    BigEndian {
        /// The version with its bytes in the file's order.
        version: u32,
    },
    /// A version this reader does not know.
    #[error("GGUF version {version}, expected 2 or 3")]
    Version {
        /// The version in the file.
        version: u32,
    },
    /// The bytes at this place contradict the format.
    #[error("GGUF byte {offset}: {what}")]
    Malformed {
        /// Offset from the start of the file, in bytes.
        offset: usize,
        /// The key or tensor, what was found and what was expected.
        what: String,
    },
    /// A key that the model needs is not in the file.
    #[error("GGUF key \"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key is there, but its value does not fit the use.
    #[error("GGUF key \"{key}\" is {found}, expected {expected}")]
    WrongValue {
        /// The key.
        key: String,
        /// Type and, where short, value.
        found: String,
        /// What the caller can use.
        expected: String,
    },
    /// A tensor that the model needs is not in the file.
    #[error("GGUF tensor \"{name}\" is missing")]
    MissingTensor {
        /// The tensor's name.
        name: String,
    },
}

impl GgufError {
    /// Turns a missing key or tensor into `None`; every other error stays one.
    ///
    /// Errors: the error of `result`, unless it only says that something is missing.
    pub fn optional<T>(result: Result<T, GgufError>) -> Result<Option<T>, GgufError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(GgufError::MissingKey { .. } | GgufError::MissingTensor { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
