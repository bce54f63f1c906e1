//! Function names of one file, demangled, also from separate debug files (`/usr/lib/debug`).

use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSymbol, SymbolKind};
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub(super) type Elf<'d> = ElfFile<'d, FileHeader64<Endianness>>;

#[derive(Default)]
pub(super) struct Symbols(Vec<(Range<u64>, String)>);

impl Symbols {
    pub(super) fn of(file: &Elf<'_>, root: &Path) -> Symbols {
        let mut all = functions(file);
        if let Some(debug) = read_debug_file(file, root) {
            all.extend(
                Elf::parse(debug.as_slice()).map(|file| functions(&file)).unwrap_or_default(),
            );
        }
        all.sort_by(|one, other| (one.0.start, other.0.end).cmp(&(other.0.start, one.0.end)));
        let mut known = HashSet::new();
        all.retain(|(range, _)| known.insert(range.start));
        Symbols(all)
    }

    /// Parses lines `START SIZE NAME`.
    pub(super) fn of_perf_map(text: &str) -> Symbols {
        let parse = |line: &str| {
            let mut fields = line.splitn(3, ' ');
            let mut number =
                || u64::from_str_radix(fields.next()?.trim_start_matches("0x"), 16).ok();
            let (start, len) = (number()?, number()?);
            Some((start..start.checked_add(len)?, fields.next()?.to_string()))
        };
        // Run-time generated code is replaced: the last entry for an address is valid.
        let mut all: Vec<_> = text.lines().rev().filter_map(parse).collect();
        all.sort_by_key(|(range, _)| range.start);
        all.dedup_by_key(|(range, _)| range.start);
        Symbols(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn at(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(range, _)| range.start <= address);
        let (range, name) = self.0[..after].last()?;
        range.contains(&address).then_some(name.as_str())
    }
}

fn functions(file: &Elf<'_>) -> Vec<(Range<u64>, String)> {
    let all = file.symbols().chain(file.dynamic_symbols());
    let named = all.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let range = |start: u64, len: u64| start..start.saturating_add(len);
    named
        .filter_map(|symbol| {
            Some((range(symbol.address(), symbol.size()), demangled(symbol.name().ok()?)))
        })
        .collect()
}

fn read_debug_file(file: &Elf<'_>, root: &Path) -> Option<Vec<u8>> {
    let id = file.build_id().ok()??;
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = PathBuf::from(format!("usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    std::fs::read(root.join(name)).ok()
}

/// Omits Rust's hash and C++'s parameters.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    // Without this check, `f` would be demangled as a type (`float`).
    let mangled = Some(name).filter(|name| name.starts_with("_Z"));
    let symbol = mangled.and_then(|name| cpp_demangle::Symbol::new(name).ok());
    let cpp = symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok());
    // Library symbols have the form `name@VERSION`.
    cpp.unwrap_or_else(|| name.split('@').next().unwrap_or(name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_demangled() {
        assert_eq!(["main", "f", "ai"].map(demangled), ["main", "f", "ai"]);
        assert_eq!(demangled("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(demangled("_ZN3foo3barEi"), "foo::bar");
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
    }

    #[test]
    fn latest_perf_map_entry_applies() {
        let text = "7f00 10 old\nbanana\n7f10 8 py::load:/a b.py\n7f00 10 new\n0x8000 4 hex\n";
        let symbols = Symbols::of_perf_map(text);
        let at = [0x7eff, 0x7f00, 0x7f0f, 0x7f17, 0x7f18, 0x8003].map(|it| symbols.at(it));
        let names = [None, Some("new"), Some("new"), Some("py::load:/a b.py"), None, Some("hex")];
        assert_eq!(at, names);
    }
}
