//! The PTX that the kernels crate embeds. Most tests need NVIDIA's compiler and assemblers, which they
//! install from PyPI into the build folder; without a network they fail and say so.

use graph_tests::cuda_images::assemble::{ARCHITECTURES, Assembled, assemble};
use graph_tests::cuda_images::ptx::entries;
use graph_tests::cuda_images::tools::Tools;
use graph_tests::cuda_images::{differences, is_current, root, table};
use ssmgraph::backend::cuda::cache::Cache;
use ssmgraph::backend::cuda::compile::{CompileError, compile, version};
use ssmgraph_kernels::cuda::{IMAGES, Image};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::OnceLock;

/// Bytes of parameters that every device takes.
const PARAMS_BYTES_MAX: usize = 4096;

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn tools() -> Tools {
    Tools::get().unwrap_or_else(|what| panic!("{what}"))
}

/// Every image on every device: two tests look at it.
fn assembled() -> &'static [Assembled] {
    static ASSEMBLED: OnceLock<Vec<Assembled>> = OnceLock::new();
    ASSEMBLED.get_or_init(|| assemble(&tools(), ARCHITECTURES))
}

#[test]
fn no_image_is_older_than_its_source() {
    none(IMAGES.iter().filter_map(|image| is_current(image).err()).collect());
}

#[test]
fn every_kernel_source_is_an_image() {
    let folders = fs::read_dir(root().join("kernels/src")).unwrap().map(|entry| entry.unwrap().path());
    let sources: BTreeSet<String> = folders
        .filter(|folder| folder.join("cuda.cu").exists())
        .map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let images: BTreeSet<String> = IMAGES.iter().map(|image| image.name.to_owned()).collect();
    assert_eq!(sources, images, "kernels/src/*/cuda.cu and IMAGES of kernels/src/cuda/image.rs differ");
    assert_eq!(images.len(), IMAGES.len(), "an image is listed twice");
}

#[test]
fn every_image_has_kernels_of_its_name_with_one_struct_each() {
    let mut owners = BTreeMap::new();
    for image in IMAGES {
        let entries = entries(image.ptx);
        assert!(!entries.is_empty(), "{} has no kernel", image.name);
        for entry in entries {
            assert!(entry.starts_with(image.name), "{}: kernel {entry}", image.name);
            let bytes = image.parameter_bytes(entry).unwrap_or(0);
            assert!(
                bytes > 0 && bytes % 8 == 0 && bytes <= PARAMS_BYTES_MAX,
                "{entry}: a parameter of {bytes} bytes, expected one struct of a multiple of 8 up to \
                 {PARAMS_BYTES_MAX}"
            );
            let other = owners.insert(entry, image.name);
            assert_eq!(other, None, "{entry} is in two images");
        }
    }
}

#[test]
fn every_image_is_what_its_source_compiles_to() {
    none(differences(&tools()));
}

#[test]
fn every_image_assembles_for_every_device_without_local_memory() {
    let assembled = assembled();
    assert_eq!(assembled.len(), IMAGES.len() * ARCHITECTURES.len());
    none(assembled.iter().flat_map(Assembled::complaints).collect());
}

#[test]
fn the_tables_of_the_kernels_are_current() {
    if let Err(what) = table::is_current(&tools(), assembled()) {
        panic!("{what}");
    }
}

#[test]
fn machine_code_is_compiled_once_and_kept() {
    tools();
    let folder = std::env::temp_dir().join(format!("ssmgraph-cubins-{}", std::process::id()));
    let cubin = || Cache::at(&folder).cubin(IMAGES[0], "sm_90", version().unwrap()).unwrap();
    let first = cubin();
    assert_eq!(first[..4], *b"\x7fELF");
    let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(cubin(), first);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), written);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_the_compiler_refuses_is_told_in_its_own_words() {
    tools();
    let source = "#include \"../shared/common.cuh\"\nextern \"C\" __global__ void f() { undeclared = 1; }\n";
    let image = Image { name: "op", source, ptx: "" };
    let error = compile(&image, "compute_70").unwrap_err();
    assert!(matches!(error, CompileError::Source { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("image op does not compile for compute_70:\nop.cu(2): error"), "{text}");
    assert!(text.contains("undeclared"), "{text}");

    let unknown = compile(IMAGES[0], "sm_999").unwrap_err();
    assert_eq!(unknown, CompileError::Target { target: "sm_999".to_owned() });
}
