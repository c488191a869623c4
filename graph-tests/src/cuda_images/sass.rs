//! Machine instructions per token of the forms of `gated_delta_net`, from disassembled images.

use super::ptx_path;
use super::tools::Tools;
use ssmgraph::backend::cuda::hash::Hash;
use ssmgraph::ops::gated_delta_net::{GatedDeltaNet, Grouping};
use ssmgraph::ops::{DType, Layout};
use ssmgraph_kernels::cuda::{CudaCall, CudaKernel, DeviceTensor, Launch, WARP};
use std::cmp::Reverse;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The devices of the table.
const ARCHITECTURES: [u32; 2] = [80, 90];
/// Elements of a row, and rows of the one head, for which the forms are counted.
const SIZE: usize = 128;

/// Instructions of a warp in the loop over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Loop {
    /// All of them, whether or not a call takes their path.
    all: usize,
    /// Adds, products and fused ones in `f32`, and special functions.
    arithmetic: usize,
    shuffles: usize,
    /// Loads from shared memory and stores to it.
    shared: usize,
    barriers: usize,
}

impl Loop {
    /// Those that every token issues: the rest is loads, their addresses, and paths that a call of packed rows skips.
    fn always(&self) -> usize {
        self.arithmetic + self.shuffles + self.shared + self.barriers
    }
}

/// The table: a row per form and device.
///
/// Errors: an image that cannot be assembled or disassembled, a listing that is not understood.
pub fn table(tools: &Tools) -> Result<String, String> {
    let mut text = format!(
        "\nOne gate, S = {SIZE}. Instructions of a warp in the loop over tokens; *issued* are arithmetic, shuffles, shared\n\
         memory and barriers, the rest is loads with their addresses and paths that packed rows skip. A row of the state\n\
         takes 1/4 of a warp in the first and last form, 4 warps in the others.\n\n\
         | form | device | in the loop | arithmetic | shuffles | shared memory | barriers | issued per (row, token) | \
         all per (row, token) |\n|---|---|---|---|---|---|---|---|---|\n"
    );
    for (index, form) in op().variants().iter().enumerate() {
        let launch = launch(index);
        let warps = launch.grid[0] as usize * launch.block[0] as usize / WARP;
        for architecture in ARCHITECTURES {
            let listing = listing(tools, &launch, architecture)?;
            let found = token_loop(&listing)
                .ok_or_else(|| format!("{} on sm_{architecture}: no loop was found", launch.entry))?;
            let per_row = |count: usize| (count * warps) as f64 / SIZE as f64;
            let Loop { all, arithmetic, shuffles, shared, barriers } = found;
            let _ = writeln!(
                text,
                "| `{}` | sm_{architecture} | {all} | {arithmetic} | {shuffles} | {shared} | {barriers} | {} | {} |",
                form.name,
                per_row(found.always()),
                per_row(all)
            );
        }
    }
    text.push('\n');
    Ok(text)
}

fn op() -> GatedDeltaNet {
    GatedDeltaNet { grouping: Grouping::Tiled, snapshots: 1 }
}

/// The launch of one head's prompt in a form.
fn launch(variant: usize) -> Launch {
    let tensor = |dtype, ne: &[usize]| DeviceTensor {
        address: 256,
        layout: Layout::contiguous(dtype, ne).expect("a small shape"),
    };
    let f32s = |ne: &[usize]| tensor(DType::F32, ne);
    let (state, vectors, numbers) = (f32s(&[SIZE, SIZE, 1, 1]), f32s(&[SIZE, 1, 2, 1]), f32s(&[1, 1, 2, 1]));
    let inputs = [state, vectors, vectors, vectors, numbers, numbers, tensor(DType::I32, &[1])];
    let call = CudaCall { inputs: &inputs, results: &[vectors, state], scratch: 0, fault: 0, variant };
    op().launches(&call).swap_remove(0)
}

