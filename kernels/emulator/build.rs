//! Compiles every kernel for the CPU with g++, together with the engine that runs grids, once for speed and
//! once with the checker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs};

/// How libraries of kernels are compiled.
struct Mode {
    name: &'static str,
    kernel_flags: &'static [&'static str],
    engine_flags: &'static [&'static str],
}

const MODES: [Mode; 2] = [
    Mode { name: "fast", kernel_flags: &["-O2"], engine_flags: &[] },
    Mode {
        name: "check",
        kernel_flags: &[
            "-O1",
            "-DEMU_CHECK",
            // g++ calls a function at each access; the engine's checker defines those functions.
            "-fsanitize=thread",
            "-fsanitize=bounds,alignment,shift,signed-integer-overflow,integer-divide-by-zero",
            "-fsanitize-undefined-trap-on-error",
        ],
        engine_flags: &["-DEMU_CHECK"],
    },
];

/// A kernel with one fault put in, for the tests that the checker finds it.
struct Mutant {
    name: &'static str,
    op: &'static str,
    right: &'static str,
    wrong: &'static str,
}

/// Edits keep the number of lines, so that reports name lines of the original.
const MUTANTS: [Mutant; 3] = [
    Mutant {
        name: "mutant_without_barrier",
        op: "soft_max",
        right: "of_warp[threadIdx.x / WARP] = value;\n    __syncthreads();\n",
        wrong: "of_warp[threadIdx.x / WARP] = value;\n\n",
    },
    Mutant {
        name: "mutant_early_reuse",
        op: "soft_max",
        right: "over_block<true>(sum, sum_of_warp)",
        wrong: "over_block<true>(sum, largest_of_warp)",
    },
    Mutant {
        name: "mutant_bound",
        op: "argmax",
        right: "i < p.pieces; i += WARP)",
        wrong: "i <= p.pieces; i += WARP)",
    },
];

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    println!("cargo::rerun-if-changed=engine");
    println!("cargo::rerun-if-changed=../src");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo::rerun-if-changed=tests/bugs.cu");
    println!("cargo::rerun-if-changed=tests/driver.cu");
    let kernels = kernel_sources(&here.join("../src"));
    let [fast, check] = &MODES;
    let mut libraries = vec![
        ("fast", fast, kernels.clone()),
        ("check", check, kernels),
        ("bugs", check, vec![here.join("tests/bugs.cu")]),
        ("driver", fast, vec![here.join("tests/driver.cu")]),
    ];
    let mutated = |mutant: &Mutant| (mutant.name, check, vec![mutant.write(&here.join("../src"), &out)]);
    libraries.extend(MUTANTS.iter().map(mutated));
    let build = Build { engine: here.join("engine"), shared: here.join("../src/shared"), out };
    let engines = MODES.iter().map(|mode| build.engine_step(mode));
    let units = libraries.iter().flat_map(|(name, mode, sources)| {
        let build = &build;
        sources.iter().map(move |source| build.kernel_step(name, mode, source))
    });
    run_all(engines.chain(units).collect());
    for (name, mode, sources) in &libraries {
        let path = build.link(name, mode, sources);
        println!("cargo::rustc-env=EMULATOR_KERNELS_{}={}", name.to_uppercase(), path.display());
    }
}

/// Every `cuda.cu` under a folder, in order.
fn kernel_sources(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the kernels crate is beside this one")
        .map(|entry| entry.expect("a readable folder").path().join("cuda.cu"))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found
}

impl Mutant {
    /// Writes the edited source; gives its file. It is left alone when it is there already, so that it need not be
    /// compiled again.
    fn write(&self, kernels: &Path, out: &Path) -> PathBuf {
        let source = kernels.join(self.op).join("cuda.cu");
        let text = fs::read_to_string(&source).expect("a kernel source is readable");
        let found = text.matches(self.right).count();
        assert_eq!(found, 1, "{}: `{}` is there {found} times: mend MUTANTS", source.display(), self.right);
        let edited = text.replace(self.right, self.wrong);
        let file = out.join("sources").join(self.name).join("mutant.cu");
        if fs::read_to_string(&file).ok().as_ref() != Some(&edited) {
            fs::create_dir_all(file.parent().expect("a folder")).expect("OUT_DIR can be written");
            fs::write(&file, edited).expect("OUT_DIR can be written");
        }
        file
    }
}

/// A compilation.
struct Step {
    command: Command,
    object: PathBuf,
    /// Files whose change makes the object stale.
    inputs: Vec<PathBuf>,
}

impl Step {
    /// Compiles unless the object is newer than all it was made of: an edit of one kernel compiles that kernel.
    fn run(mut self) {
        let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        let made = changed(&self.object);
        let inputs = self.inputs.iter().map(|path| changed(path));
        if made.is_none() || inputs.max().flatten() >= made {
            run(self.command.arg("-o").arg(&self.object));
        }
    }
}

/// Runs compilations on as many threads as cargo allows.
fn run_all(steps: Vec<Step>) {
    let threads = env::var("NUM_JOBS").ok().and_then(|count| count.parse().ok()).unwrap_or(1);
    let steps = Mutex::new(steps);
    let take = || steps.lock().expect("nobody panics while holding it").pop();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(step) = take() {
                    step.run();
                }
            });
        }
    });
}

