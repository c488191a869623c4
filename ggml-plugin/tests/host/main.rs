//! The plugin in a host of our own, which needs no ggml: it is loaded by `dlopen` and called through the interface, in
//! both versions.
//!
//! The plugin keeps state for its process, and a mistake in it may end one, so each scenario runs in a child process:
//! this executable again, with the scenario's name in the environment.
//!
//! `cargo test -p ssmgraph-ggml --test host fusion` runs those whose name has the word.

mod base;
mod buffers;
mod compute;
mod cuda;
mod declines;
mod errors;
mod folds;
mod fusion;
mod graph;
mod loading;
mod nodes;
mod overlaps;
mod plans;
mod plugin;
mod recurrent;
mod registration;
mod reuse;
mod sketch;

use base::Base;
use libtest_mimic::{Arguments, Failed, Trial};
use plugin::{Host, Setting};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the scenario of a child.
const SCENARIO: &str = "SSMGRAPH_HOST_SCENARIO";

/// What runs in a process of its own.
struct Scenario {
    name: String,
    setting: Setting,
    run: fn(Host),
}

/// Which processes a scenario runs in.
#[derive(Clone, Copy)]
enum Hosts {
    /// A ggml that shows its symbols; our device in buffers of its own.
    Own,
    /// The same, and as a helper in the CPU's buffers.
    OwnAndShared,
    /// The same, and on the emulated GPU.
    All,
    /// Once, as said.
    Only(Setting),
}

/// Settings that differ from this in little.
const PLAIN: Setting = Setting { version: 3, base: Base::Right, kind: "gpu", cuda: false, variables: &[] };

impl Hosts {
    fn settings(self) -> Vec<Setting> {
        let one = |version, kind, cuda| Setting { version, kind, cuda, ..PLAIN };
        let in_version = |version| match self {
            Hosts::Own => vec![one(version, "gpu", false)],
            Hosts::OwnAndShared => vec![one(version, "gpu", false), one(version, "accel", false)],
            Hosts::All => {
                vec![one(version, "gpu", false), one(version, "accel", false), one(version, "gpu", true)]
            }
            Hosts::Only(setting) => vec![Setting { version, ..setting }],
        };
        [2, 3].into_iter().flat_map(in_version).collect()
    }
}

fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name: &str, hosts: Hosts, run: fn(Host)| {
        for setting in hosts.settings() {
            let device = if setting.cuda { "cuda" } else { setting.kind };
            all.push(Scenario {
                name: format!("{name}::{device}::version_{}", setting.version),
                setting,
                run,
            });
        }
    };
    registration::add(&mut add);
    loading::add(&mut add);
    buffers::add(&mut add);
    declines::add(&mut add);
    compute::add(&mut add);
    overlaps::add(&mut add);
    recurrent::add(&mut add);
    fusion::add(&mut add);
    folds::add(&mut add);
    reuse::add(&mut add);
    plans::add(&mut add);
    errors::add(&mut add);
    cuda::add(&mut add);
    all
}

/// Adds a scenario: its name, where it runs, and what it does.
type Add<'a> = &'a mut dyn FnMut(&str, Hosts, fn(Host));

/// Runs a scenario in a child.
fn run_child(name: &str, setting: Setting, driver: &Path) -> Result<(), Failed> {
    let executable = std::env::current_exe()?;
    let mut child = Command::new(executable);
    child.env(SCENARIO, name).env("SSMGRAPH_GGML_TYPE", setting.kind).env("LD_LIBRARY_PATH", driver);
    for variable in ["SSMGRAPH_GGML_API", "SSMGRAPH_GGML_CUDA", "SSMGRAPH_GGML_LOG"] {
        child.env_remove(variable);
    }
    if setting.base == Base::None {
        child.env("SSMGRAPH_GGML_API", setting.version.to_string());
    }
    child.envs(setting.variables.iter().copied());
    let output = child.output()?;
    if output.status.success() {
        return Ok(());
    }
    let how = match output.status.signal() {
        Some(signal) => format!("the process died of signal {signal}"),
        None => format!("the process ended with {}", output.status),
    };
    Err(format!("{how}\n{}", String::from_utf8_lossy(&output.stderr)).into())
}

/// A folder in which the driver's name stands for something that is none: a machine without a GPU, also where there is
/// one.
fn no_driver() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_driver");
    std::fs::create_dir_all(&folder).expect("cargo's folder is writable");
    for name in ["libcuda.so", "libcuda.so.1", "libnvcuda.so", "libnvcuda.so.1"] {
        std::fs::write(folder.join(name), "no library").expect("cargo's folder is writable");
    }
    folder
}

fn main() {
    let scenarios = scenarios();
    if let Ok(name) = std::env::var(SCENARIO) {
        let scenario = scenarios.iter().find(|scenario| scenario.name == name).expect("a scenario's name");
        (scenario.run)(Host::start(scenario.setting));
        return;
    }
    for base in [Base::Right, Base::OtherTensor, Base::OtherNumbers] {
        for version in [2, 3] {
            base.compile(version);
        }
    }
    let emulated = emulator::install().unwrap_or_else(|error| panic!("{error}")).path();
    let emulated = emulated.parent().expect("a file lies in a folder").to_owned();
    let missing = no_driver();
    let trial = |scenario: Scenario| {
        let driver = if scenario.setting.cuda { emulated.clone() } else { missing.clone() };
        let (name, setting) = (scenario.name.clone(), scenario.setting);
        Trial::test(scenario.name, move || run_child(&name, setting, &driver))
    };
    libtest_mimic::run(&Arguments::from_args(), scenarios.into_iter().map(trial).collect()).exit();
}
