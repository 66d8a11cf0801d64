//! Gives the library its soname, by which a program that is linked with it finds the one that is preloaded already.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkeelmem.so");
}
