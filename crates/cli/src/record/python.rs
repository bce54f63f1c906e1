//! Functions of Python programs: finds CPython, and inserts Python functions into native stacks.

use super::code::{Code, Native, bias, read};
use super::symbols::Elf;
use object::{Object, ObjectSection, ObjectSymbol};
use procfs::process::{MMPermissions, MMapPath, MemoryMap};
use softswap_engine::api::control_protocol::Python;
use softswap_engine::api::fault_samples::{FaultSample, PythonCode};
use softswap_view::units::visible;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Each native frame of the interpreter's loop runs one or more Python functions.
const LOOP: &str = "_PyEval_EvalFrameDefault";

pub(super) fn is_interpreter(file: &str) -> bool {
    file.starts_with("python3") || file.starts_with("libpython3")
}

pub(super) fn find(pid: u32, map: &[MemoryMap]) -> Option<Python> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    map.iter().filter(|it| it.perms.contains(MMPermissions::EXECUTE)).find_map(|mapping| {
        let MMapPath::Path(path) = &mapping.pathname else { return None };
        Some(path.file_name()?.to_str()?).filter(|name| is_interpreter(name))?;
        interpreter(&read(path, &root)?, mapping)
    })
}

fn interpreter(file: &[u8], mapping: &MemoryMap) -> Option<Python> {
    let elf = Elf::parse(file).ok()?;
    let symbol = |name| elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
    let runtime = symbol("_PyRuntime")?.address().wrapping_add(bias(&elf, mapping)?);
    let version = symbol("Py_Version")?;
    let section = elf.section_by_index(version.section_index()?).ok()?;
    let bytes = section.data_range(version.address(), 8).ok()??;
    let version = u64::from_le_bytes(bytes.try_into().ok()?);
    Some(Python { version: (version >> 16) as u16, runtime: runtime as usize })
}

/// Native functions, and Python functions by the addresses of their code objects.
pub(super) struct Functions {
    pub(super) native: Code,
    python: HashMap<u64, Native>,
}

impl Functions {
    pub(super) fn new(native: Code, codes: impl IntoIterator<Item = PythonCode>) -> Functions {
        let function = |code: PythonCode| {
            let PythonCode { address, line, name, file } = code;
            let source = Path::new(&file).file_name().unwrap_or_default().to_string_lossy();
            (address, (visible(&format!("{name} ({source}:{line})")), file))
        };
        Functions { native, python: codes.into_iter().map(function).collect() }
    }

    /// Returns the functions from the touching one outwards.
    pub(super) fn stack(&mut self, sample: &FaultSample) -> Vec<Native> {
        let addresses = self.native.stack(sample);
        let native = addresses.into_iter().map(|address| self.native.name(address));
        if sample.python.is_empty() { native.collect() } else { self.merge(native, sample) }
    }

    /// Replaces the interpreter's own functions by the Python functions that they run.
    fn merge(&self, native: impl Iterator<Item = Native>, sample: &FaultSample) -> Vec<Native> {
        let name = |code: u64| {
            let known = self.python.get(&code).cloned();
            known.unwrap_or_else(|| ("[Python function]".to_string(), String::new()))
        };
        let (mut merged, mut python) = (Vec::new(), sample.python.iter());
        for function in native {
            if !is_interpreter(&function.1) {
                merged.push(function);
            } else if function.0 == LOOP {
                for frame in python.by_ref() {
                    merged.push(name(frame.code));
                    if frame.is_entry {
                        break;
                    }
                }
            }
        }
        // The remaining callers are beyond the sampled part of the native stack.
        merged.extend(python.map(|frame| name(frame.code)));
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::api::fault_samples::FaultSamples;

    fn names(native: &[(&str, &str)], python: &str) -> Vec<String> {
        let code = |(address, name): (u64, &str)| {
            let (name, file) = (name.to_string(), "/a/b.py".to_string());
            PythonCode { address, line: 7, name, file }
        };
        let codes = [(0x10, "inner"), (0x20, "outer"), (0x30, "<module>")].map(code);
        let functions = Functions::new(Code::of(0, &[]), codes);
        let text = format!("sample 1 pool r 5 7000 5500 8000 0 {python}\n");
        let sample = &FaultSamples::parse(&text).samples[0];
        let native = native.iter().map(|(name, file)| (name.to_string(), file.to_string()));
        functions.merge(native, sample).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn python_frames_replace_interpreter_loop() {
        let native = [
            ("memcpy", "libc.so.6"),
            ("list_sort", "python3.11"),
            (LOOP, "python3.11"),
            ("callback", "extension.so"),
            ("PyObject_Call", "python3.11"),
            (LOOP, "python3.11"),
            ("Py_RunMain", "python3.11"),
            ("main", "libc.so.6"),
        ];
        let merged = names(&native, "+10 =20 =30");
        let expected =
            ["memcpy", "inner (b.py:7)", "outer (b.py:7)", "callback", "<module> (b.py:7)", "main"];
        assert_eq!(merged, expected);
    }

    #[test]
    fn truncated_stack_keeps_python_frames() {
        let merged =
            names(&[("memcpy", "libc.so.6"), (LOOP, "libpython3.11.so.1.0")], "=40 +20 =30");
        assert_eq!(merged, ["memcpy", "[Python function]", "outer (b.py:7)", "<module> (b.py:7)"]);
    }
}
