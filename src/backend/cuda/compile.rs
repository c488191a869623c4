//! Kernel images compiled by NVRTC, where the machine has it.

use super::hash::Hash;
use cudarc::nvrtc::sys;
use ssmgraph_kernels::cuda::{HEADERS, Image};
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr;

/// What the embedded PTX is compiled for: the oldest devices that the kernels run on.
pub const EMBEDDED_TARGET: &str = "compute_70";

/// What NVRTC is told besides the target. Products and sums are fused only where the source says so, so that
/// results do not depend on the compiler; no line information, which would name files; functions without a mark
/// are the device's, as all of ours are.
pub const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "-default-device"];

/// The oldest NVRTC that knows every function used here.
const VERSION_MIN: (u32, u32) = (11, 2);

/// What NVRTC made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// Text, which the driver assembles for its device; from a target `compute_…`.
    Ptx(String),
    /// Machine code of one kind of device; from a target `sm_…`.
    Cubin(Vec<u8>),
}

/// Why there is no compiled image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The machine has no NVRTC.
    #[error("NVRTC (libnvrtc) is not among this machine's libraries")]
    Absent,
    /// A library that was named could not be loaded.
    #[error("NVRTC at {}: {what}", path.display())]
    Library {
        /// The library.
        path: PathBuf,
        /// What the system said.
        what: String,
    },
    /// NVRTC lacks functions.
    #[error("NVRTC {}.{} is too old, {}.{} is needed", found.0, found.1, VERSION_MIN.0, VERSION_MIN.1)]
    TooOld {
        /// Its version.
        found: (u32, u32),
    },
    /// The target is of neither kind, or newer than this NVRTC; the driver assembles the embedded PTX then.
    #[error("NVRTC has no target `{target}`, expected a compute_… or sm_… of its release")]
    Target {
        /// What was asked for.
        target: String,
    },
    /// NVRTC refused the source.
    #[error("image {image} does not compile for {target}:\n{log}")]
    Source {
        /// Name of the image.
        image: String,
        /// The target.
        target: String,
        /// What NVRTC wrote.
        log: String,
    },
    /// A call failed otherwise.
    #[error("{call}: {what}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// NVRTC's word for it.
        what: String,
    },
}

/// Loads NVRTC from a file outside the system's search path. To be called before anything else here; a library
/// that the search finds as plain `libnvrtc.so` still comes first, which [`version`] shows.
///
/// Errors: the file cannot be loaded.
pub fn use_library(path: &Path) -> Result<(), CompileError> {
    let failed = |e: libloading::Error| CompileError::Library { path: path.to_owned(), what: e.to_string() };
    // SAFETY: loading runs the library's initialisers; the caller names NVRTC, whose initialisers touch only
    // the library's own memory.
    let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
    // Later look-ups by name are answered with a library that is loaded, so it must stay.
    std::mem::forget(library);
    Ok(())
}

