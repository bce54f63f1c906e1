//! Tests programs in C and C++ with the library as it is installed, by each available compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libsoftswap_c.a")
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn run_checked(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?} {text}", output.status);
    output
}

fn library(compiler: &str) -> Option<tempfile::TempDir> {
    let link = source().join("link.sh");
    if !is_installed(compiler) || !is_installed("cc") || !archive().exists() || !link.exists() {
        println!("skipped: {compiler}, the archive or the sources are missing");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    run_checked(Command::new(link).arg(archive()).arg(directory.path()));
    Some(directory)
}

fn run(compiler: &str, program: &str, options: &[&str]) {
    let Some(directory) = library(compiler) else { return };
    let directory = directory.path();
    let built = directory.join("program");
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&built);
    command.arg(source().join(program)).arg("-I").arg(source().join("include"));
    command.arg("-L").arg(directory).arg("-lsoftswap_c").args(options);
    run_checked(&mut command);
    let output = run_checked(Command::new(&built).arg(directory).env("LD_LIBRARY_PATH", directory));
    assert_eq!(output.stdout, b"done\n");
}

#[test]
fn c() {
    run("gcc", "tests/c/pool.c", &["-std=c11"]);
    run("clang", "tests/c/pool.c", &["-std=c11"]);
    run("gcc", "examples/pool.c", &["-std=c11"]);
}

#[test]
fn cpp() {
    run("g++", "tests/c/resource.cpp", &["-std=c++17"]);
    run("clang++", "tests/c/resource.cpp", &["-std=c++17"]);
}

#[test]
fn jemalloc() {
    if !Path::new("/usr/include/jemalloc/jemalloc.h").exists() {
        println!("skipped: jemalloc's header is missing");
        return;
    }
    run("gcc", "examples/jemalloc_hooks.c", &["-std=c11", "-ljemalloc"]);
}

#[test]
fn symbols_have_versions() {
    let Some(directory) = library("nm") else { return };
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--with-symbol-versions"]);
    let output = run_checked(nm.arg(directory.path().join("libsoftswap_c.so")));
    let text = String::from_utf8(output.stdout).unwrap();
    let exported = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let mut exported: Vec<_> = exported.filter(|name| !name.starts_with("SOFTSWAP_")).collect();
    exported.sort_unstable();
    let map = std::fs::read_to_string(source().join("softswap_c.map")).unwrap();
    let listed = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let listed = listed.filter(|name| name.starts_with("softswap_"));
    let listed: Vec<_> = listed.map(|name| format!("{name}@@SOFTSWAP_0.1")).collect();
    assert_eq!(exported, listed);
}
