//! Instructions that the hot kernels execute, counted by callgrind on one thread: a regression shows without a quiet
//! machine. Callgrind knows AVX2 and no more, so the forms for AVX-512, VNNI and AMX are not guarded by it.
//!
//! `cargo bench -p ssmgraph-kernels --bench instructions` compares with `instructions.txt` beside this file, and
//! `-- update` behind it writes the file. It wants valgrind.

use ssmgraph_kernels::{Forms, Memory, Place, Program, Step};
use ssmgraph_ops::binary::{Binary, BinaryFunction};
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::glu::{Glu, GluFunction};
use ssmgraph_ops::l2_norm::{Form, L2Norm};
use ssmgraph_ops::unary::{Function, Unary};
use ssmgraph_ops::workload::{
    Workload, conv_step, f32s, gated_delta_net, ids, mamba1_scan, mamba2_scan, uniform,
};
use ssmgraph_ops::{
    Argmax, Attention, Cpy, Cumsum, DType, HostTensor, Layout, Mean, MulMat, Op, RmsNorm, SoftMax, Sum,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Counts may grow by this much: allocation and copies of the system library differ a little.
const TOLERANCE: f64 = 0.02;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["run", name] => run(name),
        ["update"] => counts().and_then(|counts| write(&counts)),
        [] => counts().and_then(|counts| compare(&counts)),
        _ => Err("usage: instructions [update]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The kernels by name.
fn kernels() -> Vec<(String, Op, Vec<HostTensor>)> {
    let mut all = Vec::new();
    for tokens in [1, 16] {
        let mut add =
            |name: &str, work: Workload| all.push((format!("{name}, T = {tokens}"), work.op, work.inputs));
        add("ssm_scan Mamba-1 256 × 16", mamba1_scan(16, 256, tokens));
        add("ssm_scan Mamba-2 4 × 64 × 128", mamba2_scan(128, 4, tokens));
        add("gated_delta_net 4 × 128", gated_delta_net(128, 4, tokens));
        add("ssm_conv_step 1024", conv_step(1024, tokens));
        for &dtype in MulMat::WEIGHTS {
            let inputs = vec![uniform(dtype, &[512, 128]), f32s(&[512, tokens])];
            let op = MulMat::of(dtype).into();
            add(&format!("mul_mat {dtype} 512 × 128"), Workload { op, inputs });
        }
    }
    let rows = || f32s(&[128, 64]);
    let gated = GatedNorm { eps: 1e-6, group_size: 128, order: Order::NormThenGate, gate: Gate::Silu };
    let long = || vec![f32s(&[32_000])];
    let cache = || uniform(DType::F16, &[128, 2, 64, 1]);
    let past = HostTensor::from_i32(&[1], &[48]).expect("one length");
    let half = Layout::contiguous(DType::F16, &[128, 64]).expect("a small shape");
    let plain: [(&str, Op, Vec<HostTensor>); 14] = [
        ("gated_norm 128 × 64", gated.into(), vec![rows(), rows(), f32s(&[128])]),
        ("rms_norm 128 × 64", RmsNorm { eps: 1e-6, weight: true }.into(), vec![rows(), f32s(&[128])]),
        ("l2_norm 128 × 64", L2Norm { eps: 1e-6, form: Form::Max }.into(), vec![rows()]),
        ("soft_max 128 × 64", SoftMax { scale: 1.0, mask: false }.into(), vec![rows()]),
        ("argmax 32000", Argmax {}.into(), long()),
        ("sum 32000", Sum {}.into(), long()),
        ("mean 32000", Mean {}.into(), long()),
        ("cumsum 32000", Cumsum {}.into(), long()),
        ("silu 8192", Unary { function: Function::Silu }.into(), vec![rows()]),
        ("mul 8192", Binary { function: BinaryFunction::Mul }.into(), vec![rows(), rows()]),
        ("swiglu 8192", swiglu(), vec![rows(), rows()]),
        ("cpy to f16 8192", Cpy { to: half }.into(), vec![rows()]),
        ("cpy turned 128 × 64", turned(), vec![rows()]),
        (
            "attention 8 × 128 over 49",
            Attention { scale: 0.1 }.into(),
            vec![f32s(&[128, 8, 1]), cache(), cache(), ids(1, 1), past],
        ),
    ];
    all.extend(plain.map(|(name, op, inputs)| (name.to_owned(), op, inputs)));
    all
}

fn swiglu() -> Op {
    Glu { function: GluFunction::Swiglu, split: true, swapped: false }.into()
}

/// Into a layout whose rows are the columns.
fn turned() -> Op {
    let columns = Layout::contiguous(DType::F32, &[64, 128]).and_then(|layout| layout.permute([1, 0, 2, 3]));
    Cpy { to: columns.expect("a small shape") }.into()
}

/// One kernel, once to warm up and once where callgrind counts.
fn run(name: &str) -> Result<(), String> {
    let found = kernels().into_iter().find(|(known, ..)| known == name);
    let (_, op, inputs) = found.ok_or_else(|| format!("there is no kernel \"{name}\""))?;
    let zeroed = |layout: Layout| Memory::zeroed(layout.span_bytes()).map_err(|error| error.to_string());
    let input = |input: &HostTensor| {
        let memory = zeroed(*input.layout())?;
        memory.write(0, input.bytes());
        // As weights are, so that products find them packed.
        Ok::<_, String>(place(memory.freeze(), *input.layout()))
    };
    let inputs: Vec<Place> = inputs.iter().map(input).collect::<Result<_, _>>()?;
    let layouts: Vec<Layout> = inputs.iter().map(|input| input.layout).collect();
    let results = op.infer(&layouts).map_err(|error| error.to_string())?;
    let result = |layout: Layout| Ok::<_, String>(place(zeroed(layout)?, layout));
    let results = results.into_iter().map(result).collect::<Result<_, _>>()?;
    let program = Program::new(vec![Step { op, inputs, results }], 1, Forms::default());
    let program = program.map_err(|error| error.to_string())?;
    program.run(None).map_err(|error| error.to_string())?;
    counted(&program)
}

fn place(memory: Memory, layout: Layout) -> Place {
    Place { memory: Arc::new(memory), offset_bytes: 0, layout }
}

/// What callgrind counts, with all that it calls.
#[inline(never)]
fn counted(program: &Program) -> Result<(), String> {
    program.run(None).map_err(|error| error.to_string())
}

/// The instructions of every kernel.
fn counts() -> Result<BTreeMap<String, u64>, String> {
    kernels().into_iter().map(|(name, ..)| Ok((name.clone(), count(&name)?))).collect()
}

fn count(name: &str) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--toggle-collect=*instructions::counted*",
            "--callgrind-out-file=/dev/null",
        ])
        .arg(this)
        .args(["run", name])
        .env("SSMGRAPH_SIMD", "avx2")
        .output()
        .map_err(|error| format!("valgrind does not run ({error}); it is a package of that name"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    match collected.and_then(|(_, count)| count.trim().parse().ok()) {
        Some(count) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!("{name}: {}\n{text}", output.status)),
    }
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.txt")
}

