//! Neighbours as one op, where nobody else reads what lies between.

use crate::graph::{Arena, Graph, Node, address_of, edit, float, packed};
use crate::nodes::ramp;
use crate::plugin::Host;
use crate::{Add, Hosts};
use ssmgraph::ops::binary::{Binary, BinaryFunction};
use ssmgraph::ops::unary::{Function, Unary};
use ssmgraph::ops::{HostTensor, Op, RmsNorm, SsmConv, Tolerance};
use ssmgraph_ggml::abi;

const EPS: f32 = 1e-5;

pub fn add(add: Add<'_>) {
    add("fusion::norm_and_weight", Hosts::All, norm_and_weight);
    add("fusion::weight_first", Hosts::All, weight_first);
    add("fusion::conv_bias_silu", Hosts::All, conv_bias_silu);
    add("fusion::conv_silu", Hosts::All, conv_silu);
    add("fusion::read_twice", Hosts::All, read_twice);
    add("fusion::squared", Hosts::All, squared);
    add("fusion::output_between", Hosts::All, output_between);
    add("fusion::readers_unknown", Hosts::All, readers_unknown);
    add("fusion::view_between", Hosts::All, view_between);
    add("fusion::over_the_weight", Hosts::All, over_the_weight);
}

fn tensor(ne: &[usize]) -> HostTensor {
    HostTensor::from_f32(ne, &ramp(ne)).expect("as many")
}

fn evaluate(op: impl Into<Op>, inputs: &[&HostTensor]) -> HostTensor {
    let inputs: Vec<HostTensor> = inputs.iter().map(|&input| input.clone()).collect();
    op.into().evaluate(&inputs).expect("a right case").remove(0)
}

fn norm(x: &HostTensor) -> HostTensor {
    evaluate(RmsNorm { eps: EPS, weight: false }, &[x])
}

fn product(a: &HostTensor, b: &HostTensor) -> HostTensor {
    evaluate(Binary { function: BinaryFunction::Mul }, &[a, b])
}

fn assert_close(arena: &Arena, node: Node, want: &HostTensor) {
    assert_eq!(Tolerance::F32_SUM.mismatch(&arena.read(node), want), None);
}

/// A norm and its product with a weight.
struct Normed {
    arena: Arena,
    x: Node,
    norm: Node,
    product: Node,
}

impl Normed {
    fn new(host: &Host) -> Normed {
        let mut arena = Arena::new(host.device(), 1 << 14);
        let (x, weight) = (arena.leaf(&tensor(&[8, 3])), arena.leaf(&tensor(&[8])));
        let norm = arena.node(abi::OP_RMS_NORM, &[float(EPS)], &[x], &packed(&[8, 3]));
        let product = arena.node(abi::OP_MUL, &[], &[norm, weight], &packed(&[8, 3]));
        Normed { arena, x, norm, product }
    }

    /// Computes a graph, checks its number of steps and the product.
    fn check(&self, host: &Host, graph: &Graph, steps: u64) {
        let stream = host.device().stream();
        stream.must_compute(graph);
        assert_eq!(host.counts(&stream).steps, steps);
        assert_close(&self.arena, self.product, &product(&norm(&tensor(&[8, 3])), &tensor(&[8])));
    }
}

fn norm_and_weight(host: Host) {
    let graph = Normed::new(&host);
    let before = graph.arena.dump();
    graph.check(&host, &Graph::of(&[graph.norm, graph.product]), 1);
    // The middle was never written.
    graph.arena.only_changed(before, &[graph.product]);
}

fn weight_first(host: Host) {
    let mut graph = Normed::new(&host);
    let weight = graph.arena.leaf(&tensor(&[8, 3]));
    edit(graph.product, |node| node.sources[..2].copy_from_slice(&[weight, graph.norm]));
    let stream = host.device().stream();
    stream.must_compute(&Graph::of(&[graph.norm, graph.product]));
    assert_eq!(host.counts(&stream).steps, 1);
    assert_close(&graph.arena, graph.product, &product(&norm(&tensor(&[8, 3])), &tensor(&[8, 3])));
}

fn read_twice(host: Host) {
    let mut graph = Normed::new(&host);
    let other = graph.arena.node(abi::OP_ADD, &[], &[graph.norm, graph.x], &packed(&[8, 3]));
    graph.check(&host, &Graph::of(&[graph.norm, graph.product, other]), 3);
    let sum =
        evaluate(Binary { function: BinaryFunction::Add }, &[&norm(&tensor(&[8, 3])), &tensor(&[8, 3])]);
    assert_close(&graph.arena, other, &sum);
    assert_close(&graph.arena, graph.norm, &norm(&tensor(&[8, 3])));
}

