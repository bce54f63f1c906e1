//! Loads of several processes, of which each needs three quarters of the budget.

use super::options::Load;
use crate::benches::swap::programs::{Program, compiled, numeric_sort};
use softswap_cli::refusal::OrRefuse;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Touches of a reader: about four for each page.
const TOUCHES_PER_MIB: u64 = 1_000;

/// Source files that make compiles.
const UNITS: usize = 8;
/// Memory of a C++ compiler for the headers, and for each class of a source file, in bytes
/// (measured).
const HEADERS_BYTES: u64 = 100 << 20;
const CLASS_BYTES: u64 = 4 << 20;

impl Load {
    /// Prepares the load in `dir`. Returns a shell script that runs it in this directory with `$1`
    /// processes at a time, which need `bytes` each, and prints a digest of the result.
    pub(super) fn script(self, dir: &Path, bytes: u64) -> Result<String, String> {
        let mib = bytes >> 20;
        Ok(match self {
            Load::Pair => return Err("its processes run for a fixed time".into()),
            Load::Readers => {
                compiled(dir, "touch", include_str!("touch.c"))?;
                let touches = mib * TOUCHES_PER_MIB;
                format!("seq 4 | xargs -P \"$1\" -n 1 ./touch read {mib} {touches}")
            }
            Load::Make => {
                for program in ["make", "g++"] {
                    let found = Command::new(program).arg("--version").output();
                    found.or_text(format!("{program} (`apt install make g++`)"))?;
                }
                let classes = bytes.saturating_sub(HEADERS_BYTES) / CLASS_BYTES;
                let mut objects = String::new();
                for unit in 0..UNITS {
                    let path = dir.join(format!("unit{unit}.cc"));
                    fs::write(&path, source(unit, classes)).or_text(path.display())?;
                    let _ = write!(objects, " unit{unit}.o");
                }
                format!(
                    "rm -f{objects}; make -s -j \"$1\" CXXFLAGS=-O1{objects} && cat{objects} | cksum"
                )
            }
            Load::Workers => {
                let (python, sort) = numeric_sort()?;
                for (name, text) in [("sort.py", sort), ("workers.py", include_str!("workers.py"))]
                {
                    fs::write(dir.join(name), text).or_text(name)?;
                }
                format!("{} workers.py \"$(cat sort.py)\" {bytes} \"$1\"", python.display())
            }
            Load::Sorts => {
                let ready = Program::TextSort.make_ready(dir, bytes)?;
                let sort = format!("sort --buffer-size={}b --temporary-directory=.", bytes * 2);
                let input = ready.name;
                format!(
                    "if [ \"$1\" = 1 ]; then {sort} {input} >middle && {sort} -k 2 middle; \
                     else {sort} {input} | {sort} -k 2; fi | cksum"
                )
            }
        })
    }
}

/// Returns a source file with `classes` classes, each in containers of its own. Without classes it
/// includes no headers, which need much memory.
fn source(unit: usize, classes: u64) -> String {
    let headers =
        if classes > 0 { "#include <map>\n#include <string>\n#include <vector>\n" } else { "" };
    let mut text = String::from(headers);
    for class in 0..classes {
        let _ = writeln!(
            text,
            "struct C{class} {{ int n; bool operator<(const C{class} &o) const {{ return n < o.n; }} }};
int f{unit}_{class}(int most) {{
    std::map<C{class}, std::vector<std::string>> all;
    for (int i = 0; i < most; i++) all[C{class}{{i * {} % 97}}].push_back(std::to_string(i));
    return (int)all.size();
}}",
            class + 3
        );
    }
    text
}
