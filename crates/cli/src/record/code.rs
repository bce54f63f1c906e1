//! Code of a process: files, function names, and call stacks by the compilers' unwind tables.

use super::symbols::{Elf, Symbols};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use object::elf::PF_X;
use object::read::elf::ProgramHeader;
use object::{Endianness, Object, ObjectSection};
use procfs::process::{MMPermissions, MMapPath, MemoryMap};
use softswap_engine::api::fault_samples::FaultSample;
use softswap_view::units::visible;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

const MAX_FRAMES: usize = 128;
/// Distance above the stack pointer within which code without tables may store its return address.
const NEAR_BYTES: u64 = 32;

/// Function and file. The file is empty for run-time generated code.
pub(super) type Native = (String, String);

struct Mapped {
    range: Range<u64>,
    /// Load bias: address in memory minus ELF virtual address.
    bias: u64,
    file: usize,
}

struct File {
    name: String,
    symbols: Symbols,
}

pub(super) struct Code {
    mapped: Vec<Mapped>,
    files: Vec<File>,
    jit_ranges: Vec<Range<u64>>,
    /// From /tmp/perf-PID.map.
    perf_map: Symbols,
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
}

impl Code {
    pub(super) fn of(pid: u32, map: &[MemoryMap]) -> Code {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let mut code = Code {
            mapped: Vec::new(),
            files: Vec::new(),
            jit_ranges: Vec::new(),
            perf_map: Symbols::default(),
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
        };
        let mut known: BTreeMap<&Path, Option<Vec<u8>>> = BTreeMap::new();
        let mut numbers: BTreeMap<&Path, usize> = BTreeMap::new();
        let executable = map.iter().filter(|it| it.perms.contains(MMPermissions::EXECUTE));
        for mapping in executable {
            let MMapPath::Path(path) = &mapping.pathname else {
                code.jit_ranges.push(mapping.address.0..mapping.address.1);
                continue;
            };
            let bytes = known.entry(path).or_insert_with(|| read(path, &root));
            let elf = bytes.as_deref().and_then(|bytes| Elf::parse(bytes).ok());
            let file = *numbers.entry(path).or_insert_with(|| {
                let symbols = elf.as_ref().map(|elf| Symbols::of(elf, &root));
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let symbols = symbols.unwrap_or_default();
                code.files.push(File { name: visible(&name), symbols });
                code.files.len() - 1
            });
            let bias = elf.as_ref().and_then(|elf| bias(elf, mapping)).unwrap_or(0);
            let range = mapping.address.0..mapping.address.1;
            if let Some(elf) = &elf {
                let name = code.files[file].name.clone();
                code.unwinder.add_module(Module::new(name, range.clone(), bias, sections(elf)));
            }
            code.mapped.push(Mapped { range, bias, file });
        }
        if let Some(text) = perf_map(pid) {
            code.perf_map = Symbols::of_perf_map(&String::from_utf8_lossy(&text));
        }
        code
    }

    pub(super) fn name(&self, address: u64) -> Native {
        let Some(mapped) = self.mapped.iter().find(|it| it.range.contains(&address)) else {
            let name = self.perf_map.at(address).map(visible);
            return (name.unwrap_or_else(|| "[made at run time]".to_string()), String::new());
        };
        let file = &self.files[mapped.file];
        let within = address.wrapping_sub(mapped.bias);
        let name = file.symbols.at(within).map(visible);
        (name.unwrap_or_else(|| format!("[{}+{within:#x}]", file.name)), file.name.clone())
    }

    pub(super) fn has_perf_map(&self) -> bool {
        !self.perf_map.is_empty()
    }

    fn is_code(&self, address: u64) -> bool {
        let mut ranges = self.mapped.iter().map(|it| &it.range).chain(&self.jit_ranges);
        ranges.any(|range| range.contains(&address))
    }

