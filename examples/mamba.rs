//! A Mamba model, complete: its numbers, its graph, and a greedy loop that starts from token 1.
//!
//! `cargo run --release --example mamba MODEL.gguf`

use ssmgraph::graph::{Slots, SlotsSpec};
use ssmgraph::{Graph, Session, Store, Tensor, backend::Devices, formats::Gguf, ops::DType, sample::argmax};
use std::{env, error::Error, process::ExitCode, sync::Arc};

struct Mamba {
    file: Arc<Gguf>,
    layers: usize,
    d_inner: usize,
    d_state: usize,
    dt_rank: usize,
    eps: f32,
}

impl Mamba {
    fn load(file: Arc<Gguf>) -> Result<Mamba, Box<dyn Error>> {
        let size = |key: &str| file.usize(&format!("mamba.{key}"));
        let (layers, d_inner) = (size("block_count")?, size("ssm.inner_size")?);
        let (d_state, dt_rank) = (size("ssm.state_size")?, size("ssm.time_step_rank")?);
        let eps = file.f32("mamba.attention.layer_norm_rms_epsilon")?;
        Ok(Mamba { file, layers, d_inner, d_state, dt_rank, eps })
    }

    /// Logits {vocabulary} after one token of one sequence.
    fn forward(&self, g: &mut Graph, token: Tensor, slots: &Slots) -> Result<Tensor, Box<dyn Error>> {
        let Mamba { d_inner, d_state, dt_rank, eps, .. } = *self;
        let weight = |g: &mut Graph, name: &str| -> Result<Tensor, Box<dyn Error>> {
            Ok(g.weight(name, self.file.tensor(name)?.layout)?)
        };
        let embedding = weight(g, "token_embd.weight")?;
        let mut x = g.get_rows(embedding, token)?;
        for layer in 0..self.layers {
            let at = |name: &str| format!("blk.{layer}.{name}");
            let [norm, project_in, taps, taps_bias] =
                ["attn_norm.weight", "ssm_in.weight", "ssm_conv1d.weight", "ssm_conv1d.bias"]
                    .map(|name| weight(g, &at(name)));
            let [select, project_dt, dt_bias, a, d, project_out] =
                ["ssm_x.weight", "ssm_dt.weight", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_out.weight"]
                    .map(|name| weight(g, &at(name)));
            let normed = g.rms_norm(x, Some(norm?), eps)?;
            let xz = g.mul_mat(project_in?, normed)?;
            let (u, z) = (g.slice(xz, 0, 0, d_inner)?, g.slice(xz, 0, d_inner, d_inner)?);

            // A convolution over the inputs of the last tokens, which are its state.
            let taps = taps?;
            let state = g.state(&at("conv"), DType::F32, &[g.ne(taps)?[0] - 1, d_inner], slots)?;
            let conv = g.ssm_conv_step([state.pool, u, taps, slots.read], Some(taps_bias?), true, 1)?;
            g.write_state(&state, slots, 0, conv.states[0])?;
            let u = conv.y;

            // The selective scan; dt, B and C depend on the token.
            let selected = g.mul_mat(select?, u)?;
            let dt = g.slice(selected, 0, 0, dt_rank)?;
            let b = g.slice(selected, 0, dt_rank, d_state)?;
            let c = g.slice(selected, 0, dt_rank + d_state, d_state)?;
            let dt = g.mul_mat(project_dt?, dt)?;
            let dt = g.add(dt, dt_bias?)?;
            let state = g.state(&at("ssm"), DType::F32, &[d_state, 1, d_inner], slots)?;
            let heads = g.reshape(u, &[1, d_inner])?;
            let scan = g.ssm_scan([state.pool, heads, dt, a?, b, c, slots.read], 1)?;
            g.write_state(&state, slots, 0, scan.states[0])?;

            let (y, skip) = (g.reshape(scan.y, &[d_inner])?, g.mul(u, d?)?);
            let y = g.add(y, skip)?;
            let y = g.swiglu(z, y)?;
            let y = g.mul_mat(project_out?, y)?;
            x = g.add(x, y)?;
        }
        let norm = weight(g, "output_norm.weight")?;
        let x = g.rms_norm(x, Some(norm), eps)?;
        let tied = self.file.tensor("output.weight").is_err();
        let head = if tied { embedding } else { weight(g, "output.weight")? };
        Ok(g.mul_mat(head, x)?)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("usage: mamba MODEL.gguf")?;
    let model = Mamba::load(Arc::new(Gguf::open(path)?))?;
    let mut g = Graph::new();
    let token = g.input("token", DType::I32, &[1])?;
    let slots = g.slots(SlotsSpec { slots: 1, rollback: 0, sequences: 1, tokens: 1 })?;
    let logits = model.forward(&mut g, token, &slots)?;
    g.output(logits)?;

    let store = Store::new(&Devices::cpu(None), vec![model.file.clone()]);
    let mut session = Session::with_store(&g, &store)?;
    session.set_slots(&[0])?;
    let mut next = 1;
    for _ in 0..32 {
        session.set(token, &[next as i32])?;
        session.run()?;
        next = argmax(&session.get::<f32>(logits)?)?;
        print!("{next} ");
    }
    println!();
    Ok(())
}
