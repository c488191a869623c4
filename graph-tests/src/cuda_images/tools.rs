//! NVIDIA's compiler and assemblers, from their packages on PyPI: they need neither a GPU nor a toolkit.

use ssmgraph::backend::cuda::cache::Cache;
use ssmgraph::backend::cuda::compile;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;

/// A package and the file of it that is used.
struct Package {
    name: &'static str,
    version: &'static str,
    file: &'static str,
}

/// The compiler. The oldest release of CUDA 12, so that every driver of CUDA 12 and later loads its PTX.
const NVRTC: Package = Package {
    name: "nvidia-cuda-nvrtc-cu12",
    version: "12.0.140",
    file: "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
};
const NVRTC_MAJOR_MINOR: (u32, u32) = (12, 0);

/// The assembler of the newest devices.
const PTXAS: Package =
    Package { name: "nvidia-cuda-nvcc", version: "13.5.37", file: "nvidia/cu13/bin/ptxas" };

/// The last assembler of the devices that [`PTXAS`] has dropped, which is all below sm_75.
const PTXAS_OLD: Package =
    Package { name: "nvidia-cuda-nvcc-cu12", version: "12.9.86", file: "nvidia/cuda_nvcc/bin/ptxas" };

/// The disassembler of machine code, which runs the second.
const CUOBJDUMP: Package =
    Package { name: "nvidia-cuda-cuobjdump", version: "13.5.37", file: "nvidia/cu13/bin/cuobjdump" };
const NVDISASM: Package =
    Package { name: "nvidia-cuda-nvdisasm", version: "13.5.37", file: "nvidia/cu13/bin/nvdisasm" };

/// The first device that [`PTXAS`] knows.
const PTXAS_ARCHITECTURE_MIN: u32 = 75;

/// The compiler's release.
pub const NVRTC_VERSION: &str = NVRTC.version;

/// The newer assembler's release.
pub const PTXAS_VERSION: &str = PTXAS.version;

/// The tools, installed and loaded.
#[derive(Clone, Debug)]
pub struct Tools {
    ptxas: PathBuf,
    ptxas_old: PathBuf,
    cuobjdump: PathBuf,
    nvdisasm: PathBuf,
}

impl Tools {
    /// Installs what is missing below the build folder, and loads the compiler. The first call of a process
    /// decides for all.
    ///
    /// Errors: no Python with pip, no network, or another NVRTC in the way, each as a sentence.
    pub fn get() -> Result<Tools, String> {
        static TOOLS: OnceLock<Result<Tools, String>> = OnceLock::new();
        TOOLS.get_or_init(Tools::load).clone()
    }

    fn load() -> Result<Tools, String> {
        let folder = folder();
        let nvrtc = installed(&folder, &NVRTC)?;
        let tools = Tools {
            ptxas: installed(&folder, &PTXAS)?,
            ptxas_old: installed(&folder, &PTXAS_OLD)?,
            cuobjdump: installed(&folder, &CUOBJDUMP)?,
            nvdisasm: installed(&folder, &NVDISASM)?,
        };
        compile::use_library(&nvrtc).map_err(|e| e.to_string())?;
        match compile::version().map_err(|e| e.to_string())? {
            NVRTC_MAJOR_MINOR => Ok(tools),
            (major, minor) => Err(format!(
                "NVRTC {major}.{minor} of this machine hides NVRTC {}.{}, which the images are compiled with: \
                 start again without its folder in LD_LIBRARY_PATH or ld.so.conf, or put first a folder where \
                 libnvrtc.so is a link to {}",
                NVRTC_MAJOR_MINOR.0,
                NVRTC_MAJOR_MINOR.1,
                nvrtc.display()
            )),
        }
    }

    /// The assembler that knows a device, such as 90 for sm_90.
    pub fn ptxas(&self, architecture: u32) -> &Path {
        if architecture < PTXAS_ARCHITECTURE_MIN { &self.ptxas_old } else { &self.ptxas }
    }

    /// The disassembler, which looks for another program in [`Tools::nvdisasm_folder`].
    pub fn cuobjdump(&self) -> &Path {
        &self.cuobjdump
    }

    /// What has to be in the search path of [`Tools::cuobjdump`].
    pub fn nvdisasm_folder(&self) -> &Path {
        self.nvdisasm.parent().unwrap_or(&self.nvdisasm)
    }

    /// What the tools made of the same text before, so that only an edited kernel costs time. Lies beside them
    /// and is thrown away with them.
    pub fn results(&self) -> Cache {
        Cache::at(&folder().join("results"))
    }
}

/// Where tools are installed: beside what cargo builds, and as easily thrown away.
fn folder() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| super::root().join("target"), PathBuf::from);
    super::root().join(target).join("cuda-tools")
}

/// The package's file, after installing the package if it is not there. A package appears whole or not at all,
/// and whoever comes while another installs waits for it.
fn installed(folder: &Path, package: &Package) -> Result<PathBuf, String> {
    let place = folder.join(format!("{}-{}", package.name, package.version));
    let file = place.join(package.file);
    if file.exists() {
        return Ok(file);
    }
    let failed = |what: std::io::Error| format!("{}: {what}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let lock = File::create(folder.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if file.exists() {
        return Ok(file);
    }
    let temporary = folder.join(format!("installing-{}", process::id()));
    let outcome = install(&temporary, package).and_then(|()| {
        let _ = fs::remove_dir_all(&place);
        fs::rename(&temporary, &place).map_err(failed)
    });
    let _ = fs::remove_dir_all(&temporary);
    outcome?;
    let missing = || format!("{} {} has no file {}", package.name, package.version, package.file);
    file.exists().then_some(file).ok_or_else(missing)
}

fn install(target: &Path, package: &Package) -> Result<(), String> {
    let requirement = format!("{}=={}", package.name, package.version);
    let arguments = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"];
    let output = Command::new("python3")
        .args(arguments)
        .arg("--disable-pip-version-check")
        .arg("--target")
        .arg(target)
        .arg(&requirement)
        .output();
    let what = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(e) => format!("python3: {e}"),
    };
    Err(format!(
        "checks of CUDA images need {requirement}, which `python3 -m pip install` gets from PyPI once for a build \
         folder; that failed:\n{what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_cannot_be_had_is_an_error_that_names_it() {
        let folder = std::env::temp_dir().join(format!("ssmgraph-tools-{}", process::id()));
        // The version is refused before anything is looked up, so this needs no network.
        let package = Package { name: "nvidia-cuda-nvcc", version: "not-a-version", file: "x" };
        let error = installed(&folder, &package).unwrap_err();
        assert!(error.contains("need nvidia-cuda-nvcc==not-a-version"), "{error}");
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn old_devices_get_the_old_assembler() {
        let path = |name: &str| PathBuf::from(name);
        let tools = Tools {
            ptxas: path("new"),
            ptxas_old: path("old"),
            cuobjdump: path("cuobjdump"),
            nvdisasm: path("nvdisasm"),
        };
        assert_eq!(tools.ptxas(70), Path::new("old"));
        assert_eq!(tools.ptxas(75), Path::new("new"));
    }
}
