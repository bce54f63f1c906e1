//! Programs in C and C++ against the library, by each compiler that is there; and the header
//! against what the library exports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where `libsoftswap_c.so` is: beside the tests.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().map(Path::to_path_buf).unwrap()
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Compiles a program, and runs it.
fn run(compiler: &str, standard: &str, program: &str) {
    let has_library = libraries().join("libsoftswap_c.so").exists();
    if !is_there(compiler) || !has_library || !source().join("include").exists() {
        println!("skipped: {compiler}, the library or the sources are not there");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let built = directory.path().join("program");
    let libraries = libraries();
    let mut command = Command::new(compiler);
    command.args([standard, "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&built);
    command.arg(source().join("tests/c").join(program)).arg("-I").arg(source().join("include"));
    command.arg("-L").arg(&libraries).args(["-lsoftswap_c", "-Wl,-rpath"]);
    command.arg(format!("-Wl,{}", libraries.display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    // The name for the loader is that of an installed library.
    let name = directory.path().join("libsoftswap_c.so.0.1");
    std::os::unix::fs::symlink(libraries.join("libsoftswap_c.so"), name).unwrap();
    let mut command = Command::new(&built);
    command.arg(directory.path()).env("LD_LIBRARY_PATH", directory.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{:?} {text}", output.status);
}

#[test]
fn c() {
    run("gcc", "-std=c11", "pool.c");
    run("clang", "-std=c11", "pool.c");
}

#[test]
fn cpp() {
    run("g++", "-std=c++17", "resource.cpp");
    run("clang++", "-std=c++17", "resource.cpp");
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = source().join("include/softswap.h");
    let Ok(header) = std::fs::read_to_string(header) else {
        println!("skipped: the sources are not there");
        return;
    };
    let is_declaration = |line: &&str| line.contains("softswap_") && line.ends_with(");");
    let name = |line: &str| {
        let before = line.split('(').next().unwrap();
        before.rsplit([' ', '*']).next().unwrap().to_string()
    };
    let declared: BTreeSet<_> = header
        .lines()
        .filter(|line| !line.starts_with(['/', ' ', '#']))
        .filter(is_declaration)
        .map(name)
        .collect();
    let sources = ["handles.rs", "refusal.rs"];
    let exported: BTreeSet<_> = sources
        .iter()
        .map(|file| std::fs::read_to_string(source().join("src").join(file)).unwrap())
        .flat_map(|text| {
            let exports = text.split("#[unsafe(no_mangle)]").skip(1).map(|after| {
                let function = after.split("fn ").nth(1).unwrap();
                function.split('(').next().unwrap().to_string()
            });
            exports.collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(declared, exported);
}