/// The machine code of a launch's kernel, in words.
fn listing(tools: &Tools, launch: &Launch, architecture: u32) -> Result<String, String> {
    let path = ptx_path(launch.image);
    let ptx = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (assembler, disassembler) = (tools.ptxas(architecture), tools.cuobjdump());
    let cubin = std::env::temp_dir().join(format!(
        "ssmgraph-{}-{}-{architecture}.cubin",
        std::process::id(),
        launch.entry
    ));
    let run = || {
        said(
            Command::new(assembler).arg(format!("-arch=sm_{architecture}")).arg("-o").arg(&cubin).arg(&path),
        )?;
        let listing = said(
            Command::new(disassembler)
                .env("PATH", tools.nvdisasm_folder())
                .args(["-sass", "-fun", launch.entry])
                .arg(&cubin),
        );
        let _ = fs::remove_file(&cubin);
        listing
    };
    let named = |hash: Hash, program: &Path| hash.field(program.as_os_str().as_encoded_bytes());
    let key = named(named(Hash::new().field(&ptx), assembler), disassembler).value();
    let name = format!("{}-sm_{architecture}.sass", launch.entry);
    Ok(String::from_utf8_lossy(&tools.results().get(&name, key, run)?).into_owned())
}

/// What a program prints.
fn said(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The loop over tokens: of the backward branches over the most products, the shortest. Others jump back from paths
/// that are laid out behind the loop, and may hold copies of its end.
fn token_loop(listing: &str) -> Option<Loop> {
    let code: Vec<(usize, &str)> = listing.lines().filter_map(instruction).collect();
    let is_product = |text: &str| matches!(opcode(text), "FFMA" | "FMUL");
    let products = |code: &[(usize, &str)]| code.iter().filter(|(_, text)| is_product(text)).count();
    let inside = |from: usize, to: usize| -> Vec<(usize, &str)> {
        code.iter().filter(|&&(address, _)| (from..=to).contains(&address)).copied().collect()
    };
    let loops = code.iter().filter(|(_, text)| opcode(text) == "BRA").filter_map(|&(address, text)| {
        let digits: String = text.split_once("0x")?.1.chars().take_while(char::is_ascii_hexdigit).collect();
        let target = usize::from_str_radix(&digits, 16).ok().filter(|&target| target < address)?;
        Some(inside(target, address))
    });
    let body =
        loops.max_by_key(|body| (products(body), Reverse(body.len()))).filter(|body| products(body) > 0)?;
    let count = |wanted: &[&str]| body.iter().filter(|(_, text)| wanted.contains(&opcode(text))).count();
    Some(Loop {
        all: body.len(),
        arithmetic: count(&["FADD", "FMUL", "FFMA", "MUFU"]),
        shuffles: count(&["SHFL"]),
        shared: count(&["LDS", "STS"]),
        barriers: count(&["BAR"]),
    })
}

/// Address and text of a line such as `/*0010*/ @P0 BRA 0x40 ; /* 0x… */`.
fn instruction(line: &str) -> Option<(usize, &str)> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let address = usize::from_str_radix(address, 16).ok()?;
    Some((address, rest.split_once(';')?.0.trim()))
}

/// The operation without its predicate and modifiers.
fn opcode(text: &str) -> &str {
    let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
    words.next().map_or("", |word| word.split('.').next().unwrap_or(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_is_that_of_the_products() {
        let listing = "\
\t.headerflags\t@\"x\"
        /*0000*/    MOV R1, R2 ;          /* 0x1 */
                                          /* 0x2 */
        /*0010*/    FFMA R1, R2, R3, R4 ; /* 0x1 */
        /*0020*/    FFMA.FTZ R1, R2, R3, R4 ; /* 0x1 */
        /*0030*/    @!P0 SHFL.BFLY PT, R1, R2, 0x4, 0x1f ; /* 0x1 */
        /*0040*/    BAR.SYNC.DEFER_BLOCKING 0x0 ; /* 0x1 */
        /*0050*/    FFMA R1, R2, R3, R4 ; /* 0x1 */
        /*0060*/    @P0 BRA 0x10 ; /* 0x1 */
        /*0070*/    BRA 0x10 ; /* 0x1 */
        /*0078*/    BRA 0x40 ; /* 0x1 */
        /*0080*/    BRA `(.L_1) ; /* 0x1 */
";
        let found = token_loop(listing).unwrap();
        assert_eq!(found, Loop { all: 6, arithmetic: 3, shuffles: 1, shared: 0, barriers: 1 });
        assert_eq!(token_loop(""), None);
    }

    #[test]
    fn every_form_has_a_kernel_of_its_own() {
        let entries: Vec<&str> = (0..op().variants().len()).map(|variant| launch(variant).entry).collect();
        assert_eq!(entries[0], "gated_delta_net_128");
        assert!(
            entries[1..].iter().zip(&op().variants()[1..]).all(|(entry, form)| entry.ends_with(form.name))
        );
    }
}
