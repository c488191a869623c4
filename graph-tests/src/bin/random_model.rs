//! Writes a seeded random model of benchmark size:
//! `random_model mamba1|mamba2|qwen35 f32|f16|q8_0|q4_0|q4_k|q6_k FILE.gguf`.

use graph_tests::random_model::{MATRIX_TYPES, Model, random_model};
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let models: Vec<&str> = Model::NAMED.iter().map(|(name, _)| *name).collect();
    let types: Vec<&str> = MATRIX_TYPES.iter().map(|dtype| dtype.name()).collect();
    let [model, matrices, path] = arguments.as_slice() else {
        return Err(format!("usage: random_model {} {} FILE.gguf", models.join("|"), types.join("|")).into());
    };
    let Some((_, model)) = Model::NAMED.iter().find(|(name, _)| name == model) else {
        return Err(format!("no model `{model}`; known: {}", models.join(", ")).into());
    };
    let Some(&matrices) = MATRIX_TYPES.iter().find(|dtype| dtype.name() == matrices) else {
        return Err(format!("no matrix type `{matrices}`; known: {}", types.join(", ")).into());
    };
    let mut file = BufWriter::new(File::create(path)?);
    random_model(*model, matrices, 1)?.write_to(&mut file)?;
    Ok(())
}
