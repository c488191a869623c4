//! Images assembled for the devices that they are meant for, and what each kernel takes there.

use super::tools::Tools;
use super::{in_parallel, ptx_path};
use ssmgraph::backend::cuda::hash::Hash;
use ssmgraph_kernels::cuda::{IMAGES, Image};
use std::fs;
use std::process::Command;

/// The devices: one of each generation from Volta to Blackwell.
pub const ARCHITECTURES: &[u32] = &[70, 75, 80, 86, 89, 90, 100, 120];

/// Functions that may spill or have a stack frame, and why. Local memory is as slow as a GPU's memory, so the
/// list is meant to stay empty.
const ALLOWED: &[(&str, &str)] = &[];

/// What a function takes on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Name in the PTX.
    pub function: String,
    /// Registers of a thread; `None` for a function that is no kernel and counts with its callers.
    pub registers: Option<u32>,
    /// Local memory of a thread, in bytes.
    pub stack_bytes: u32,
    /// Register stores to local memory, in bytes.
    pub spill_store_bytes: u32,
    /// Register loads from local memory, in bytes.
    pub spill_load_bytes: u32,
}

impl Usage {
    /// What is wrong with it, if anything.
    fn complaint(&self) -> Option<String> {
        let clean = self.stack_bytes == 0 && self.spill_store_bytes == 0 && self.spill_load_bytes == 0;
        let allowed = ALLOWED.iter().any(|(function, _)| *function == self.function);
        (!clean && !allowed).then(|| {
            format!(
                "{}: {} bytes of stack frame, {} bytes of spill stores, {} bytes of spill loads",
                self.function, self.stack_bytes, self.spill_store_bytes, self.spill_load_bytes
            )
        })
    }
}

/// An image on a device.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// The image.
    pub image: &'static Image,
    /// The device, such as 90 for sm_90.
    pub architecture: u32,
    /// Its functions, or what the assembler said when it failed.
    pub functions: Result<Vec<Usage>, String>,
}

impl Assembled {
    /// What is wrong with it; empty when all is well.
    pub fn complaints(&self) -> Vec<String> {
        let place = format!("{} on sm_{}", self.image.name, self.architecture);
        match &self.functions {
            Ok(functions) if functions.is_empty() => vec![format!("{place}: no kernel")],
            Ok(functions) => functions
                .iter()
                .filter_map(Usage::complaint)
                .map(|complaint| format!("{place}: {complaint}"))
                .collect(),
            Err(what) => vec![format!("{place}: ptxas failed:\n{what}")],
        }
    }
}

/// Every image assembled for every one of the devices; in the order of the images, then devices.
pub fn assemble(tools: &Tools, architectures: &[u32]) -> Vec<Assembled> {
    let jobs: Vec<(&'static Image, u32)> = IMAGES
        .iter()
        .flat_map(|&image| architectures.iter().map(move |&architecture| (image, architecture)))
        .collect();
    in_parallel(&jobs, |&(image, architecture)| {
        let functions = ptxas(tools, image, architecture);
        Assembled { image, architecture, functions }
    })
}

fn ptxas(tools: &Tools, image: &Image, architecture: u32) -> Result<Vec<Usage>, String> {
    let (program, path) = (tools.ptxas(architecture), ptx_path(image));
    let ptx = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let arguments = ["-v", "--warn-on-spills", "-o", "/dev/null", &format!("-arch=sm_{architecture}")];
    let run = || {
        let output = Command::new(program)
            .args(arguments)
            .arg(&path)
            .output()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        if output.status.success() { Ok(said.into_owned().into_bytes()) } else { Err(said.trim().to_owned()) }
    };
    // The program's path names its release.
    let key = Hash::new().field(&ptx).field(program.as_os_str().as_encoded_bytes());
    let key = arguments.iter().fold(key, |key, argument| key.field(argument.as_bytes())).value();
    let name = format!("{}-sm_{architecture}.ptxas", image.name);
    usages(&String::from_utf8_lossy(&tools.results().get(&name, key, run)?))
}

/// The functions in what `ptxas -v` says. Each is announced by name, its memory on the line that follows; a
/// kernel's registers come last.
fn usages(said: &str) -> Result<Vec<Usage>, String> {
    let mut functions: Vec<Usage> = Vec::new();
    let mut kernel = String::new();
    for line in said.lines() {
        let after = |words: &str| line.split_once(words).map(|(_, rest)| rest.trim());
        let not_understood = || format!("ptxas says what this tool does not understand: {line}");
        if let Some(rest) = after("Compiling entry function '") {
            kernel = rest.split('\'').next().unwrap_or("").to_owned();
        } else if let Some(name) = after("Function properties for ") {
            functions.push(Usage { function: name.to_owned(), ..Usage::default() });
        } else if line.contains("bytes stack frame") {
            let numbers: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let (Some(last), &[stack, stores, loads]) = (functions.last_mut(), &numbers[..]) else {
                return Err(not_understood());
            };
            (last.stack_bytes, last.spill_store_bytes, last.spill_load_bytes) = (stack, stores, loads);
        } else if let Some(rest) = after(": Used ") {
            let registers = rest.split_whitespace().next().and_then(|word| word.parse().ok());
            let known = functions.iter_mut().find(|usage| usage.function == kernel);
            let (Some(registers), Some(usage)) = (registers, known) else { return Err(not_understood()) };
            usage.registers = Some(registers);
        }
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
ptxas info    : 312 bytes gmem, 320 bytes cmem[4]
ptxas info    : Compiling entry function 'scan' for 'sm_75'
ptxas info    : Function properties for scan
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 0 barriers, 528 bytes cmem[0], 40 bytes cmem[2]
ptxas info    : Compiling entry function 'next' for 'sm_75'
ptxas info    : Function properties for next
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compile time = 62.003 ms
";

    #[test]
    fn what_the_assembler_says_is_understood() {
        let functions = usages(SAID).unwrap();
        let names: Vec<_> =
            functions.iter().map(|usage| (usage.function.as_str(), usage.registers)).collect();
        assert_eq!(names, [("scan", Some(26)), ("helper", None), ("next", Some(255))]);
        let complaints: Vec<_> = functions.iter().filter_map(Usage::complaint).collect();
        let expected = "scan: 16 bytes of stack frame, 8 bytes of spill stores, 4 bytes of spill loads";
        assert_eq!(complaints, [expected]);
    }

    #[test]
    fn a_changed_form_is_an_error() {
        assert!(usages(&SAID.replace("8 bytes spill stores, ", "")).is_err());
        assert!(usages(&SAID.replace("Used 26", "Used many")).is_err());
    }
}
