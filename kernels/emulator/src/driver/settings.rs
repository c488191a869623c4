//! How the device behaves, from environment variables and from calls at run time.

use crate::engine::Mode;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Device memory unless told otherwise.
const MEMORY_BYTES: usize = 64 << 30;

/// How the device behaves.
#[derive(Debug)]
pub struct Settings {
    /// Which library of kernels modules are loaded from.
    pub mode: Mode,
    /// Whether queued work runs as late as allowed rather than when it is submitted.
    pub lazy: bool,
    /// 0 for threads, blocks and graph nodes in order, else a seed for another order.
    pub seed: u32,
    /// Size of device memory.
    pub memory_bytes: usize,
    /// Whether launches and loads are logged; what is wrong always is.
    pub log: bool,
    /// Further libraries of kernels, which go before the project's own.
    pub libraries: Vec<PathBuf>,
}

static SETTINGS: LazyLock<Mutex<Settings>> = LazyLock::new(|| Mutex::new(Settings::from_environment()));

/// The settings, locked; hold them briefly.
pub fn settings() -> MutexGuard<'static, Settings> {
    SETTINGS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Settings {
    fn from_environment() -> Settings {
        let libraries = variable("KERNELS").unwrap_or_default();
        Settings {
            mode: if variable("MODE").as_deref() == Some("check") { Mode::Check } else { Mode::Fast },
            lazy: variable("ASYNC").as_deref() != Some("eager"),
            seed: number("SEED").unwrap_or(0),
            memory_bytes: number("MEMORY_BYTES").unwrap_or(MEMORY_BYTES),
            log: variable("LOG").is_some_and(|value| value != "0"),
            libraries: libraries.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect(),
        }
    }
}

/// The environment variable `SSMGRAPH_EMULATOR_<name>`.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(format!("SSMGRAPH_EMULATOR_{name}")).ok()
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = variable(name)?;
    let parsed = value.trim().parse().ok();
    if parsed.is_none() {
        super::report::note(&format!("SSMGRAPH_EMULATOR_{name}={value} is no number and is not used"));
    }
    parsed
}
