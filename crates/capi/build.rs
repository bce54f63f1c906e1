//! The library has a name for the loader, and stays: its handler of SIGBUS is in force for good.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsoftswap_c.so.0.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
