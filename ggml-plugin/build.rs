//! Makes the library stay in a process that has loaded it.
//!
//! A host may close the library and still hold its registry, whose functions are the library's, and threads of the
//! pool run its code: once loaded, it must never go.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
