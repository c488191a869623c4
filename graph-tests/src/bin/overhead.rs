//! What a node costs beside its arithmetic: `overhead [NODES] [THREADS]` runs a chain of small nodes and prints the time
//! per node, the least and the median of many runs.

use ssmgraph::backend::Devices;
use ssmgraph::ops::DType;
use ssmgraph::{Graph, Session};
use std::time::Instant;

const RUNS: usize = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (nodes, threads) = (number(700)?, number(1)?);
    let mut graph = Graph::new();
    let x = graph.input("x", DType::F32, &[16])?;
    let mut y = x;
    for _ in 0..nodes {
        y = graph.add(y, x)?;
    }
    graph.output(y)?;
    let mut session = Session::new(&graph, &Devices::cpu(Some(threads)))?;
    session.set(x, &[1.0f32; 16])?;
    let mut seconds = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        session.run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let nanoseconds = |seconds: f64| seconds / nodes as f64 * 1e9;
    println!(
        "{nodes} nodes on {threads} threads: {:.0} ns per node, median {:.0} ns",
        nanoseconds(seconds[0]),
        nanoseconds(seconds[RUNS / 2])
    );
    Ok(())
}
