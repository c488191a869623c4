//! What the plugin asks of the ggml that loads it: symbols, versions, its logger, its buffers.

use crate::abi::{self, Buffer, BufferTable, BufferTypePointer, OP_NAMES, Tensor};
use libloading::os::unix::{Library, RTLD_LAZY};
use once_cell::sync::{Lazy, OnceCell};
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Names under which ggml's base library may be loaded where its symbols are not global.
const BASE_LIBRARIES: [&str; 3] = ["libggml-base.so.0", "libggml-base.so", "libggml.so"];
/// `dlopen` shall find libraries that are loaded already, and load none.
const RTLD_NOLOAD: c_int = 4;
/// Bytes that ggml adds to a tensor in its own memory: `GGML_OBJECT_SIZE`.
const OBJECT_BYTES: usize = 32;

/// How urgent a line is, in ggml's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Level {
    /// For those who look for it.
    Debug = 1,
    /// For everyone.
    Info = 2,
    /// Something will not be as expected.
    Warn = 3,
    /// Something failed.
    Error = 4,
}

/// Where ggml's functions are looked for: the global scope, then a base library that a host has loaded into a scope of
/// its own.
struct Scopes(Vec<Library>);

static SCOPES: Lazy<Scopes> = Lazy::new(|| {
    let mut scopes = vec![Library::this()];
    for name in BASE_LIBRARIES {
        // SAFETY: with NOLOAD nothing is loaded, so no initialiser runs.
        scopes.extend(unsafe { Library::open(Some(name), RTLD_NOLOAD | RTLD_LAZY) });
    }
    Scopes(scopes)
});

/// The address of a function of ggml, if the host shows it.
fn address(name: &CStr) -> Option<*mut c_void> {
    SCOPES.0.iter().find_map(|scope| {
        // SAFETY: only the address is taken; whoever calls it states the type.
        let found = unsafe { scope.get::<*mut c_void>(name.to_bytes_with_nul()) };
        found.ok().map(|symbol| symbol.into_raw()).filter(|address| !address.is_null())
    })
}

/// A function of ggml, if the host shows it.
///
/// # Safety
/// `F` is a function pointer type that fits the function of this name in every supported version.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function pointer");
    // SAFETY: of one size, and the caller vouches for the type.
    address(name).map(|address| unsafe { std::mem::transmute_copy(&address) })
}

/// Which version of the interface the host speaks: `SSMGRAPH_GGML_API`, else what its symbols tell, else the newest.
pub fn api_version() -> c_int {
    match std::env::var("SSMGRAPH_GGML_API").ok().and_then(|value| value.parse().ok()) {
        Some(version @ (2 | 3)) => version,
        // The function came with version 3.
        _ if address(c"ggml_backend_buft_alloc_buffer_n").is_some() => 3,
        _ if address(c"ggml_backend_buft_get_alloc_size").is_some() => 2,
        _ => 3,
    }
}

/// Compares what the host tells of its structs and numbers with what the plugin was written for.
///
/// Errors: the first difference, as a sentence.
pub fn check_layout() -> Result<(), String> {
    // SAFETY: `size_t ggml_tensor_overhead(void)` since the first version.
    if let Some(overhead) = unsafe { function::<unsafe extern "C" fn() -> usize>(c"ggml_tensor_overhead") } {
        // SAFETY: it takes nothing and returns a constant.
        let (found, expected) = (unsafe { overhead() }, OBJECT_BYTES + size_of::<Tensor>());
        if found != expected {
            return Err(format!("a tensor of this ggml takes {found} bytes, expected {expected}"));
        }
    }
    let Some(name) = name_function() else { return Ok(()) };
    for &(number, expected) in OP_NAMES {
        // SAFETY: every number in the table is below the count of all supported versions; the text is a constant.
        let found = unsafe { CStr::from_ptr(name(number)) }.to_string_lossy();
        if found != expected {
            return Err(format!("op {number} of this ggml is {found}, expected {expected}"));
        }
    }
    Ok(())
}

type Name = unsafe extern "C" fn(c_int) -> *const c_char;

fn name_function() -> Option<Name> {
    // SAFETY: `const char * ggml_op_name(enum ggml_op)` in both versions.
    unsafe { function(c"ggml_op_name") }
}

