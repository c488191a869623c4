//! `graph`: a model's graph or plan as text, by layers.

use super::model::{self, DeviceArgs};
use super::{Failure, Out, Outcome};
use clap::ValueEnum;
use ssmgraph::Graph;
use ssmgraph::engine::EngineOptions;
use ssmgraph::graph::Action;
use ssmgraph::plan::{Plan, PlanStep};
use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

/// Arguments of `graph`.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file
    model: PathBuf,
    /// Tokens of each sequence in one run
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true)]
    tokens: usize,
    /// Sequences of one run
    #[arg(long, default_value_t = 1, value_name = "B", allow_negative_numbers = true)]
    sequences: usize,
    /// What to show
    #[arg(long, value_enum, default_value_t = Stage::Graph)]
    stage: Stage,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Layers to show, A..B without B; by default the first, with what comes before and after all layers
    #[arg(long, value_name = "A..B")]
    layers: Option<Layers>,
    /// One layer to show, without what comes before and after all layers
    #[arg(long, value_name = "N", conflicts_with = "layers", allow_negative_numbers = true)]
    layer: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// As the model wrote it
    Graph,
    /// As it will run: fused, on devices, with memory
    Plan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    /// Graphviz
    Dot,
    Mermaid,
}

/// `A..B`, without B.
#[derive(Clone, Debug)]
struct Layers(Range<usize>);

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Layers, String> {
        let (from, to) = text.split_once("..").ok_or("expected A..B, such as 0..4")?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| format!("\"{text}\" is no layer"));
        let range = number(from)?..number(to)?;
        if range.is_empty() { Err("no layer lies in it".into()) } else { Ok(Layers(range)) }
    }
}

/// Which nodes are shown.
struct Choice {
    layers: Range<usize>,
    outside: bool,
}

/// Prints the graph.
pub fn run(args: Args, out: &mut Out<'_>) -> Outcome {
    if args.tokens == 0 || args.sequences == 0 {
        return Err(Failure::Call("--tokens and --sequences must be at least 1".into()));
    }
    let devices = args.device.devices()?;
    let gguf = model::open(&args.model)?;
    let name = args.model.display().to_string();
    let options = EngineOptions { slots: args.sequences, ..EngineOptions::default() };
    let engine = model::load(&name, &gguf, &devices, options)?;
    let choice = choose(&args, engine.info().n_layer)?;
    match args.stage {
        Stage::Graph => show_graph(&engine.graph_for(args.tokens, args.sequences)?, &args, &choice, out),
        Stage::Plan => {
            let plan = engine.plan_for(args.tokens, args.sequences)?;
            match args.format {
                Format::Text => show_plan(&plan, &choice, out),
                Format::Dot | Format::Mermaid => show_graph(&plan.graph, &args, &choice, out),
            }
        }
    }
}

fn choose(args: &Args, count: usize) -> Outcome<Choice> {
    let choice = match (&args.layers, args.layer) {
        (Some(layers), _) => Choice { layers: layers.0.clone(), outside: true },
        (None, Some(layer)) => Choice { layers: layer..layer.saturating_add(1), outside: false },
        (None, None) => {
            if count > 1 {
                eprintln!("note: layers 1..{count} are left out; --layers 0..{count} shows all");
            }
            Choice { layers: 0..count.min(1), outside: true }
        }
    };
    if choice.layers.end > count {
        return Err(Failure::Call(format!("the model has layers 0..{count}, not {:?}", choice.layers)));
    }
    Ok(choice)
}

impl Choice {
    fn shows(&self, layer: Option<usize>) -> bool {
        layer.map_or(self.outside, |layer| self.layers.contains(&layer))
    }
}

/// The layer in a name such as `blk.12.ssm_in.weight`.
fn layer_in(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The layer of each node: that of the named leaf before it that was declared last. Models declare a weight
/// or state right before its first use.
fn layers_of(graph: &Graph) -> Vec<Option<usize>> {
    let mut current = None;
    let layer = |(_, node): (usize, &ssmgraph::graph::Node)| {
        let name = node.name.as_deref().filter(|_| node.action == Action::Leaf);
        if let Some(name) = name {
            current = layer_in(name);
        }
        current
    };
    graph.nodes().map(layer).collect()
}

fn show_graph(graph: &Graph, args: &Args, choice: &Choice, out: &mut Out<'_>) -> Outcome {
    let layers = layers_of(graph);
    let ops: Vec<usize> = graph
        .nodes()
        .filter(|(_, node)| matches!(node.action, Action::Op(_)))
        .map(|(index, _)| index)
        .collect();
    match args.format {
        Format::Text => {
            let text = graph.to_text();
            let mut lines = text.lines();
            // One line per op, then one per state that changes.
            for (index, line) in ops.iter().zip(lines.by_ref()) {
                if choice.shows(layers[*index]) {
                    writeln!(out, "{line}")?;
                }
            }
            for line in lines.filter(|line| choice.shows(layer_in(line))) {
                writeln!(out, "{line}")?;
            }
        }
        Format::Dot => draw(&graph.to_dot(), &shown(graph, &ops, &layers, choice), out)?,
        Format::Mermaid => draw(&graph.to_mermaid(), &shown(graph, &ops, &layers, choice), out)?,
    }
    Ok(())
}

/// The chosen ops with their operands.
fn shown(graph: &Graph, ops: &[usize], layers: &[Option<usize>], choice: &Choice) -> BTreeSet<usize> {
    let mut shown = BTreeSet::new();
    for &index in ops.iter().filter(|index| choice.shows(layers[**index])) {
        shown.insert(index);
        shown.extend(graph.node(index).operands.iter().map(|operand| operand.node()));
    }
    shown
}

/// Writes the lines of a drawing whose nodes `n12` are all among those shown.
fn draw(text: &str, shown: &BTreeSet<usize>, out: &mut Out<'_>) -> Outcome {
    let node = |text: &str| -> Option<usize> {
        let digits = text.strip_prefix('n')?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    for line in text.lines() {
        let source = line.strip_prefix("  ").and_then(node);
        // Arrows are `n1 -> n2;` or `n1 --> n2`; in a label nothing of the kind can be the second word.
        let mut words = line.split_whitespace().skip(1);
        let target = words.next().filter(|arrow| arrow.ends_with("->")).and(words.next()).and_then(node);
        if source.into_iter().chain(target).all(|node| shown.contains(&node)) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn show_plan(plan: &Plan, choice: &Choice, out: &mut Out<'_>) -> Outcome {
    let layers = layers_of(&plan.graph);
    let text = plan.to_text();
    let mut lines = text.lines();
    let mut layer = None;
    // One line per step, then the memory.
    for (step, line) in plan.steps.iter().zip(lines.by_ref()) {
        if let PlanStep::Compute { node, .. } = step {
            layer = layers[*node];
        }
        if choice.shows(layer) {
            writeln!(out, "{line}")?;
        }
    }
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_blocks_have_a_layer() {
        assert_eq!(layer_in("blk.12.ssm_in.weight"), Some(12));
        assert_eq!(layer_in("output_norm.weight"), None);
        assert_eq!(layer_in("blk.x"), None);
    }

    #[test]
    fn ranges_of_layers_are_read() {
        assert_eq!("1..3".parse::<Layers>().unwrap().0, 1..3);
        assert!(["", "3", "3..3", "a..b", "2..1"].iter().all(|text| text.parse::<Layers>().is_err()));
    }
}
