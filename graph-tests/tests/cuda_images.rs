//! The PTX that the kernels crate embeds. The last three tests need NVIDIA's compiler and assemblers, which they
//! install from PyPI into the build folder; without a network they fail and say so.

use graph_tests::cuda_images::assemble::{ARCHITECTURES, Assembled, assemble};
use graph_tests::cuda_images::ptx::entries;
use graph_tests::cuda_images::tools::Tools;
use graph_tests::cuda_images::{differences, is_current, root, table};
use ssmgraph_kernels::cuda::IMAGES;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Bytes of parameters that every device takes.
const PARAMS_BYTES_MAX: usize = 4096;

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn tools() -> Tools {
    Tools::get().unwrap_or_else(|what| panic!("{what}"))
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
            assert!(entry.name.starts_with(image.name), "{}: kernel {}", image.name, entry.name);
            let [bytes] = entry.params_bytes[..] else {
                panic!("{}: parameters of {:?} bytes, expected one struct", entry.name, entry.params_bytes);
            };
            assert!(
                bytes > 0 && bytes % 8 == 0 && bytes <= PARAMS_BYTES_MAX,
                "{}: a struct of {bytes} bytes, expected a multiple of 8 up to {PARAMS_BYTES_MAX}",
                entry.name
            );
            let other = owners.insert(entry.name.clone(), image.name);
            assert_eq!(other, None, "{} is in two images", entry.name);
        }
    }
}

#[test]
fn every_image_is_what_its_source_compiles_to() {
    none(differences(&tools()));
}

#[test]
fn every_image_assembles_for_every_device_without_local_memory() {
    let assembled = assemble(&tools(), ARCHITECTURES);
    assert_eq!(assembled.len(), IMAGES.len() * ARCHITECTURES.len());
    none(assembled.iter().flat_map(Assembled::complaints).collect());
}

#[test]
fn the_table_of_registers_is_current() {
    if let Err(what) = table::is_current(&tools()) {
        panic!("{what}");
    }
}
