//! An op vector as a graph, its run, and the comparison.

use super::parse::{Expected, OpVector};
use super::scan;
use crate::backend::{Backend, Devices};
use crate::conformance::memory::{Bound, set_all};
use crate::graph::{Graph, GraphError, Tensor};
use crate::session::Session;
use ssmgraph_ops::gated_norm::{Gate, GatedNorm, Order};
use ssmgraph_ops::l2_norm::Form;
use ssmgraph_ops::{HostTensor, Tolerance, tensor::indices};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A graph under construction from a vector.
pub(super) struct Builder<'a> {
    pub vector: &'a OpVector,
    pub graph: Graph,
    bound: Vec<Bound>,
    /// For each result name its parts, which follow one another along an axis.
    results: Vec<(String, usize, Vec<Tensor>)>,
}

impl Builder<'_> {
    /// The operand with this name.
    ///
    /// Errors: the vector lacks it, or it reaches past its buffer.
    pub(super) fn input(&mut self, name: &str) -> Result<Tensor, String> {
        let stored = self.vector.inputs.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.vector.inputs.keys().map(String::as_str).collect();
            format!("{} has no input `{name}`, only {}", self.vector.op, names.join(", "))
        })?;
        stored.bind(&mut self.graph, name, &mut self.bound).map_err(text)
    }

    /// An input that the vector does not list.
    ///
    /// Errors: a name that is taken.
    pub(super) fn constant(&mut self, name: &str, values: HostTensor) -> Result<Tensor, String> {
        let leaf = self.graph.input(name, values.layout().dtype, &values.ne()).map_err(text)?;
        self.bound.push((leaf, values));
        Ok(leaf)
    }

    /// Declares a result, made of parts that follow one another along an axis.
    pub(super) fn result(&mut self, name: &str, axis: usize, parts: Vec<Tensor>) {
        self.results.push((name.to_owned(), axis, parts));
    }
}

pub(super) fn text(error: GraphError) -> String {
    error.to_string()
}

/// Runs a vector and compares; also the reason why the backend declined a part of it, if it did.
pub(super) fn check(backend: &Arc<dyn Backend>, vector: &OpVector) -> (Result<(), String>, Option<String>) {
    let mut declined = None;
    let checked = run(backend, vector, &mut declined).and_then(|got| compare(vector, &got));
    (checked, declined)
}

fn run(
    backend: &Arc<dyn Backend>,
    vector: &OpVector,
    declined: &mut Option<String>,
) -> Result<BTreeMap<String, HostTensor>, String> {
    let mut builder = Builder { vector, graph: Graph::new(), bound: Vec::new(), results: Vec::new() };
    build(&mut builder)?;
    let Builder { mut graph, bound, results, .. } = builder;
    for tensor in results.iter().flat_map(|(_, _, parts)| parts) {
        graph.output(*tensor).map_err(text)?;
    }
    let mut session =
        Session::new(&graph, &Devices::new(vec![backend.clone()])).map_err(|e| e.to_string())?;
    *declined = session.report().fallbacks().next().map(|node| node.declined.join("; "));
    set_all(&mut session, &bound).map_err(|error| error.to_string())?;
    session.run().map_err(|error| error.to_string())?;
    let mut got = BTreeMap::new();
    for (name, axis, parts) in results {
        let parts: Result<Vec<HostTensor>, _> = parts.iter().map(|&part| session.get_tensor(part)).collect();
        let parts = parts.map_err(|error| error.to_string())?;
        let joined = match parts.len() {
            1 => parts.into_iter().next(),
            _ => ssmgraph_ops::Op::from(ssmgraph_ops::Concat { axis })
                .evaluate(&parts)
                .map_err(|error| error.to_string())?
                .into_iter()
                .next(),
        };
        got.insert(name, joined.ok_or("no result")?);
    }
    Ok(got)
}

