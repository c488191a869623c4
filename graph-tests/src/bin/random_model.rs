//! Writes a seeded random model of benchmark size: `random_model mamba1|mamba2 f32|q8_0 FILE.gguf`.

use graph_tests::random_model::{MAMBA1_130M, MAMBA2_130M, random_model};
use ssmgraph::ops::DType;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, matrices, path] = arguments.as_slice() else {
        return Err("usage: random_model mamba1|mamba2 f32|q8_0 FILE.gguf".into());
    };
    let sizes = match model.as_str() {
        "mamba1" => MAMBA1_130M,
        "mamba2" => MAMBA2_130M,
        other => return Err(format!("no model `{other}`; known: mamba1, mamba2").into()),
    };
    let matrices = match matrices.as_str() {
        "f32" => DType::F32,
        "q8_0" => DType::Q8_0,
        other => return Err(format!("no matrix type `{other}`; known: f32, q8_0").into()),
    };
    let mut file = BufWriter::new(File::create(path)?);
    random_model(sizes, matrices, 1)?.write_to(&mut file)?;
    Ok(())
}
