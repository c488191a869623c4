//! A stand-in for `libggml-base.so.0`, compiled here from `base.cpp`.

use ssmgraph_ggml::abi;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which ggml the process looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// A ggml of the version of the setting.
    Right,
    /// Linked statically, without symbols.
    None,
    /// Its tensors have another size.
    OtherTensor,
    /// Its ops have other numbers.
    OtherNumbers,
}

/// Bytes of a tensor in ggml's own memory, as the plugin expects them.
const OVERHEAD_BYTES: usize = 368;

/// An op of ggml that the plugin does not know.
pub const NOT_OURS: (i32, &str) = (50, "CLAMP");

impl Base {
    /// Where the compiled library lies; `None` for a host that has none.
    pub fn path(self, version: i32) -> Option<PathBuf> {
        let folder = format!("base_{self:?}_{version}").to_lowercase();
        (self != Base::None)
            .then(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder).join("libggml-base.so.0"))
    }

    /// Compiles the library.
    ///
    /// Panics when there is no g++, or it refuses.
    pub fn compile(self, version: i32) {
        let Some(path) = self.path(version) else { return };
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("cargo's folder is writable");
        let overhead = if self == Base::OtherTensor { OVERHEAD_BYTES + 16 } else { OVERHEAD_BYTES };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/base.cpp");
        let done = Command::new("g++")
            .args(["-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libggml-base.so.0"])
            .arg(format!("-DOVERHEAD_BYTES={overhead}"))
            .arg(format!("-DVERSION={version}"))
            .arg(format!("-DNAMES={}", self.names()))
            .arg(source)
            .arg("-o")
            .arg(&path)
            .output()
            .expect("g++ is there, as for the emulator");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// The names of ggml's ops in the order of their numbers, as a list in C.
    fn names(self) -> String {
        let last = abi::OP_NAMES.iter().map(|&(number, _)| number).max().unwrap_or(0);
        let ours = abi::OP_NAMES.iter().chain([&NOT_OURS]);
        let name = |number| ours.clone().find(|&&(of, _)| of == number).map_or("OTHER", |&(_, name)| name);
        let shift = i32::from(self == Base::OtherNumbers);
        let names: Vec<String> = (0..=last).map(|number| format!("\"{}\"", name(number + shift))).collect();
        names.join(",")
    }
}
