//! The command line from outside: exit codes, streams, formats.
#![cfg(feature = "cli")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/kjv-mamba1.q8_0.gguf");

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ssmgraph"));
    command.args(arguments).stdin(Stdio::null());
    // Cargo's path leads to the emulated driver where that was built; these tests are of a machine without a GPU.
    command.env_remove("LD_LIBRARY_PATH").env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a call that must succeed.
fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).unwrap()
}

/// The one line on standard error of a call that must fail with this code and print no result.
fn fails(code: i32, arguments: &[&str]) -> String {
    let output = run(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
    assert!(message.starts_with("error: "), "{arguments:?}: {message}");
    assert!(!message.contains("panicked"), "{arguments:?}: {message}");
    message
}

/// A file of this test's own.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_demo_prints_text_and_speeds_on_their_own_streams() {
    let output = run(&["run", "-n", "20"]);
    assert!(output.status.success());
    let (result, messages) = (text(&output.stdout), text(&output.stderr));
    assert!(result.trim().len() >= 10, "{result:?}");
    assert!(messages.contains("prompt") && messages.contains("tokens/s"), "{messages}");
    assert_eq!(result, succeeds(&["run", "-n", "20"]), "the seed is fixed");
    assert_ne!(result, succeeds(&["run", "-n", "20", "--seed", "5"]));
}

#[test]
fn prompts_run_together_as_they_do_alone() {
    let alone = json(&["run", DEMO, "-p", "In the beginning", "-n", "12", "--json"]);
    let both = json(&["run", DEMO, "-p", "And", "-p", "In the beginning", "-n", "12", "--json"]);
    assert_eq!(both["sequences"][1], alone["sequences"][0]);
    assert_eq!(alone["sequences"][0]["tokens"].as_array().unwrap().len(), 12);
    let printed = succeeds(&["run", DEMO, "-p", "And", "-p", "In the beginning", "-n", "12"]);
    assert!(
        printed.contains("== 1: \"And\"\n") && printed.contains("== 2: \"In the beginning\"\n"),
        "{printed}"
    );
}