/// The name of an op: from our table, else the host's, else its number.
pub fn op_name(number: c_int) -> String {
    if let Some((_, name)) = OP_NAMES.iter().find(|(known, _)| *known == number) {
        return (*name).to_owned();
    }
    // ggml looks into its table without asking how long that is. `check_layout` found our names in it.
    let is_in_table = OP_NAMES.iter().any(|(known, _)| (0..=*known).contains(&number));
    match name_function().filter(|_| is_in_table) {
        // SAFETY: the table reaches beyond the number; the text is a constant.
        Some(name) => unsafe { CStr::from_ptr(name(number)) }.to_string_lossy().into_owned(),
        None => format!("op {number}"),
    }
}

/// Writes a line with ggml's logger, or to stderr where the host shows none.
pub fn log(level: Level, text: &str) {
    type Log = unsafe extern "C" fn(c_int, *const c_char, ...);
    static LOG: OnceCell<Option<Log>> = OnceCell::new();
    // SAFETY: `void ggml_log_internal(enum ggml_log_level, const char * format, ...)`.
    let log = LOG.get_or_init(|| unsafe { function(c"ggml_log_internal") });
    let line = format!("ssmgraph: {text}\n");
    match (log, CString::new(line.replace('\0', " "))) {
        // SAFETY: the format takes one string, closed by a zero.
        (Some(log), Ok(line)) => unsafe { log(level as c_int, c"%s".as_ptr(), line.as_ptr()) },
        _ => eprint!("{line}"),
    }
}

/// Writes a line at its first occurrence in the process.
pub fn log_once(level: Level, text: &str) {
    static SEEN: Lazy<Mutex<HashSet<String>>> = Lazy::new(Mutex::default);
    if SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        log(level, text);
    }
}

/// The type of buffers in the CPU's memory, if the host shows it.
pub fn cpu_buffer_type() -> Option<BufferTypePointer> {
    type Get = unsafe extern "C" fn() -> BufferTypePointer;
    // SAFETY: `ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type(void)` in both versions.
    let get = unsafe { function::<Get>(c"ggml_backend_cpu_buffer_type") }?;
    // SAFETY: it returns a pointer to a static.
    Some(unsafe { get() }).filter(|pointer| !pointer.is_null())
}

/// A buffer struct. ggml frees it with C++ `delete`, so it comes from ggml's own function, else from C++ `new`, else
/// from `malloc`, which is what `new` calls in every common C++ library.
///
/// Null when memory was refused.
pub fn new_buffer(
    buffer_type: BufferTypePointer,
    table: BufferTable,
    context: *mut c_void,
    size: usize,
) -> *mut Buffer {
    type Init = unsafe extern "C" fn(BufferTypePointer, BufferTable, *mut c_void, usize) -> *mut Buffer;
    // SAFETY: `ggml_backend_buffer_init` has had this type in both versions.
    if let Some(init) = unsafe { function::<Init>(c"ggml_backend_buffer_init") } {
        // SAFETY: the table is complete, the type and the context live as long as the buffer.
        return unsafe { init(buffer_type, table, context, size) };
    }
    type New = unsafe extern "C" fn(usize) -> *mut c_void;
    // SAFETY: `operator new(size_t)` and `malloc` have this type.
    let new = unsafe { function::<New>(c"_Znwm").or_else(|| function::<New>(c"malloc")) };
    let Some(new) = new else { return std::ptr::null_mut() };
    // SAFETY: both may be called with any size.
    let place = unsafe { new(size_of::<Buffer>()) }.cast::<Buffer>();
    if !place.is_null() {
        // SAFETY: fresh memory of the struct's size, aligned for any type.
        unsafe { place.write(Buffer { table, buffer_type, context, size, usage: 0 }) };
    }
    place
}

/// Whether buffers of a foreign type lie in memory that the plugin can reach.
///
/// # Safety
/// `buffer_type` points to a buffer type of the host's version.
pub unsafe fn is_host_memory(buffer_type: BufferTypePointer, version: c_int) -> bool {
    let is_host = match version {
        // SAFETY: the caller's promise.
        2 => unsafe { (*buffer_type.cast::<abi::BufferType2>()).is_host },
        // SAFETY: as above.
        _ => unsafe { (*buffer_type.cast::<abi::BufferType3>()).is_host },
    };
    // SAFETY: the type's own function on itself.
    is_host.is_some_and(|is_host| unsafe { is_host(buffer_type) })
}
