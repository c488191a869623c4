//! Compiles every kernel for the CPU with g++, together with the engine that runs grids, once for speed and
//! once with the checker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A library of kernels.
struct Library {
    name: &'static str,
    mode: Mode,
    sources: Vec<PathBuf>,
}

/// How a library of kernels is compiled.
#[derive(Clone, Copy)]
struct Mode {
    kernel_flags: &'static [&'static str],
    engine_flags: &'static [&'static str],
}

const MODES: [Mode; 2] = [
    Mode { kernel_flags: &["-O2"], engine_flags: &[] },
    Mode {
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

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    println!("cargo::rerun-if-changed=engine");
    println!("cargo::rerun-if-changed=../src");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo::rerun-if-changed=tests/bugs.cu");
    println!("cargo::rerun-if-changed=tests/driver.cu");
    let kernels = kernel_sources(&here.join("../src"));
    let [fast, check] = MODES;
    let libraries = [
        Library { name: "fast", mode: fast, sources: kernels.clone() },
        Library { name: "check", mode: check, sources: kernels },
        Library { name: "bugs", mode: check, sources: vec![here.join("tests/bugs.cu")] },
        Library { name: "driver", mode: fast, sources: vec![here.join("tests/driver.cu")] },
    ];
    std::thread::scope(|scope| {
        for library in &libraries {
            let (here, out) = (&here, &out);
            scope.spawn(move || build(here, &out.join(library.name), library));
        }
    });
    for library in &libraries {
        let (name, path) = (library.name.to_uppercase(), out.join(library.name).join("libkernels.so"));
        println!("cargo::rustc-env=EMULATOR_KERNELS_{name}={}", path.display());
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

fn build(here: &Path, out: &Path, library: &Library) {
    let mode = library.mode;
    fs::create_dir_all(out).expect("OUT_DIR can be written");
    let engine_folder = here.join("engine");
    let mut objects = Vec::new();
    for source in &library.sources {
        let name = unit_name(source);
        let unit = out.join(format!("{name}.cpp"));
        fs::write(&unit, translation_unit(source)).expect("OUT_DIR can be written");
        let object = unit.with_extension("o");
        let header = engine_folder.join("cuda_emu.h");
        let mut command = compiler(&engine_folder);
        command.args(["-fno-strict-aliasing", "-fno-extern-tls-init", "-ffp-contract=off", "-include"]);
        command.arg(header).args(mode.kernel_flags).arg("-c").arg(&unit).arg("-o").arg(&object);
        run(command);
        objects.push(object);
    }
    let engine = out.join("engine.o");
    let mut command = compiler(&engine_folder);
    command.arg("-O2").args(mode.engine_flags).arg("-c").arg(engine_folder.join("emu_engine.cpp"));
    run({
        command.arg("-o").arg(&engine);
        command
    });
    let mut link = Command::new("g++");
    link.args(["-shared", "-pthread", "-Wl,-z,defs"]).args(&objects).arg(&engine);
    // Each `extern __shared__ T name[]` is the engine's one block of dynamic shared memory.
    link.arg("-Wl,--defsym=dynamic_shared=emu_dyn_smem").arg("-o").arg(out.join("libkernels.so"));
    run(link);
}

/// A name for a source's files: the op's folder and the file.
fn unit_name(source: &Path) -> String {
    let folder = source.parent().and_then(Path::file_name).expect("a source lies in a folder");
    let file = source.file_stem().expect("a source has a name");
    format!("{}_{}", folder.to_string_lossy(), file.to_string_lossy())
}

fn compiler(engine_folder: &Path) -> Command {
    let mut command = Command::new("g++");
    command.args([
        "-std=c++17",
        "-g",
        "-fPIC",
        "-Wall",
        "-pthread",
        "-mtls-dialect=gnu2",
        "-mavx2",
        "-mfma",
        "-mf16c",
    ]);
    command.args(["-Wno-unknown-pragmas", "-Wno-unused-variable", "-I"]).arg(engine_folder);
    command
}

/// The kernel's source and a registration of each of its entries.
fn translation_unit(source: &Path) -> String {
    let text = fs::read_to_string(source).expect("a kernel source is readable");
    let entries = text.split("extern \"C\" __global__").skip(1).map(entry_name);
    let registered: String = entries.map(|name| format!("EMU_KERNEL({name}, &{name})\n")).collect();
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

fn run(mut command: Command) {
    let failed = match command.status() {
        Ok(status) if status.success() => return,
        Ok(status) => status.to_string(),
        Err(error) => format!("{error}; the emulator needs g++ 12 or later on x86-64 Linux"),
    };
    panic!("{command:?}: {failed}");
}
