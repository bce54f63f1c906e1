//! Binds the library's calls of its own functions to those, also where the program defines one of
//! the same name that calls ours: Erlang's `sigaction`. And puts the unwinder, which only a
//! backtrace needs, into the library itself: the shared one costs every program that starts a tenth
//! of a millisecond, most of it in instructions that a virtual machine answers for.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let found = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let found = found.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    // If there is none, the shared library is used.
    let path = found.as_deref().map(str::trim).map(Path::new).filter(|path| path.is_absolute());
    if let Some(dir) = path.filter(|path| path.exists()).and_then(Path::parent) {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
        // It asks for a function of glibc 2.35; all else is content with 2.34.
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym=_dl_find_object=softswap_find_object");
    }
}
