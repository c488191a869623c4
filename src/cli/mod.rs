//! The command line: one file per subcommand.
//!
//! Results go to standard output, messages and progress to standard error. The exit code is 0 on success, 1
//! when something was found wrong, 2 for a wrong call.

mod bandwidth;
mod bench;
mod devices;
mod failure;
mod graph;
mod info;
mod logits;
mod model;
mod npy;
mod perf;
mod progress;
mod run;
mod support;
mod test;
mod text;
mod tokens;
mod trace;
#[cfg(feature = "peer-ggml")]
mod versus;

pub use failure::{Failure, Outcome};

use clap::{Parser, Subcommand};
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Compute graphs for state-space language models.
#[derive(Parser)]
#[command(name = "ssmgraph", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Generate text. Without MODEL, with the demo model inside this program.
    Run(Box<run::Args>),
    /// Write the logits after each token to a file, f32 [T, vocab].
    Logits(logits::Args),
    /// Measure prompt and generation speed.
    Bench(bench::Args),
    /// Show a model's architecture, hyper-parameters, tensors and memory.
    Info(info::Args),
    /// Show a model's graph, or the plan for it.
    Graph(graph::Args),
    /// Compare every case of every op with the reference, or run test vectors.
    Test(test::Args),
    /// Measure each op: time, bandwidth, share of what memory can do.
    Perf(perf::Args),
    /// Show which backend supports which op, element type and layout.
    Support(support::Args),
    /// List the devices, with their measured memory bandwidth.
    Devices(devices::Args),
}

/// Standard output, buffered; a reader that goes away ends the program quietly.
pub type Out<'a> = BufWriter<std::io::StdoutLock<'a>>;

/// Parses the arguments, runs the command and reports what went wrong.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Writing help into a closed pipe is no failure worth a message.
            error.print().unwrap_or_default();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    if let Some(name) = ssmgraph_kernels::unknown_arch_name() {
        eprintln!("error: SSMGRAPH_SIMD is \"{name}\", expected scalar, avx2, avx512, amx or neon");
        return ExitCode::from(2);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    let outcome = dispatch(cli.command, &mut out).and_then(|()| Ok(out.flush()?));
    match outcome {
        Ok(()) | Err(Failure::ReaderLeft) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was found before belongs on standard output before the message.
            out.flush().unwrap_or_default();
            if let Some(message) = failure.message() {
                eprintln!("error: {message}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(command: Option<Command>, out: &mut Out<'_>) -> Outcome {
    match command {
        None => run::run(run::Args::default(), out),
        Some(Command::Run(args)) => run::run(*args, out),
        Some(Command::Logits(args)) => logits::run(args),
        Some(Command::Bench(args)) => bench::run(args, out),
        Some(Command::Info(args)) => info::run(args, out),
        Some(Command::Graph(args)) => graph::run(args, out),
        Some(Command::Test(args)) => test::run(args, out),
        Some(Command::Perf(args)) => perf::run(args, out),
        Some(Command::Support(args)) => support::run(args, out),
        Some(Command::Devices(args)) => devices::run(args, out),
    }
}
