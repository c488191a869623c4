//! What a driver call answers.

use std::ffi::{CStr, c_int};

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub c_int);

/// What a call inside the driver gives; [`code`] makes the `CUresult` of it.
pub type Outcome<T = ()> = Result<T, Status>;

/// The `CUresult` of success.
pub const SUCCESS: c_int = 0;

/// The `CUresult` of an outcome.
pub fn code(outcome: Outcome) -> c_int {
    outcome.map_or_else(|status| status.0, |()| SUCCESS)
}

/// Declares the errors: a constant, CUDA's name and CUDA's text for each.
macro_rules! statuses {
    ($($name:ident = $code:literal, $cuda:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Status = Status($code);)*
        }
        const TEXTS: &[(c_int, &CStr, &CStr)] =
            &[(SUCCESS, c"CUDA_SUCCESS", c"no error"), $((Status::$name.0, $cuda, c_text(concat!($text, "\0")))),*];
    };
}

statuses! {
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    DEVICE_LOST = 46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", "the device is busy or unavailable";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, c"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    NO_BINARY = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for the device";
    INVALID_PTX = 218, c"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    PTX_VERSION = 222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX is newer than the driver";
    FILE_NOT_FOUND = 301, c"CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    ILLEGAL_STATE = 401, c"CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    OUT_OF_RESOURCES = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch";
    ASSERT = 710, c"CUDA_ERROR_ASSERT", "device-side assert triggered";
    NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    NOT_PERMITTED = 800, c"CUDA_ERROR_NOT_PERMITTED", "operation not permitted";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    CAPTURE_UNSUPPORTED = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences";
    CAPTURE_UNMATCHED = 903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = 904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    CAPTURE_IMPLICIT = 906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, c"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = 908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread";
    UPDATE_FAILURE = 910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the changes are beyond what an instantiated graph can be updated with";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", "unknown error";
}

const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

/// CUDA's name and text of a `CUresult`.
pub fn texts(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
    TEXTS.iter().find(|row| row.0 == code).map(|row| (row.1, row.2))
}
