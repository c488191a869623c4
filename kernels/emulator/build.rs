//! Compiles every kernel for the CPU with g++, together with the engine that runs grids, once for speed and
//! once with the checker.

use std::path::{Path, PathBuf};
use std::process::Command;
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
    let libraries = [
        ("fast", fast, kernels.clone()),
        ("check", check, kernels),
        ("bugs", check, vec![here.join("tests/bugs.cu")]),
        ("driver", fast, vec![here.join("tests/driver.cu")]),
    ];
    std::thread::scope(|scope| {
        for mode in &MODES {
            let (here, out, libraries) = (&here, &out, &libraries);
            scope.spawn(move || {
                let engine = build_engine(here, out, mode);
                for (name, _, sources) in libraries.iter().filter(|library| library.1.name == mode.name) {
                    build_library(here, &out.join(name), mode, sources, &engine);
                }
            });
        }
    });
    for (name, ..) in &libraries {
        let path = out.join(name).join("libkernels.so");
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

/// Compiles the engine; gives the object.
fn build_engine(here: &Path, out: &Path, mode: &Mode) -> PathBuf {
    let folder = here.join("engine");
    let object = out.join(format!("engine_{}.o", mode.name));
    let mut command = compiler(&folder);
    command.arg("-O2").args(mode.engine_flags).arg("-c").arg(engine_unit(&folder, out, mode));
    run(command.arg("-o").arg(&object));
    object
}

/// Compiles kernels and links them with the engine.
fn build_library(here: &Path, out: &Path, mode: &Mode, sources: &[PathBuf], engine: &Path) {
    fs::create_dir_all(out).expect("OUT_DIR can be written");
    let folder = here.join("engine");
    let mut link = Command::new("g++");
    link.args(["-shared", "-pthread", "-Wl,-z,defs"]).arg(engine);
    for source in sources {
        let unit = out.join(format!("{}.cpp", unit_name(source)));
        fs::write(&unit, translation_unit(source)).expect("OUT_DIR can be written");
        let object = unit.with_extension("o");
        let mut command = compiler(&folder);
        command.args(["-fno-strict-aliasing", "-fno-extern-tls-init", "-ffp-contract=off", "-include"]);
        command.arg(folder.join("cuda_emu.h")).args(mode.kernel_flags).arg("-c").arg(&unit);
        run(command.arg("-o").arg(&object));
        link.arg(object);
    }
    // Each `extern __shared__ T name[]` is the engine's one block of dynamic shared memory.
    link.arg("-Wl,--defsym=dynamic_shared=emu_dynamic_shared");
    run(link.arg("-o").arg(out.join("libkernels.so")));
}

/// The engine as one source: its short functions are inlined across files, and headers are read once.
fn engine_unit(engine_folder: &Path, out: &Path, mode: &Mode) -> PathBuf {
    let mut files: Vec<PathBuf> = fs::read_dir(engine_folder)
        .expect("the engine is part of this crate")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .collect();
    files.sort();
    let includes: String = files.iter().map(|file| format!("#include \"{}\"\n", file.display())).collect();
    let unit = out.join(format!("engine_{}.cpp", mode.name));
    fs::write(&unit, includes).expect("OUT_DIR can be written");
    unit
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
    command.args(["-Wno-unknown-pragmas", "-Wno-unused-variable", "-I"]).arg(engine_folder);
    command
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