    /// Addresses of the touching instruction, then of the call in each caller.
    pub(super) fn stack(&mut self, sample: &FaultSample) -> Vec<u64> {
        let last = sample.words.last().map_or(0, |(distance, _)| u64::from(*distance));
        // A word missing from the sample is no code address, so it is replaced by 0.
        let read = |address: u64| match address.checked_sub(sample.stack) {
            Some(beyond) if beyond / 8 <= last => Ok(sample.stack_word(address).unwrap_or(0)),
            _ => Err(()),
        };
        let mut registers = UnwindRegsX86_64::new(sample.instruction, sample.stack, sample.frame);
        let mut address = FrameAddress::from_instruction_pointer(sample.instruction);
        let mut stack = vec![sample.instruction];
        while stack.len() < MAX_FRAMES {
            let at = address.address_for_lookup();
            let is_jit = !self.mapped.iter().any(|it| it.range.contains(&at));
            let next = match is_jit {
                true => self.unwind_jit_frame(at, &mut registers, read),
                false => {
                    let mut read = read;
                    let cache = &mut self.cache;
                    let next =
                        self.unwinder.unwind_frame(address, &mut registers, cache, &mut read);
                    next.ok().flatten()
                }
            };
            let next = next.filter(|next| self.is_code(*next));
            let Some(next) = next.and_then(FrameAddress::from_return_address) else { break };
            address = next;
            stack.push(address.address_for_lookup());
        }
        stack
    }

    /// Most run-time generated code has frame pointers. Python's trampolines have none, and store
    /// the return address within a few words.
    fn unwind_jit_frame(
        &self,
        at: u64,
        registers: &mut UnwindRegsX86_64,
        read: impl Fn(u64) -> Result<u64, ()>,
    ) -> Option<u64> {
        let (stack, frame) = (registers.sp(), registers.bp());
        let is_python = self.perf_map.at(at).is_some_and(|name| name.starts_with("py::"));
        let return_address = |at: u64| read(at).ok().filter(|word| self.is_code(*word));
        let by_frame = || {
            let caller = return_address(frame.checked_add(8)?).filter(|_| frame >= stack)?;
            Some((caller, frame + 16, read(frame).unwrap_or(0)))
        };
        let nearby = || {
            let mut places = (stack..stack.saturating_add(NEAR_BYTES)).step_by(8);
            places.find_map(|place| Some((return_address(place)?, place + 8, frame)))
        };
        let found = if is_python { nearby() } else { by_frame().or_else(nearby) };
        let (caller, stack, frame) = found?;
        registers.set_sp(stack);
        registers.set_bp(frame);
        registers.set_ip(caller);
        Some(caller)
    }
}

pub(super) fn perf_map(pid: u32) -> Option<Vec<u8>> {
    let number = number_within(pid).unwrap_or(pid);
    read(Path::new(&format!("/tmp/perf-{number}.map")), Path::new(&format!("/proc/{pid}/root")))
}

/// Reads from softswap's own root directory if the process has exited.
pub(super) fn read(path: &Path, root: &Path) -> Option<Vec<u8>> {
    let within = root.join(path.strip_prefix("/").unwrap_or(path));
    std::fs::read(within).or_else(|_| std::fs::read(path)).ok()
}

/// Returns the process's PID in its own PID namespace.
fn number_within(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

pub(super) fn bias(elf: &Elf<'_>, mapping: &MemoryMap) -> Option<u64> {
    let endian = Endianness::Little;
    let covers = |header: &&object::elf::ProgramHeader64<Endianness>| {
        let (offset, len) = (header.p_offset(endian), header.p_filesz(endian));
        let end = offset.saturating_add(len);
        header.p_flags(endian).0 & PF_X.0 != 0
            && (offset & !0xfff) <= mapping.offset
            && mapping.offset < end
    };
    let header = elf.elf_program_headers().iter().find(covers)?;
    let in_file = header.p_vaddr(endian).wrapping_sub(header.p_offset(endian));
    Some(mapping.address.0.wrapping_sub(mapping.offset).wrapping_sub(in_file))
}

fn sections(elf: &Elf<'_>) -> ExplicitModuleSectionInfo<Vec<u8>> {
    let section = |name: &str| elf.section_by_name(name);
    let range =
        |name: &str| section(name).map(|it| it.address()..it.address().saturating_add(it.size()));
    let data = |name: &str| section(name)?.data().ok().map(<[u8]>::to_vec);
    ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: range(".text"),
        text: data(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        ..ExplicitModuleSectionInfo::default()
    }
}