#[test]
fn token_ids_continue_as_text_does() {
    let by_text = json(&["run", DEMO, "-p", "And", "-n", "6", "--json"]);
    let ids: Vec<String> =
        by_text["sequences"][0]["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(succeeds(&["run", DEMO, "--tokens", "65,110,100", "-n", "6"]).trim(), ids.join(","));
}

#[test]
fn logits_are_the_same_in_one_call_and_token_by_token() {
    let read = |file: &Path| {
        let bytes = std::fs::read(file).unwrap();
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
        let data = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert!(text(&bytes[10..data]).contains("'shape': (3, 256)"));
        let values = bytes[data..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        values.collect::<Vec<f32>>()
    };
    let (whole, stepped) = (scratch("whole.npy"), scratch("stepped.npy"));
    let list = scratch("ids.json");
    std::fs::write(&list, "[73, 110, 32]").unwrap();
    succeeds(&["logits", DEMO, "--tokens", "73,110,32", "--out", path(&whole)]);
    let from_file = format!("@{}", path(&list));
    succeeds(&["logits", DEMO, "--tokens", &from_file, "--out", path(&stepped), "--step"]);
    let (whole, stepped) = (read(&whole), read(&stepped));
    assert_eq!(whole.len(), 3 * 256);
    assert!(whole.iter().zip(&stepped).all(|(a, b)| (a - b).abs() < 1e-3));
}

#[test]
fn wrong_calls_are_told_apart_from_wrong_files() {
    let bad = scratch("bad.gguf");
    std::fs::write(&bad, b"GGUFnonsense").unwrap();
    for (code, arguments, said) in [
        (2, &["run", "no-such-file.gguf"][..], "no-such-file.gguf"),
        (2, &["run", "."], "folder"),
        (1, &["run", path(&bad)], "bad.gguf"),
        (1, &["info", path(&bad)], "bad.gguf"),
        (2, &["run", "-n", "0"], "-n 0"),
        (2, &["run", "--temp", "NaN"], "temperature"),
        (2, &["run", "--temp", "-1"], "temperature"),
        (2, &["run", "--top-p", "0"], "top_p"),
        (2, &["run", "--top-p", "1.5"], "top_p"),
        (2, &["run", "--top-k", "0"], "top_k"),
        (2, &["run", "--device", "cuda"], "CUDA"),
        (2, &["run", "--device", "cuda:1"], "CUDA"),
        (2, &["run", "--device", "tpu"], "tpu"),
        (2, &["run", "--threads", "0"], "threads"),
        (2, &["run", DEMO, "--tokens", "1,x"], "\"x\""),
        (2, &["run", DEMO, "--tokens", "256"], "vocabulary"),
        (2, &["run", DEMO, "-p", ""], "empty"),
        (2, &["run", "--trace", "/no/such/folder/t.json"], "/no/such/folder"),
        (2, &["logits", DEMO, "--tokens", "@no-such.json", "--out", "x.npy"], "no-such.json"),
        (2, &["logits", DEMO, "--tokens", "1", "--out", "/no/such/folder/x.npy"], "/no/such/folder"),
        (2, &["bench", DEMO, "--runs", "0"], "nothing to measure"),
        (2, &["graph", DEMO, "--layer", "4"], "layers 0..4"),
        (2, &["graph", DEMO, "--layers", "3..1"], "layer"),
        (2, &["graph", DEMO, "--tokens", "0"], "--tokens"),
        (2, &["test", "--op", "frobnicate"], "frobnicate"),
        (2, &["test", "--backend", "tpu"], "tpu"),
        (2, &["test", "--vectors", "no-such-folder"], "no-such-folder"),
        (2, &["perf", "--peer", "ggml"], "peer"),
        (2, &["perf", "--variant", "chunked"], "expected all or some of f32_blocks, f64, one_pass, two_pass"),
        (2, &["perf", "--variant", "all,chunked"], "there is no form \"chunked\""),
        (2, &["perf", "--op", "sum", "--variant", "two_pass"], "one form each"),
        (2, &["run", "-p", "x", "-n", "-3"], "invalid value '-3' for '--count <N>'"),
        (2, &["run", "--top-k", "-1"], "invalid value '-1' for '--top-k <K>'"),
        (2, &["bench", DEMO, "--runs", "-1"], "invalid value '-1' for '--runs <RUNS>'"),
        (2, &["graph", DEMO, "--layer", "-1", "--threads", "2"], "invalid value '-1' for '--layer <N>'"),
        (2, &["run", "--numerics", "loose"], "exact, fast"),
        (2, &["frobnicate"], "frobnicate"),
    ] {
        let message = fails(code, arguments);
        assert!(message.contains(said), "{arguments:?}: {message}");
    }
}

#[test]
fn options_that_change_nothing_are_named() {
    for (arguments, noted) in [
        (&["--temp", "0", "--top-k", "5"][..], true),
        (&["--seed", "5"], true),
        (&["--temp", "0.5", "--top-k", "5"], false),
    ] {
        let output = run(&[&["run", DEMO, "-n", "1"], arguments].concat());
        assert!(output.status.success());
        assert_eq!(text(&output.stderr).contains("change nothing"), noted, "{arguments:?}");
    }
}

#[test]
fn forms_are_measured_by_name() {
    let measured = |more: &[&str]| -> Vec<serde_json::Value> {
        let report = json(&[&["perf", "--op", "gated_delta_net", "--threads", "2", "--json"], more].concat());
        report["results"].as_array().unwrap().clone()
    };
    let forms = |more: &[&str]| -> Vec<String> {
        measured(more).iter().map(|row| row["variant"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(forms(&["--variant", "all"]), ["two_pass", "one_pass", "two_pass", "one_pass"]);
    assert_eq!(forms(&["--numerics", "fast"]), ["one_pass", "one_pass"]);
    let rows = measured(&["--variant", "two_pass"]);
    assert!(rows.iter().all(|row| row["variant"] == "two_pass" && row["hot_seconds"]["median"].is_number()));
}

#[test]
fn info_shows_the_model_and_its_memory() {
    let shown = succeeds(&["info", DEMO]);
    for wanted in
        ["general.architecture", "mamba.ssm.state_size", "q8_0", "499328 parameters", "state per slot"]
    {
        assert!(shown.contains(wanted), "{wanted} is missing in\n{shown}");
    }
    let info = json(&["info", DEMO, "--json"]);
    assert_eq!(info["model"]["architecture"], "mamba");
    assert_eq!(info["memory"]["one_token"][0]["device"], "cpu");
    assert_eq!(info["metadata"]["mamba.ssm.state_size"], 16);
}

#[test]
fn graphs_and_plans_show_one_layer_in_one_screen() {
    let graph = succeeds(&["graph", DEMO, "--layer", "1"]);
    assert!(graph.contains("ssm_scan") && graph.contains("blk.1.") && !graph.contains("blk.2."), "{graph}");
    assert!(graph.lines().count() <= 50, "{graph}");
    let plan = succeeds(&["graph", DEMO, "--layer", "1", "--stage", "plan", "--tokens", "8"]);
    assert!(plan.contains("cpu: ") && plan.contains("memory cpu: arena"), "{plan}");
    assert!(plan.lines().count() <= 50, "{plan}");
    let whole = succeeds(&["graph", DEMO, "--layers", "0..4"]);
    assert!(whole.contains("token_embd.weight") && whole.contains("blk.3.") && whole.contains("output_norm"));
    let dot = succeeds(&["graph", DEMO, "--format", "dot"]);
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n") && !dot.contains("blk.1."), "{dot}");
    assert!(succeeds(&["graph", DEMO, "--format", "mermaid"]).starts_with("flowchart"));
}

#[test]
fn conformance_is_a_table_and_json() {
    let shown = succeeds(&["test", "--op", "silu,cumsum"]);
    assert!(shown.contains("unary") && shown.contains("cumsum") && shown.contains("total"), "{shown}");
    let report = json(&["test", "--op", "cumsum", "--backend", "cpu", "--threads", "2", "--json"]);
    assert_eq!(report["success"], true);
    assert_eq!(report["backends"][0]["backend"], "cpu");
    assert!(report["backends"][0]["passed"].as_u64().unwrap() > 10);
}

#[test]
fn vectors_pass_or_fail() {
    let file = scratch("vectors.json");
    let vector = |y: &str| {
        format!(
            r#"{{"id": "X", "cases": [
                {{"name": "two", "op": "SILU", "params": {{}}, "rtol": 1e-5, "atol": 1e-6,
                 "inputs": {{"x": {{"type": "f32", "ne": [2, 1, 1, 1], "nb": [8, 16, 16, 16], "offset": 4,
                                    "storage": ["NaN", 0, "NaN", "Infinity"]}}}},
                 "expected": {{"y": {{"type": "f32", "ne": [2, 1, 1, 1], "data": [{y}]}}}},
                 "wrong_if": {{"y_if_the_sign_is_lost": {{"type": "f32", "ne": [2, 1, 1, 1],
                                                          "data": [0, "Infinity"]}}}}}}]}}"#
        )
    };
    std::fs::write(&file, vector(r#"0, "Infinity""#)).unwrap();
    let report = json(&["test", "--vectors", path(&file), "--json"]);
    for backend in report["backends"].as_array().unwrap() {
        assert_eq!(
            (&backend["passed"], &backend["skipped"]),
            (&Value::from(1), &Value::from(0)),
            "{backend}"
        );
    }
    std::fs::write(&file, vector(r#"0, "-Infinity""#)).unwrap();
    let output = run(&["test", "--vectors", path(&file), "--backend", "cpu"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(shown.contains("FAILED SILU / vectors.json: two on cpu: y at [1, 0, 0, 0]"), "{shown}");
    assert!(shown.contains("if the sign is lost"), "{shown}");
    std::fs::write(&file, "{").unwrap();
    fails(2, &["test", "--vectors", path(&file)]);
}

#[test]
fn support_has_three_formats() {
    let csv = succeeds(&["support", "--format", "csv", "--backend", "reference"]);
    assert!(csv.starts_with("op,type,backend,contiguous,"), "{csv}");
    assert!(csv.lines().any(|line| line.starts_with("cumsum,f32,reference,yes,yes")), "{csv}");
    assert!(succeeds(&["support", "--format", "markdown", "--backend", "cpu"]).starts_with("| op "));
    assert!(succeeds(&["support"]).contains("gapped_rows"));
}

#[test]
fn a_trace_has_a_span_for_each_node() {
    let file = scratch("trace.json");
    succeeds(&["run", "-n", "3", "--trace", path(&file)]);
    let events: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let begins = |name: &str| {
        let of_name = |event: &&Value| event["ph"] == "B" && event["name"] == name;
        events.as_array().unwrap().iter().filter(of_name).count()
    };
    // Four layers, in the run of the prompt and in two more.
    assert_eq!(begins("ssm_scan"), 12);
    assert!(begins("mul_mat") > 12);
}

#[test]
fn a_bench_reports_speeds_as_json() {
    let report = json(&["bench", DEMO, "--pp", "4", "--tg", "2", "--runs", "1", "--json"]);
    assert_eq!(report["results"].as_array().unwrap().len(), 2);
    assert!(report["results"][1]["tokens_per_second"]["median"].as_f64().unwrap() > 0.0);
    assert!(report["memory_read_bytes_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = command(&["support", "--format", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}
