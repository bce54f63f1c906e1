//! Linker options of the library.
//!
//! - `-Bsymbolic-functions`: the library calls its own functions, even if the program defines
//!   functions of the same names that call the library's, as Erlang does (`sigaction`).
//! - The unwinder, which only backtraces need, is linked statically. Loading the shared one would
//!   delay each program start by 0.1 ms, mostly in instructions that a virtual machine emulates.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let found = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let found = found.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    // Without a static unwinder, the shared one is used.
    let path = found.as_deref().map(str::trim).map(Path::new).filter(|path| path.is_absolute());
    if let Some(dir) = path.filter(|path| path.exists()).and_then(Path::parent) {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
        // The unwinder calls `_dl_find_object` of glibc 2.35; everything else needs at most 2.34.
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym=_dl_find_object=softswap_find_object");
    }
}