fn build(b: &mut Builder<'_>) -> Result<(), String> {
    let params = &b.vector.params;
    let eps = params.eps.ok_or_else(|| format!("{}: params lack `eps`", b.vector.op));
    let y = match b.vector.op.as_str() {
        "SSM_SCAN" | "RESET_THEN_SSM_SCAN" => return scan::build(b),
        "GATED_DELTA_NET" => return scan::build_delta_net(b),
        "CONV_STATE_SHIFT" => return conv_state_shift(b),
        "SSM_CONV" => {
            let (sx, w) = (b.input("sx")?, b.input("w")?);
            let bias = if b.vector.inputs.contains_key("bias") { Some(b.input("bias")?) } else { None };
            b.graph.ssm_conv(sx, w, bias, false)
        }
        "MUL_MAT" => {
            let (a, x) = (b.input("a")?, b.input("b")?);
            b.graph.mul_mat(a, x)
        }
        "MUL" => {
            let (a, x) = (b.input("a")?, b.input("b")?);
            b.graph.mul(a, x)
        }
        "GATED_NORM" => {
            let op = gated_norm(b.vector, eps?)?;
            let (x, z, w) = (b.input("x")?, b.input("z")?, b.input("w")?);
            b.graph.gated_norm(op, x, z, w)
        }
        "RMS_NORM" => {
            let x = b.input("x")?;
            let w = if b.vector.inputs.contains_key("w") { Some(b.input("w")?) } else { None };
            b.graph.rms_norm(x, w, eps?)
        }
        "L2_NORM" => {
            let x = b.input("x")?;
            let form = match params.form.as_deref() {
                Some("max") => Form::Max,
                Some("add") => Form::Add,
                other => return Err(format!("L2_NORM: form = {other:?}, expected \"max\" or \"add\"")),
            };
            b.graph.l2_norm(x, eps?, form)
        }
        op => {
            let one: fn(&mut Graph, Tensor) -> Result<Tensor, GraphError> = match op {
                "CUMSUM" => Graph::cumsum,
                "ARGMAX" => Graph::argmax,
                "SUM" => Graph::sum,
                "MEAN" => Graph::mean,
                "SOFTPLUS" => Graph::softplus,
                "SILU" => Graph::silu,
                "SIGMOID" => Graph::sigmoid,
                "CONT" => Graph::cont,
                other => return Err(format!("op \"{other}\" is unknown")),
            };
            let x = b.input("x")?;
            one(&mut b.graph, x)
        }
    };
    let mut y = y.map_err(text)?;
    // ggml writes the row indices of argmax as one row.
    if let Some(expected) = b.vector.expected.get("y") {
        let shape = b.graph.ne(y).map_err(text)?;
        if b.vector.op == "ARGMAX" && shape != expected.ne {
            y = b.graph.reshape(y, &expected.ne).map_err(text)?;
        }
    }
    b.result("y", 0, vec![y]);
    Ok(())
}

fn gated_norm(vector: &OpVector, eps: f32) -> Result<GatedNorm, String> {
    let params = &vector.params;
    let order = match params.norm_before_gate {
        Some(true) => Order::NormThenGate,
        Some(false) => Order::GateThenNorm,
        None => return Err("GATED_NORM: params lack `norm_before_gate`".into()),
    };
    let gate = match params.gate.as_deref() {
        Some("silu") => Gate::Silu,
        Some("sigmoid") => Gate::Sigmoid,
        other => return Err(format!("GATED_NORM: gate = {other:?}, expected \"silu\" or \"sigmoid\"")),
    };
    let group_size = params.group_size.ok_or("GATED_NORM: params lack `group_size`")?;
    Ok(GatedNorm { eps, group_size, order, gate })
}

/// The window after `t` new columns: the last columns of the old window and the new ones.
fn conv_state_shift(b: &mut Builder<'_>) -> Result<(), String> {
    let (state, new) = (b.input("state")?, b.input("new")?);
    let (width, added) = (b.graph.ne(state).map_err(text)?[0], b.graph.ne(new).map_err(text)?[0]);
    if b.vector.params.t.is_some_and(|t| t != added) {
        return Err(format!("t = {:?}, but `new` has {added} columns", b.vector.params.t));
    }
    let joined = b.graph.concat(&[state, new], 0).map_err(text)?;
    let last = b.graph.slice(joined, 0, added, width).map_err(text)?;
    let moved = b.graph.cont(last).map_err(text)?;
    b.result("state", 0, vec![moved]);
    Ok(())
}

fn compare(vector: &OpVector, got: &BTreeMap<String, HostTensor>) -> Result<(), String> {
    let tolerance = Tolerance { rtol: vector.rtol, atol: vector.atol };
    for (name, expected) in &vector.expected {
        let got = got.get(name).ok_or_else(|| format!("there is no result `{name}`"))?;
        if let Some(mismatch) = mismatch(tolerance, got, expected) {
            let prefix = format!("{name}_if_");
            let fault = vector.wrong_if.iter().find(|(fault, wrong)| {
                fault.starts_with(&prefix) && self::mismatch(tolerance, got, wrong).is_none()
            });
            let hint =
                fault.map(|(fault, _)| format!("; this is what comes out {}", &fault[name.len() + 1..]));
            return Err(format!("{name} {mismatch}{}", hint.unwrap_or_default().replace('_', " ")));
        }
    }
    Ok(())
}

/// The first element outside the tolerance, which is measured in `f64` against the listed digits.
pub(super) fn mismatch(tolerance: Tolerance, got: &HostTensor, want: &Expected) -> Option<String> {
    if got.ne() != want.ne || got.layout().dtype != want.dtype {
        let (got, ne) = (got.layout(), want.ne);
        return Some(format!("is {got}, expected {}{ne:?}", want.dtype));
    }
    let exact = !want.dtype.is_float();
    indices(want.ne).zip(&want.data).find_map(|(index, &want)| {
        let got = got.get(index);
        let inside = got == want
            || (got.is_nan() && want.is_nan())
            || (!exact
                && want.is_finite()
                && (got - want).abs() <= tolerance.atol + tolerance.rtol * want.abs());
        (!inside).then(|| format!("at {index:?}: got {got:e}, expected {want:e}"))
    })
}