/// Where things lie.
struct Build {
    engine: PathBuf,
    shared: PathBuf,
    out: PathBuf,
}

impl Build {
    /// The engine as one source: its short functions are inlined across files, and headers are read once.
    fn engine_step(&self, mode: &Mode) -> Step {
        let inputs = self.common_inputs();
        let files = inputs.iter().filter(|path| path.extension().is_some_and(|extension| extension == "cpp"));
        let includes: String = files.map(|file| format!("#include \"{}\"\n", file.display())).collect();
        let unit = self.out.join(format!("engine_{}.cpp", mode.name));
        fs::write(&unit, includes).expect("OUT_DIR can be written");
        let mut command = self.compiler();
        command.arg("-O2").args(mode.engine_flags).arg("-c").arg(&unit);
        Step { command, object: unit.with_extension("o"), inputs }
    }

    fn kernel_step(&self, library: &str, mode: &Mode, source: &Path) -> Step {
        let object = self.object(library, source);
        let unit = object.with_extension("cpp");
        fs::create_dir_all(self.out.join(library)).expect("OUT_DIR can be written");
        fs::write(&unit, translation_unit(source)).expect("OUT_DIR can be written");
        let mut command = self.compiler();
        command.args(["-fno-strict-aliasing", "-fno-extern-tls-init", "-ffp-contract=off", "-include"]);
        command.arg(self.engine.join("cuda_emu.h")).args(mode.kernel_flags).arg("-c").arg(&unit);
        let mut inputs = self.common_inputs();
        inputs.push(source.to_owned());
        Step { command, object, inputs }
    }

    /// The engine's files, what kernels include, and the flags, which this program holds.
    fn common_inputs(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = [&self.engine, &self.shared]
            .into_iter()
            .flat_map(|folder| fs::read_dir(folder).expect("a folder of this repository"))
            .map(|entry| entry.expect("a readable folder").path())
            .filter(|path| path.extension().is_some_and(|extension| extension != "rs"))
            .collect();
        files.sort();
        files.extend(env::current_exe());
        files
    }

    fn object(&self, library: &str, source: &Path) -> PathBuf {
        self.out.join(library).join(unit_name(source)).with_extension("o")
    }

    /// Links kernels with the engine; gives the library.
    fn link(&self, library: &str, mode: &Mode, sources: &[PathBuf]) -> PathBuf {
        let path = self.out.join(library).join("libkernels.so");
        let mut link = Command::new("g++");
        link.args(["-shared", "-pthread", "-Wl,-z,defs"]);
        link.arg(self.out.join(format!("engine_{}.o", mode.name)));
        link.args(sources.iter().map(|source| self.object(library, source)));
        // Each `extern __shared__` array is the engine's one block of dynamic shared memory.
        link.arg("-Wl,--defsym=dynamic_shared=emu_dynamic_shared");
        run(link.arg("-o").arg(&path));
        path
    }

    fn compiler(&self) -> Command {
        let mut command = Command::new("g++");
        command.args([
            "-std=c++17",
            // addr2line names the wrong file of an included source in later versions of DWARF.
            "-gdwarf-4",
            "-fPIC",
            "-fvisibility=hidden",
            "-Wall",
            "-pthread",
            "-mtls-dialect=gnu2",
            "-mavx2",
            "-mfma",
            "-mf16c",
        ]);
        command.args(["-Wno-unknown-pragmas", "-Wno-unused-variable", "-I"]).arg(&self.engine);
        // Headers are included by a path from the op's folder; an edited copy lies in another one.
        command.arg("-I").arg(&self.shared);
        command
    }
}

/// A name for a source's files: the op's folder and the file.
fn unit_name(source: &Path) -> String {
    let folder = source.parent().and_then(Path::file_name).expect("a source lies in a folder");
    let file = source.file_stem().expect("a source has a name");
    format!("{}_{}", folder.to_string_lossy(), file.to_string_lossy())
}

/// The kernel's source and a registration of each of its entries.
fn translation_unit(source: &Path) -> String {
    let text = fs::read_to_string(source).expect("a kernel source is readable");
    let entries = text.split("extern \"C\" __global__").skip(1).map(entry_name);
    let registered: String = entries.map(|name| format!("EMU_KERNEL({name})\n")).collect();
    format!("#include \"{}\"\n{registered}", source.display())
}

/// The function's name in a declaration: the word before its parameters.
fn entry_name(declaration: &str) -> &str {
    let after_bounds = match declaration.find("__launch_bounds__(") {
        Some(start) if declaration[..start].trim() == "void" || declaration[..start].trim().is_empty() => {
            let close = declaration[start..].find(')').expect("closed launch bounds");
            &declaration[start + close + 1..]
        }
        _ => declaration,
    };
    let end = after_bounds.find('(').expect("a kernel has parameters");
    after_bounds[..end].split_whitespace().last().expect("a kernel has a name")
}

fn run(command: &mut Command) {
    let failed = match command.status() {
        Ok(status) if status.success() => return,
        Ok(status) => status.to_string(),
        Err(error) => format!("{error}; the emulator needs g++ 12 or later on x86-64 Linux"),
    };
    panic!("{command:?}: {failed}");
}