/// Both operands are the norm.
fn squared(host: Host) {
    let graph = Normed::new(&host);
    edit(graph.product, |node| node.sources[1] = graph.norm);
    let stream = host.device().stream();
    stream.must_compute(&Graph::of(&[graph.norm, graph.product]));
    assert_eq!(host.counts(&stream).steps, 2);
    let middle = norm(&tensor(&[8, 3]));
    assert_close(&graph.arena, graph.product, &product(&middle, &middle));
}

fn output_between(host: Host) {
    let graph = Normed::new(&host);
    edit(graph.norm, |node| node.flags |= abi::FLAG_OUTPUT);
    graph.check(&host, &Graph::of(&[graph.norm, graph.product]), 2);
    assert_close(&graph.arena, graph.norm, &norm(&tensor(&[8, 3])));
}

fn readers_unknown(host: Host) {
    let made = Normed::new(&host);
    let mut graph = Graph::of(&[made.norm, made.product]);
    graph.forget_readers();
    made.check(&host, &graph, 2);
    assert_close(&made.arena, made.norm, &norm(&tensor(&[8, 3])));
}

/// A view of the middle is a reader of its own.
fn view_between(host: Host) {
    let graph = Normed::new(&host);
    let view =
        graph.arena.node_at(address_of(graph.norm), abi::OP_VIEW, &[], &[graph.norm], &packed(&[8, 3]));
    edit(view, |view| view.view_source = graph.norm);
    edit(graph.product, |node| node.sources[0] = view);
    graph.check(&host, &Graph::of(&[graph.norm, view, graph.product]), 2);
}

/// The product lies over an operand of the norm, which a fused op still reads.
fn over_the_weight(host: Host) {
    for target in [0, 1] {
        let mut graph = Normed::new(&host);
        let weight = graph.arena.leaf(&tensor(&[8, 3]));
        let place = address_of([graph.x, weight][target]);
        edit(graph.product, |node| {
            node.sources[1] = weight;
            node.data = place as *mut _;
        });
        let stream = host.device().stream();
        stream.must_compute(&Graph::of(&[graph.norm, graph.product]));
        assert_close(&graph.arena, graph.product, &product(&norm(&tensor(&[8, 3])), &tensor(&[8, 3])));
    }
}

fn convolution(host: &Host) -> (Arena, Node, [HostTensor; 3]) {
    let inputs = [tensor(&[9, 5, 2]), tensor(&[4, 5]), tensor(&[5])];
    let mut arena = Arena::new(host.device(), 1 << 14);
    let (x, weight) = (arena.leaf(&inputs[0]), arena.leaf(&inputs[1]));
    let conv = arena.node(abi::OP_SSM_CONV, &[], &[x, weight], &packed(&[5, 6, 2]));
    (arena, conv, inputs)
}

fn silu(arena: &mut Arena, of: Node) -> Node {
    arena.node(abi::OP_UNARY, &[10], &[of], &packed(&[5, 6, 2]))
}

fn conv_bias_silu(host: Host) {
    let (mut arena, conv, [x, weight, bias]) = convolution(&host);
    let leaf = arena.leaf(&bias);
    let sum = arena.node(abi::OP_ADD, &[], &[conv, leaf], &packed(&[5, 6, 2]));
    let result = silu(&mut arena, sum);
    let before = arena.dump();
    let stream = host.device().stream();
    stream.must_compute(&Graph::of(&[conv, sum, result]));
    assert_eq!(host.counts(&stream), abi::Counts { nodes: 3, steps: 1, planned: 1 });
    assert_close(&arena, result, &evaluate(SsmConv { bias: true, silu: true }, &[&x, &weight, &bias]));
    arena.only_changed(before, &[result]);
    // The sum is wanted: two of the three are one op.
    edit(sum, |node| node.flags |= abi::FLAG_OUTPUT);
    let stream = host.device().stream();
    stream.must_compute(&Graph::of(&[conv, sum, result]));
    assert_eq!(host.counts(&stream).steps, 2);
    let middle = evaluate(SsmConv { bias: true, silu: false }, &[&x, &weight, &bias]);
    assert_close(&arena, sum, &middle);
    assert_close(&arena, result, &evaluate(Unary { function: Function::Silu }, &[&middle]));
}

fn conv_silu(host: Host) {
    let (mut arena, conv, [x, weight, _]) = convolution(&host);
    let result = silu(&mut arena, conv);
    let stream = host.device().stream();
    stream.must_compute(&Graph::of(&[conv, result]));
    assert_eq!(host.counts(&stream).steps, 1);
    assert_close(&arena, result, &evaluate(SsmConv { bias: false, silu: true }, &[&x, &weight]));
}