/// The version of this machine's NVRTC, major and minor.
///
/// Errors: there is none, or it is too old.
pub fn version() -> Result<(u32, u32), CompileError> {
    // SAFETY: looks for the library by its names; loading NVRTC has no effect on the rest of the program.
    if !unsafe { sys::is_culib_present() } {
        return Err(CompileError::Absent);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there, every release has this function, and both pointers are to live integers.
    checked("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    let found = (major.unsigned_abs(), minor.unsigned_abs());
    if found < VERSION_MIN { Err(CompileError::TooOld { found }) } else { Ok(found) }
}

/// Compiles an image for a target such as `compute_70`, which gives PTX, or `sm_90`, which gives a cubin.
///
/// Errors: there is no usable NVRTC, it does not know the target, or it refuses the source.
pub fn compile(image: &Image, target: &str) -> Result<Compiled, CompileError> {
    let is_virtual = target.starts_with("compute_");
    if !is_virtual && !target.starts_with("sm_") {
        return Err(CompileError::Target { target: target.to_owned() });
    }
    version()?;
    let program = Program::new(image)?;
    program.compile(&options(target)).map_err(|e| match e {
        sys::nvrtcResult::NVRTC_ERROR_COMPILATION => CompileError::Source {
            image: image.name.to_owned(),
            target: target.to_owned(),
            log: program.log(),
        },
        // All other options are fixed and known to every release.
        sys::nvrtcResult::NVRTC_ERROR_INVALID_OPTION => CompileError::Target { target: target.to_owned() },
        other => call_error("nvrtcCompileProgram", other),
    })?;
    if is_virtual { program.ptx().map(Compiled::Ptx) } else { program.cubin().map(Compiled::Cubin) }
}

/// A number for everything that decides what an image compiles to, NVRTC's version aside: its source, the
/// headers that it includes, the options and the target. The same on every machine.
pub fn source_hash(image: &Image, target: &str) -> u64 {
    source_hash_with(image, HEADERS, target)
}

fn source_hash_with(image: &Image, headers: &[Header], target: &str) -> u64 {
    let start = Hash::new().field(image.name.as_bytes()).field(image.source.as_bytes());
    let headers = used_headers(image.source, headers);
    let text =
        headers.iter().fold(start, |hash, (name, text)| hash.field(name.as_bytes()).field(text.as_bytes()));
    options(target).iter().fold(text, |hash, option| hash.field(option.as_bytes())).value()
}

fn options(target: &str) -> Vec<String> {
    let architecture = format!("--gpu-architecture={target}");
    OPTIONS.iter().map(|&option| option.to_owned()).chain([architecture]).collect()
}

/// Name and text.
type Header = (&'static str, &'static str);

/// The headers that a source includes, itself or through others. NVRTC is given no more than these, so that one
/// that is overlooked here cannot be compiled in.
fn used_headers(source: &str, headers: &[Header]) -> Vec<Header> {
    let mut used = vec![false; headers.len()];
    let mut texts = vec![source];
    while let Some(text) = texts.pop() {
        for name in included(text) {
            let found = headers.iter().position(|(known, _)| *known == name);
            if let Some(index) = found.filter(|&index| !used[index]) {
                used[index] = true;
                texts.push(headers[index].1);
            }
        }
    }
    headers.iter().zip(used).filter(|(_, used)| *used).map(|(&header, _)| header).collect()
}

/// Names in lines of the form `#include "name"`.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let directive = line.trim_start().strip_prefix('#')?.trim_start();
        let name = directive.strip_prefix("include")?.trim_start().strip_prefix('"')?;
        name.split('"').next()
    })
}

