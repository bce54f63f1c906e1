//! Sets the SONAME, and keeps the library loaded, because its SIGBUS handler stays installed.

fn main() {
    let part = |name: &str| std::env::var(format!("CARGO_PKG_VERSION_{name}")).unwrap_or_default();
    let soname = format!("libsoftswap_c.so.{}.{}", part("MAJOR"), part("MINOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
