//! Our plugin in llama.cpp, see the binary `peer_ggml`: the same tokens and logits as llama.cpp's own CPU backend gives,
//! wherever the plugin is put. Each placement has a process of its own, since ggml registers devices once.
//!
//! `cargo build --release -p ssmgraph-ggml -p ssmgraph-emulator`, then
//! `cargo test --release -p graph-tests --features peer-ggml --test peer_ggml`.

use std::path::PathBuf;
use std::process::Command;

/// Where cargo puts what it builds.
fn built() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_peer_ggml")).parent().expect("a folder").to_path_buf()
}

/// Runs the binary, with our device as this type and with the emulated driver in reach.
fn peer(kind: &str, arguments: &[&str]) {
    let plugin = built().join("libssmgraph_ggml.so");
    assert!(plugin.exists(), "{} is missing; build it with: cargo build -p ssmgraph-ggml", plugin.display());
    // The driver is looked for by the name that NVIDIA gives it.
    let driver = built().join("peer_ggml_driver");
    std::fs::create_dir_all(&driver).unwrap();
    let link = driver.join("libcuda.so.1");
    if !link.exists() {
        // Another test of this file may have made it meanwhile.
        let _ = std::os::unix::fs::symlink(built().join("libcuda.so"), &link);
    }
    let inherited = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let output = Command::new(env!("CARGO_BIN_EXE_peer_ggml"))
        .arg(plugin)
        .args(arguments)
        .env("SSMGRAPH_GGML_TYPE", kind)
        .env("LD_LIBRARY_PATH", format!("{}:{inherited}", driver.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "{}\n{text}\n{lines}", output.status);
}

#[test]
fn models_with_a_helper_of_the_cpu() {
    peer("accel", &["models"]);
}

#[test]
fn models_with_all_layers_on_our_cpu_device() {
    peer("gpu", &["models", "SSMGRAPH"]);
}

#[test]
fn models_with_all_layers_on_emulated_cuda() {
    peer("accel", &["models", "SSMGRAPH-CUDA0"]);
}

#[test]
fn op_cases_on_the_cpu() {
    peer("accel", &["ops", "SSMGRAPH"]);
}

#[test]
fn op_cases_on_emulated_cuda() {
    peer("accel", &["ops", "SSMGRAPH-CUDA0"]);
}
