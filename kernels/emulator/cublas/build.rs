//! Names the library as programs look for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcublas.so");
    println!("cargo::rerun-if-changed=build.rs");
}