fn write(counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let lines: String = counts.iter().map(|(name, count)| format!("{count:>9}  {name}\n")).collect();
    std::fs::write(file(), lines).map_err(|error| error.to_string())
}

/// Errors: a kernel that executes more than is written down, or so many fewer that the figure guards nothing.
fn compare(counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let text = std::fs::read_to_string(file()).map_err(|error| error.to_string())?;
    let known: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.trim_start().split_once("  "))
        .filter_map(|(count, name)| Some((name, count.parse().ok()?)))
        .collect();
    let mut faults = Vec::new();
    for (name, &count) in counts {
        let Some(&known) = known.get(name.as_str()) else {
            faults.push(format!("{name}: {count} instructions, nothing is written down"));
            continue;
        };
        let change = count as f64 / known as f64 - 1.0;
        println!("{count:>9}  {name}  ({:+.1} %)", 100.0 * change);
        if change.abs() > TOLERANCE {
            faults.push(format!("{name}: {count} instructions, {known} are written down"));
        }
    }
    let gone = known.keys().filter(|name| !counts.contains_key(**name));
    faults.extend(gone.map(|name| format!("{name}: there is no such kernel any more")));
    if faults.is_empty() {
        return Ok(());
    }
    let how = "if that is meant, run: cargo bench -p ssmgraph-kernels --bench instructions -- update";
    Err(format!("{}\n{how}", faults.join("\n")))
}
