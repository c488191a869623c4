//! Files and devices that several commands take.

use super::progress::Progress;
use super::{Failure, Outcome};
use ssmgraph::backend::{Backend, CpuBackend, CudaBackend, Devices, Eager, Numerics, Reference};
use ssmgraph::engine::{Engine, EngineOptions};
use ssmgraph::formats::Gguf;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Most threads that the CPU backend takes.
const THREADS_MAX: i64 = ssmgraph_kernels::WORKERS_MAX as i64;

/// Where to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The fastest there is.
    #[default]
    Auto,
    /// The CPU kernels.
    Cpu,
    /// The definitions of the ops, slow and obvious.
    Reference,
    /// A CUDA device by its number.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "reference" => Ok(Device::Reference),
            "cuda" => Ok(Device::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(index)) => Ok(Device::Cuda(index)),
                _ => Err("expected auto, cpu, reference, cuda or cuda:N".into()),
            },
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Reference => f.write_str("reference"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Where to run, as arguments.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct DeviceArgs {
    /// Where to run: auto, cpu, reference, cuda or cuda:N
    #[arg(long, default_value_t = Device::Auto)]
    pub device: Device,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub numerics: NumericsArgs,
}

/// How strictly results are held to one order of arithmetic, as an argument.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct NumericsArgs {
    /// Exact keeps one order of arithmetic for each result, fast takes the fastest within a tolerance
    #[arg(long, value_enum, default_value_t = Strictness::Exact)]
    numerics: Strictness,
}

/// Values of `--numerics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Strictness {
    #[default]
    Exact,
    Fast,
}

impl NumericsArgs {
    /// As the backends name it.
    pub fn get(self) -> Numerics {
        match self.numerics {
            Strictness::Exact => Numerics::Exact,
            Strictness::Fast => Numerics::Fast,
        }
    }
}

/// Values of `--peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// ggml's CPU backend, and llama.cpp for whole models.
    Ggml,
}

impl Peer {
    /// What a program without it says.
    #[cfg(not(feature = "peer-ggml"))]
    pub fn missing() -> Failure {
        let how = "RUSTFLAGS=\"-C target-cpu=native\" cargo build --release --features peer-ggml";
        Failure::Call(format!("--peer ggml: this program was built without it; build it with: {how}"))
    }
}

/// How many CPU threads, as an argument.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct ThreadArgs {
    /// Number of CPU threads; by default one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX), allow_negative_numbers = true)]
    threads: Option<u32>,
}

impl ThreadArgs {
    /// The number that was asked for.
    pub fn asked(self) -> Option<usize> {
        self.threads.map(|threads| threads as usize)
    }

    /// The CPU backend.
    pub fn cpu(self) -> CpuBackend {
        CpuBackend::new(self.asked())
    }
}

impl DeviceArgs {
    /// The backend that was asked for; for `auto` the first GPU, or the CPU where there is none that works.
    ///
    /// Errors: a device that this machine does not have, or that does not work.
    pub fn backend(self) -> Outcome<Arc<dyn Backend>> {
        match self.device {
            Device::Auto => match first_gpu() {
                Some(gpu) => Ok(Arc::new(gpu.with_numerics(self.numerics.get()))),
                None => Ok(Arc::new(self.cpu())),
            },
            Device::Cpu => Ok(Arc::new(self.cpu())),
            Device::Reference => Ok(Arc::new(Eager::new(Reference))),
            Device::Cuda(index) => {
                let backend = CudaBackend::new(index)
                    .map_err(|error| Failure::Call(format!("cuda:{index}: {error}")))?;
                Ok(Arc::new(backend.with_numerics(self.numerics.get())))
            }
        }
    }

    fn cpu(self) -> CpuBackend {
        self.threads.cpu().with_numerics(self.numerics.get())
    }

    /// The backend that was asked for, then the CPU where that is a GPU, and the reference backend last.
    ///
    /// Errors: as [`DeviceArgs::backend`].
    pub fn devices(self) -> Outcome<Devices> {
        let mut backends = vec![self.backend()?];
        if is_gpu(backends[0].as_ref()) {
            backends.push(Arc::new(self.cpu()));
        }
        Ok(Devices::new(backends))
    }
}

