//! `bench --peer ggml`: the same model here and in llama.cpp on its CPU backend, in turn.

use super::super::model::{self, Device};
use super::super::progress::Progress;
use super::super::text::Spread;
use super::super::versus::{self, Pinned, Row};
use super::super::{Failure, Out, Outcome, bandwidth};
use super::{Args, bytes_per_token, generation, prompt, seconds, token_ids};
use peer_ggml::{Context, Model, Placement};
use ssmgraph::engine::{Engine, EngineOptions};
use std::sync::Arc;
use std::time::Instant;

/// How many times faster than llama.cpp a prompt and generation shall be, by architecture.
const TARGETS: [(&str, [f64; 2]); 3] =
    [("mamba", [2.5, 1.2]), ("mamba2", [2.0, 1.2]), ("qwen35", [1.5, 1.1])];

/// Measures and prints.
pub fn run(args: &Args, out: &mut Out<'_>) -> Outcome {
    if !matches!(args.device.device, Device::Auto | Device::Cpu) {
        return Err(Failure::Call("--peer ggml measures the cpu device".into()));
    }
    let gguf = model::open(&args.model)?;
    let name = args.model.display().to_string();
    peer_ggml::quiet();
    let theirs = Model::load(&args.model, Placement::Cpu).map_err(Failure::Wrong)?;
    let mut rows = Vec::new();
    for threads in versus::thread_counts(args.device.threads.asked()) {
        let _pinned = Pinned::to(threads)?;
        let memory = bandwidth::measure(threads).read;
        let cpu = ssmgraph::backend::CpuBackend::new(Some(threads)).with_numerics(args.device.numerics.get());
        let devices = ssmgraph::backend::Devices::new(vec![Arc::new(cpu)]);
        let length = args.pp.max(args.tg);
        let options = EngineOptions { context: Some(length), ..EngineOptions::default() };
        let mut pair = Pair {
            engine: model::load(&name, &gguf, &devices, options)?,
            context: Context::as_by_default(&theirs, threads, length).map_err(Failure::Wrong)?,
        };
        let _progress = Progress::start(format!("{name} with {threads} threads"));
        let architecture = pair.engine.info().architecture.clone();
        let targets = TARGETS.iter().find(|(name, _)| *name == architecture).map(|(_, targets)| targets);
        let bytes = bytes_per_token(pair.engine.info());
        for (index, (test, tokens)) in [("prompt", args.pp), ("generation", args.tg)].into_iter().enumerate()
        {
            if tokens == 0 {
                continue;
            }
            let [ours, peer] = pair.measure(args.runs, index == 1, tokens)?;
            rows.push(Row {
                op: format!("{architecture} {test}"),
                shape: format!("{name}, {tokens} tokens"),
                cache: None,
                threads,
                ours: Spread::of(ours),
                peer: Spread::of(peer),
                bytes: (index == 1).then_some(bytes * tokens),
                target: targets.map(|targets| targets[index]),
                memory,
            });
        }
        model::warn_of_fallbacks(&pair.engine);
    }
    versus::print(&rows, args.json, out)
}

/// The same model twice.
struct Pair<'a> {
    engine: Engine,
    context: Context<'a>,
}

impl Pair<'_> {
    /// Seconds of each for as many tokens, in turn, after one run that does not count.
    fn measure(&mut self, runs: usize, one_by_one: bool, tokens: usize) -> Outcome<[Vec<f64>; 2]> {
        let ids = token_ids(&self.engine, tokens);
        let ours = if one_by_one { generation } else { prompt };
        let mut all = [Vec::with_capacity(runs), Vec::with_capacity(runs)];
        for run in 0..=runs {
            let one = seconds(&mut self.engine, &ids, ours)?;
            let other = self.theirs(&ids, one_by_one)?;
            if run > 0 {
                all[0].push(one);
                all[1].push(other);
            }
        }
        Ok(all)
    }

    fn theirs(&mut self, ids: &[u32], one_by_one: bool) -> Outcome<f64> {
        self.context.clear();
        self.context.threads().wake();
        let start = Instant::now();
        let pieces = ids.chunks(if one_by_one { 1 } else { ids.len() });
        for piece in pieces {
            self.context.decode(piece).map_err(Failure::Wrong)?;
        }
        let elapsed = start.elapsed().as_secs_f64();
        // They watch for work between runs, and would do so while ours run.
        self.context.threads().rest();
        Ok(elapsed)
    }
}
