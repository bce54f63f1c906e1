//! Programs built with a sanitizer. They run without the runtime: AddressSanitizer refuses
//! libraries before its own, and the window does not fit next to ThreadSanitizer's shadow memory.

use softswap_sys::program_file::{Sanitizer, preloaded_sanitizer, sanitizer};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum depth of nested interpreters, as in the kernel.
const DEPTH: usize = 5;
const MAX_LINE_BYTES: u64 = 4096;

/// Checks the program, its interpreter, and LD_PRELOAD.
pub(super) fn sanitizer_of(program: &Path) -> Option<Sanitizer> {
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut path = program.to_path_buf();
    for _ in 0..DEPTH {
        let Some(next) = interpreter(&path) else { break };
        path = next;
    }
    let of_file = || {
        let file = File::open(&path).ok()?;
        sanitizer(&mut [0; 4096], |bytes, at| file.read_at(bytes, at).ok())
    };
    preloaded_sanitizer(preload.as_bytes()).or_else(of_file)
}

fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    let mut file = BufReader::new(File::open(script).ok()?.take(MAX_LINE_BYTES));
    file.read_until(b'\n', &mut line).ok()?;
    let mut words = line.strip_prefix(b"#!")?.split(u8::is_ascii_whitespace);
    let first = words.find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(first)))
}

pub(super) fn note(program: &OsStr, sanitizer: Sanitizer) -> String {
    format!(
        "{}: {sanitizer} is built in or preloaded, and replaces malloc and reserves most of the \
         address space: the program and its children run without softswap and without a budget; \
         use a build without the sanitizer to limit its memory",
        program.display()
    )
}