/// Whether a backend has memory of its own on a GPU.
pub fn is_gpu(backend: &dyn Backend) -> bool {
    backend.name().starts_with("cuda")
}

/// The first GPU. One that does not work is named on standard error.
fn first_gpu() -> Option<CudaBackend> {
    let opened = match CudaBackend::count() {
        Ok(0) => return None,
        Ok(_) => CudaBackend::new(0),
        Err(error) => Err(error),
    };
    let gpu = opened
        .map_err(|error| eprintln!("note: the GPU cannot be used ({error}); running on the CPU"))
        .ok()?;
    // Cargo puts the emulator, a test tool, in reach of what it runs: it is taken only by its name.
    (!gpu.info().name.contains("emulator")).then_some(gpu)
}

/// The backends with these names; all that this machine has when there are none.
///
/// Errors: a name that this program does not have, a device that this machine does not have.
pub fn backends(
    names: &[String],
    threads: ThreadArgs,
    numerics: NumericsArgs,
) -> Outcome<Vec<Arc<dyn Backend>>> {
    let mut devices = Vec::new();
    for name in names {
        let device = name.parse().ok().filter(|device| *device != Device::Auto);
        devices.push(device.ok_or_else(|| {
            Failure::Call(format!("there is no backend \"{name}\", expected cpu, reference, cuda or cuda:N"))
        })?);
    }
    if names.is_empty() {
        devices.extend([Device::Cpu, Device::Reference]);
        let count = CudaBackend::count().map_err(Failure::wrong)?;
        devices.extend((0..count).map(Device::Cuda));
    }
    devices.into_iter().map(|device| DeviceArgs { device, threads, numerics }.backend()).collect()
}

/// Opens a model file.
///
/// Errors: no such file (a wrong call), or one that is no good.
pub fn open(path: &Path) -> Outcome<Arc<Gguf>> {
    let _progress = Progress::start(format!("reading {}", path.display()));
    let about = |what: &dyn fmt::Display| format!("{}: {what}", path.display());
    match std::fs::metadata(path) {
        Err(error) => return Err(Failure::Call(about(&error))),
        Ok(metadata) if metadata.is_dir() => {
            return Err(Failure::Call(about(&"is a folder, expected a GGUF file")));
        }
        Ok(_) => {}
    }
    Gguf::open(path).map(Arc::new).map_err(|error| match Failure::wrong(error) {
        Failure::Wrong(message) if !message.starts_with(&path.display().to_string()) => {
            Failure::Wrong(about(&message))
        }
        other => other,
    })
}

/// Loads the model of a file onto devices.
///
/// Errors: whatever the model or the devices refuse.
pub fn load(name: &str, gguf: &Arc<Gguf>, devices: &Devices, options: EngineOptions) -> Outcome<Engine> {
    let _progress = Progress::start(format!("loading {name}"));
    Engine::load(gguf.clone(), devices, options).map_err(|error| match Failure::wrong(error) {
        Failure::Wrong(message) => Failure::Wrong(format!("{name}: {message}")),
        other => other,
    })
}

/// One line on standard error when something did not run on the device that was asked for, and one when a device
/// has something to say.
pub fn warn_of_fallbacks(engine: &Engine) {
    let reports = engine.reports();
    let Some((_, report)) = reports.iter().max_by_key(|(_, report)| report.fallbacks().count()) else {
        return;
    };
    let count = report.fallbacks().count();
    if let Some(first) = report.fallbacks().next() {
        let why = first.declined.join("; ");
        eprintln!(
            "note: {count} of {} nodes did not run on the preferred device; the first: {} ({why})",
            report.nodes.len(),
            first.text
        );
    }
    let notes = reports.iter().flat_map(|(_, report)| &report.notes);
    if let Some(note) = notes.last() {
        eprintln!("note: {note}");
    }
}