/// A program of NVRTC. Exists only after [`version`] has found a library that knows the functions used.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(image: &Image) -> Result<Program, CompileError> {
        let text = |text: &str| {
            let what = "a nul byte in the source".to_owned();
            CString::new(text).map_err(|_| CompileError::Call { call: "nvrtcCreateProgram", what })
        };
        let source = text(image.source)?;
        let name = text(&format!("{}.cu", image.name))?;
        let headers = used_headers(image.source, HEADERS);
        let header_names: Vec<CString> = headers.iter().map(|h| text(h.0)).collect::<Result<_, _>>()?;
        let header_texts: Vec<CString> = headers.iter().map(|h| text(h.1)).collect::<Result<_, _>>()?;
        let pointers =
            |texts: &[CString]| -> Vec<*const c_char> { texts.iter().map(|t| t.as_ptr()).collect() };
        let mut program = ptr::null_mut();
        // SAFETY: all texts end in nul and outlive the call, which copies them; both arrays have as many
        // entries as is said.
        let result = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                pointers(&header_texts).as_ptr(),
                pointers(&header_names).as_ptr(),
            )
        };
        checked("nvrtcCreateProgram", result).map(|()| Program(program))
    }

    fn compile(&self, options: &[String]) -> Result<(), sys::nvrtcResult> {
        let options: Vec<CString> =
            options.iter().map(|option| CString::new(option.as_str()).unwrap_or_default()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; the options end in nul and outlive the call.
        match unsafe { sys::nvrtcCompileProgram(self.0, pointers.len() as i32, pointers.as_ptr()) } {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
            other => Err(other),
        }
    }

    fn log(&self) -> String {
        // SAFETY: both functions write what `sized` asks of them.
        let bytes =
            unsafe { self.sized("nvrtcGetProgramLog", sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog) };
        match bytes {
            Ok(bytes) => text_of(&bytes).trim().to_owned(),
            Err(e) => e.to_string(),
        }
    }

    fn ptx(&self) -> Result<String, CompileError> {
        // SAFETY: both functions write what `sized` asks of them.
        let bytes = unsafe { self.sized("nvrtcGetPTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX) }?;
        Ok(text_of(&bytes))
    }

    fn cubin(&self) -> Result<Vec<u8>, CompileError> {
        // SAFETY: both functions write what `sized` asks of them.
        unsafe { self.sized("nvrtcGetCUBIN", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN) }
    }

    /// # Safety
    /// `size` writes a size, and `fill` as many bytes.
    unsafe fn sized(
        &self,
        call: &'static str,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        fill: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>, CompileError> {
        let mut bytes_len = 0;
        // SAFETY: the program is alive and the pointer is to a live integer.
        checked(call, unsafe { size(self.0, &mut bytes_len) })?;
        let mut bytes = vec![0u8; bytes_len];
        // SAFETY: the program is alive and the buffer is as long as it asked for.
        checked(call, unsafe { fill(self.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive and nobody else has it. Nothing can be done about a failure.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// The text before the first nul.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

fn checked(call: &'static str, result: sys::nvrtcResult) -> Result<(), CompileError> {
    match result {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(call_error(call, other)),
    }
}

fn call_error(call: &'static str, result: sys::nvrtcResult) -> CompileError {
    // SAFETY: gives a text that lives as long as the library, which is never unloaded.
    let what = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    CompileError::Call { call, what: what.to_string_lossy().into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str =
        "#include \"a.cuh\"\n  # include \"other.h\"\n#include <c.cuh>\n// #include \"d.cuh\"\n";

    fn image(source: &'static str) -> Image {
        Image { name: "op", source, ptx: "" }
    }

    #[test]
    fn headers_are_found_through_others_and_once() {
        let headers =
            [("b.cuh", "#include \"a.cuh\""), ("a.cuh", "#include \"b.cuh\""), ("c.cuh", ""), ("d.cuh", "")];
        let names: Vec<_> = used_headers(MAIN, &headers).iter().map(|header| header.0).collect();
        assert_eq!(names, ["b.cuh", "a.cuh"]);
    }

    #[test]
    fn whatever_changes_the_output_changes_the_hash() {
        let headers = [("a.cuh", "int a;"), ("d.cuh", "int d;")];
        let hash = source_hash_with(&image(MAIN), &headers, "sm_90");
        assert_eq!(hash, source_hash_with(&image(MAIN), &headers, "sm_90"));
        assert_ne!(hash, source_hash_with(&image("int x;"), &headers, "sm_90"));
        assert_ne!(hash, source_hash_with(&image(MAIN), &headers, "sm_80"));
        assert_ne!(hash, source_hash_with(&image(MAIN), &[("a.cuh", "int b;"), headers[1]], "sm_90"));
        assert_eq!(hash, source_hash_with(&image(MAIN), &[headers[0], ("d.cuh", "int e;")], "sm_90"));
    }

    #[test]
    fn a_target_of_no_kind_is_refused() {
        let error = compile(&image(""), "gfx90a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "NVRTC has no target `gfx90a`, expected a compute_… or sm_… of its release"
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = use_library(Path::new("nowhere/libnvrtc.so.12")).unwrap_err().to_string();
        assert!(error.starts_with("NVRTC at nowhere/libnvrtc.so.12: "), "{error}");
    }
}
