//! CUDA images: compiled by a pinned NVRTC, so that the same source gives the same PTX on every machine, and
//! assembled for the devices that the PTX is meant for. `cuda_images` is the command, `tests/cuda_images.rs` the
//! test.

pub mod assemble;
pub mod ptx;
mod sass;
pub mod table;
pub mod tools;

use ssmgraph::backend::cuda::compile::{self, Compiled, EMBEDDED_TARGET};
use ssmgraph_kernels::cuda::{IMAGES, Image};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tools::{NVRTC_VERSION, Tools};

/// How to bring every embedded image up to date.
pub const BUILD_COMMAND: &str = "cargo run -p graph-tests --bin cuda_images -- build";

/// The workspace's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("graph-tests lies in the workspace")
}

/// Where an image's PTX is kept.
pub fn ptx_path(image: &Image) -> PathBuf {
    root().join("kernels/src").join(image.name).join("cuda.ptx")
}

/// First line of an image's PTX: what the rest was compiled from.
pub fn source_line(image: &Image) -> String {
    format!("// source {:016x}", compile::source_hash(image, EMBEDDED_TARGET))
}

/// Whether the embedded PTX was compiled from the source as it is now.
///
/// Errors: it was not; what to run.
pub fn is_current(image: &Image) -> Result<(), String> {
    let found = image.ptx.lines().next().unwrap_or("nothing");
    let wanted = source_line(image);
    if found == wanted {
        return Ok(());
    }
    Err(format!(
        "kernels/src/{0}/cuda.ptx is not made from kernels/src/{0}/cuda.cu as it is now: it starts with \
         `{found}`, expected `{wanted}`; run: {BUILD_COMMAND}",
        image.name
    ))
}

/// The PTX file of an image, compiled from its source as it is now.
///
/// Errors: the source does not compile.
pub fn compiled(tools: &Tools, image: &Image) -> Result<String, String> {
    let compile = || match compile::compile(image, EMBEDDED_TARGET).map_err(|e| e.to_string())? {
        Compiled::Ptx(ptx) => Ok(ptx.into_bytes()),
        Compiled::Cubin(_) => Err(format!("{EMBEDDED_TARGET} gave machine code")),
    };
    // The compiler's version is part of the name, its options of the key.
    let name = format!("{}-nvrtc-{NVRTC_VERSION}.ptx", image.name);
    let ptx = tools.results().get(&name, compile::source_hash(image, EMBEDDED_TARGET), compile)?;
    Ok(format!("{}\n{}", source_line(image), String::from_utf8_lossy(&ptx)))
}

/// Compiles every image and writes those that differ. Gives the paths of these.
///
/// Errors: a source that does not compile, a file that cannot be written.
pub fn build(tools: &Tools) -> Result<Vec<PathBuf>, String> {
    let mut written = Vec::new();
    for (image, ptx) in IMAGES.iter().zip(in_parallel(IMAGES, |image| compiled(tools, image))) {
        let (path, ptx) = (ptx_path(image), ptx?);
        if fs::read(&path).ok().as_deref() != Some(ptx.as_bytes()) {
            fs::write(&path, ptx).map_err(|e| format!("{}: {e}", path.display()))?;
            written.push(path);
        }
    }
    Ok(written)
}

/// What differs between the PTX that is kept and what its source compiles to; empty when all is well.
pub fn differences(tools: &Tools) -> Vec<String> {
    let difference = |image: &&'static Image| match compiled(tools, image) {
        Ok(wanted) => difference(image, &wanted),
        Err(what) => Some(what),
    };
    in_parallel(IMAGES, difference).into_iter().flatten().collect()
}

fn difference(image: &Image, wanted: &str) -> Option<String> {
    if image.ptx == wanted {
        return None;
    }
    let index = image.ptx.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count();
    let line = |text: &str| text.lines().nth(index).unwrap_or("its end").to_owned();
    Some(format!(
        "kernels/src/{}/cuda.ptx: line {} is `{}`, the source compiles to `{}`; run: {BUILD_COMMAND}",
        image.name,
        index + 1,
        line(image.ptx),
        line(wanted)
    ))
}

/// What a function gives for each job, in their order, on all cores.
fn in_parallel<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((index, job)) = next_job(jobs, &next) {
            let result = run(job);
            done.lock().expect("no thread panics with the lock").push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().expect("no thread panics with the lock");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn next_job<'a, J>(jobs: &'a [J], next: &AtomicUsize) -> Option<(usize, &'a J)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&jobs, |job| job * 2), (0..100).map(|job| job * 2).collect::<Vec<_>>());
    }

    #[test]
    fn an_edited_source_is_noticed() {
        let source = "#include \"../shared/common.cuh\"\nint x;";
        let before = Image { name: "op", source, ptx: "" };
        let ptx = format!("{}\n.version 8.0\n", source_line(&before)).leak();
        assert_eq!(is_current(&Image { ptx, ..before }), Ok(()));

        let edited = Image { name: "op", source: "#include \"../shared/common.cuh\"\nint y;", ptx };
        let complaint = is_current(&edited).unwrap_err();
        assert!(complaint.ends_with(&format!("run: {BUILD_COMMAND}")), "{complaint}");
        assert!(is_current(&Image { name: "op", source, ptx: "" }).is_err());
    }
}
