//! `logits`: the logits after each token, as a NumPy file.

use super::model::{self, DeviceArgs};
use super::{Failure, Outcome, npy, tokens};
use ssmgraph::Logits;
use ssmgraph::engine::EngineOptions;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

/// Arguments of `logits`.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file
    model: PathBuf,
    /// Token ids: 1,2,3 or @FILE.json
    #[arg(long, value_name = "IDS")]
    tokens: String,
    /// The file to write, f32 [T, vocab] in NumPy's format
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// Feed one token at a time instead of all together
    #[arg(long)]
    step: bool,
}

/// Computes and writes.
pub fn run(args: Args) -> Outcome {
    let tokens = tokens::parse(&args.tokens)?;
    let devices = args.device.devices()?;
    let gguf = model::open(&args.model)?;
    let name = args.model.display().to_string();
    let options = EngineOptions { context: Some(tokens.len().max(1)), ..EngineOptions::default() };
    let mut engine = model::load(&name, &gguf, &devices, options)?;
    let columns = engine.info().n_vocab;
    let mut values = Vec::with_capacity(tokens.len().saturating_mul(columns));
    let pieces = if args.step { tokens.chunks(1) } else { tokens.chunks(tokens.len()) };
    for piece in pieces {
        values.extend(engine.step(&[(0, piece)], Logits::All)?.into_iter().flatten());
    }
    let about = |error: std::io::Error| format!("{}: {error}", args.out.display());
    let file = File::create(&args.out).map_err(|error| Failure::Call(about(error)))?;
    npy::write(&mut BufWriter::new(file), columns, &values).map_err(|error| Failure::Wrong(about(error)))?;
    model::warn_of_fallbacks(&engine);
    Ok(())
}
