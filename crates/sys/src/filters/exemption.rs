//! An exemption for the engine's calls, placed before a seccomp filter of the program's own.
//!
//! A sandboxed program lists its own calls, but the engine makes others in its threads whenever a
//! page is faulted in or evicted. The exemption allows listed calls from the engine's gate. The
//! program's filter judges all others, also those that the guard reissues
//! ([`raw::syscall_for_program`]). A call that is not listed loads only its number, so the kernel
//! can still cache the filter's result.
//!
//! `RULES` restricts the arguments. No call affects another process or asks for its memory, maps
//! executable memory, or opens a file. Only descriptors as high as the engine's can be read or
//! written. Rings are not listed, because no filter sees their requests ([`crate::ring`]).
//!
//! Allowed from everywhere: `rt_sigreturn`, which the C library calls after each fault (the
//! kernel's strict mode allows it too), and [`raw::request_pages`], which acts like touching the
//! pages.
//!
//! Security: an attacker who jumps to the gate can use the program's own memory, its signals and
//! the engine's files. By duplicating a descriptor to a high number it can also use open files of
//! the program. `shmctl` reveals the state of shared memory.
//!
//! No rule contains this process's ID, because children could then signal their parent. Before
//! Linux 6.15 one must: those kernels have no other name for a thread that signals itself.

use crate::raw;
use crate::seccomp::{
    ALLOW, ARCH_X86_64, ERRNO, IF_ANY_SET, IF_AT_LEAST, IF_EQUAL, Instruction, JUMP, LOAD,
    OFFSET_ARCH, OFFSET_ARGUMENTS, OFFSET_NUMBER, OFFSET_POINTER, RETURN, SET, branch, plain,
};
use crate::{descriptor, program_filter, uffd};

pub use crate::program_filter::is_in_force;

pub const MAX_INSTRUCTIONS: usize = 4096;

/// The kernel uses only the low half of arguments that are not pointers.
#[derive(Debug, Clone, Copy)]
enum Is {
    In(&'static [u32]),
    Without(u32),
    With(u32),
    Null,
    /// The process that installs the filter, if rules require it.
    OwnPid,
    High,
}
use Is::{High, In, Null, OwnPid, With, Without};

type Rule = (i64, &'static [(u32, Is)]);

pub const BLKGETSIZE64: u32 = 0x8008_1272;
/// `_IOWR('f', 11, struct fiemap)`.
pub(crate) const FS_IOC_FIEMAP: u32 = 0xC020_660B;
/// The calling thread, as a pidfd.
const SELF: u32 = raw::PIDFD_SELF as u32;
const PRIVATE: u32 = libc::FUTEX_PRIVATE_FLAG as u32;
const EXECUTABLE: u32 = libc::PROT_EXEC as u32;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
const IPC_STAT: u32 = libc::IPC_STAT as u32;

const REQUESTS: &[u32] = &[
    uffd::IOCTL_COPY as u32,
    uffd::IOCTL_ZEROPAGE as u32,
    uffd::IOCTL_MOVE as u32,
    uffd::IOCTL_WRITEPROTECT as u32,
    uffd::IOCTL_REGISTER as u32,
    uffd::IOCTL_API as u32,
    BLKGETSIZE64,
    FS_IOC_FIEMAP,
];
const ADVICE: &[u32] = &[
    libc::MADV_DONTNEED as u32,
    libc::MADV_NOHUGEPAGE as u32,
    libc::MADV_DONTDUMP as u32,
    libc::MADV_DONTFORK as u32,
    libc::MADV_DOFORK as u32,
    libc::MADV_KEEPONFORK as u32,
    libc::MADV_UNMERGEABLE as u32,
    libc::MADV_POPULATE_READ as u32,
    libc::MADV_POPULATE_WRITE as u32,
    libc::MADV_COLD as u32,
];
const MOVES: &[u32] = &[
    (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) as u32,
    (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u32,
];
const FUTEX_OPERATIONS: &[u32] = &[
    libc::FUTEX_WAIT as u32 | PRIVATE,
    libc::FUTEX_WAKE as u32 | PRIVATE,
    libc::FUTEX_WAIT_BITSET as u32 | PRIVATE,
    // In the page of the processes that share a budget.
    libc::FUTEX_WAIT as u32,
    libc::FUTEX_WAKE as u32,
];

/// The engine's calls to fault pages in and evict them.
const RULES: &[Rule] = &[
    // Memory.
    (libc::SYS_ioctl, &[(1, In(REQUESTS))]),
    (libc::SYS_userfaultfd, &[(0, In(&[uffd::OPEN_FLAGS as u32]))]),
    (libc::SYS_madvise, &[(2, In(ADVICE))]),
    (libc::SYS_process_madvise, &[(0, In(&[SELF])), (3, In(&[libc::MADV_DONTNEED as u32]))]),
    (libc::SYS_mmap, &[(2, Without(EXECUTABLE)), (3, With(ANONYMOUS))]),
    (libc::SYS_mprotect, &[(2, Without(EXECUTABLE))]),
    (libc::SYS_mremap, &[(3, In(MOVES))]),
    (libc::SYS_munmap, &[]),
    (libc::SYS_mincore, &[]),
    (libc::SYS_mlock2, &[(2, In(&[0, libc::MLOCK_ONFAULT]))]),
    (libc::SYS_munlock, &[]),
    // The swap areas.
    (libc::SYS_pread64, &[(0, High)]),
    (libc::SYS_pwrite64, &[(0, High)]),
    (libc::SYS_fallocate, &[(0, High)]),
    (libc::SYS_ftruncate, &[(0, High)]),
    (libc::SYS_fstatfs, &[(0, High)]),
    // Queries about descriptors.
    (libc::SYS_fstat, &[]),
    (libc::SYS_close, &[]),
    (libc::SYS_fcntl, &[(1, In(&[libc::F_GETFL as u32, libc::F_DUPFD_CLOEXEC as u32]))]),
    (libc::SYS_lseek, &[(1, Null), (2, In(&[libc::SEEK_CUR as u32]))]),
    (
        libc::SYS_getsockopt,
        &[
            (1, In(&[libc::SOL_SOCKET as u32])),
            (2, In(&[libc::SO_TYPE as u32, libc::SO_DOMAIN as u32])),
        ],
    ),
    (libc::SYS_prlimit64, &[(0, In(&[0])), (2, Null)]),
    // Threads, signals, time.
    (libc::SYS_futex, &[(1, In(FUTEX_OPERATIONS))]),
    (libc::SYS_rt_sigprocmask, &[]),
    (libc::SYS_rt_sigpending, &[]),
    (libc::SYS_rt_sigaction, &[]),
    (libc::SYS_sigaltstack, &[]),
    (libc::SYS_rt_tgsigqueueinfo, &[(0, OwnPid)]),
    (libc::SYS_pidfd_send_signal, &[(0, In(&[SELF]))]),
    // Checks that a thread exists.
    (libc::SYS_tgkill, &[(2, In(&[0]))]),
    (libc::SYS_get_robust_list, &[(0, In(&[0]))]),
    (libc::SYS_sched_yield, &[]),
    (libc::SYS_clock_gettime, &[]),
    (libc::SYS_nanosleep, &[]),
    // For the runtime's allocator, in each thread.
    (libc::SYS_getrandom, &[(2, In(&[0, libc::GRND_NONBLOCK]))]),
    (libc::SYS_getpid, &[]),
    (libc::SYS_gettid, &[]),
    (libc::SYS_getppid, &[]),
    // Checks for children that read this process's slots.
    (libc::SYS_shmctl, &[(1, In(&[IPC_STAT]))]),
    // Reports why the program is stopped.
    (libc::SYS_write, &[(0, In(&[libc::STDERR_FILENO as u32]))]),
    (libc::SYS_exit_group, &[]),
];

const QUESTION: u32 = 0x7377_6170;
/// Confirms the exemption.
const YES: i32 = libc::ESTALE;

/// Records an exemption, existing or being installed. Returns true if there was none.
pub fn begin() -> bool {
    if program_filter::set_in_force(true) {
        return false;
    }
    // SAFETY: signal 0 is never delivered; the call only reports whether it could be.
    let has_self_pidfd = unsafe {
        raw::syscall(libc::SYS_pidfd_send_signal, [raw::PIDFD_SELF as usize, 0, 0, 0, 0, 0])
    };
    let known = if has_self_pidfd == 0 { 0 } else { raw::current_process() };
    program_filter::set_known_process(known);
    true
}

pub fn undo() {
    program_filter::set_in_force(false);
}

/// Detects a filter that an earlier program installed before exec. Requires the gate, by whose
/// address the filter recognizes the engine.
pub fn detect_inherited() {
    // SAFETY: the call reads no arguments, and only returns a number.
    let answer = unsafe { raw::syscall(libc::SYS_getppid, [QUESTION as usize, 0, 0, 0, 0, 0]) };
    if answer == -(YES as isize) {
        program_filter::set_in_force(true);
    }
}

fn if_equal(value: u32, then: usize, otherwise: usize) -> Instruction {
    branch(IF_EQUAL, value, then, otherwise)
}

#[derive(Debug, Clone, Copy)]
struct Names {
    gate: u64,
    /// [`program_filter::known_process`].
    process: u32,
    high: u32,
}

/// A filter with jumps to its end, whose position is not yet known.
struct Code {
    code: Vec<Instruction>,
    to_end: Vec<usize>,
}

impl Code {
    fn emit(&mut self, instructions: &[Instruction]) {
        self.code.extend_from_slice(instructions);
    }

    /// The end is the program's filter.
    fn jump_to_end(&mut self) {
        self.to_end.push(self.code.len());
        self.emit(&[plain(JUMP, 0)]);
    }

    /// Jumps to the end unless the word at `offset` is one of `values`.
    fn require_one_of(&mut self, offset: u32, values: &[u32]) {
        self.emit(&[plain(LOAD, offset)]);
        for (index, value) in values.iter().enumerate() {
            self.emit(&[if_equal(*value, values.len() - index, 0)]);
        }
        self.jump_to_end();
    }

    /// Jumps to the end unless the comparison yields `holds`.
    fn require(&mut self, offset: u32, comparison: u16, value: u32, holds: bool) {
        let (if_true, if_false) = if holds { (1, 0) } else { (0, 1) };
        self.emit(&[plain(LOAD, offset), branch(comparison, value, if_true, if_false)]);
        self.jump_to_end();
    }

    fn require_argument(&mut self, argument: u32, what: Is, names: Names) {
        let low = OFFSET_ARGUMENTS + argument * 8;
        match what {
            In(values) => self.require_one_of(low, values),
            Without(bits) => self.require(low, IF_ANY_SET, bits, false),
            With(bits) => self.require(low, IF_ANY_SET, bits, true),
            Null => {
                self.require_one_of(low, &[0]);
                self.require_one_of(low + 4, &[0]);
            }
            OwnPid => self.require_one_of(low, &[names.process]),
            High => self.require(low, IF_AT_LEAST, names.high, true),
        }
    }

    /// Allows a listed call from the gate if its arguments are as listed.
    fn check_gate_call(&mut self, names: Names) {
        self.emit(&[plain(LOAD, OFFSET_NUMBER)]);
        for (number, arguments) in RULES.iter().filter(|(_, arguments)| !arguments.is_empty()) {
            let start = self.code.len();
            self.emit(&[if_equal(*number as u32, 0, 0)]);
            for (argument, what) in *arguments {
                self.require_argument(*argument, *what, names);
            }
            self.emit(&[plain(RETURN, ALLOW)]);
            self.code[start].if_false = (self.code.len() - start - 1) as u8;
        }
        self.emit(&[
            if_equal(libc::SYS_getppid as u32, 0, 3),
            plain(LOAD, OFFSET_ARGUMENTS),
            if_equal(QUESTION, 0, 1),
            plain(RETURN, ERRNO | YES as u32),
            plain(RETURN, ALLOW),
        ]);
    }

    /// Allows `request_pages` from elsewhere.
    fn check_other_call(&mut self) {
        const ADVICE: [u32; 2] =
            [libc::MADV_POPULATE_READ as u32, libc::MADV_POPULATE_WRITE as u32];
        let word = raw::REQUEST_PAGES_MARK as u64;
        self.require_one_of(OFFSET_NUMBER, &[libc::SYS_madvise as u32]);
        self.require_one_of(OFFSET_ARGUMENTS + 3 * 8, &[word as u32]);
        self.require_one_of(OFFSET_ARGUMENTS + 3 * 8 + 4, &[(word >> 32) as u32]);
        self.require_one_of(OFFSET_ARGUMENTS + 2 * 8, &ADVICE);
        self.emit(&[plain(RETURN, ALLOW)]);
    }
}

fn exemption(names: Names) -> Vec<Instruction> {
    let mut code = Code { code: Vec::new(), to_end: Vec::new() };
    code.require_one_of(OFFSET_ARCH, &[ARCH_X86_64]);
    code.emit(&[
        plain(LOAD, OFFSET_NUMBER),
        if_equal(libc::SYS_rt_sigreturn as u32, 0, 1),
        plain(RETURN, ALLOW),
    ]);
    for (index, (number, _)) in RULES.iter().enumerate() {
        // Jumps over the remaining comparisons and the jump after them.
        code.emit(&[if_equal(*number as u32, RULES.len() - index, 0)]);
    }
    code.jump_to_end();
    let caller = code.code.len();
    code.emit(&[
        plain(LOAD, OFFSET_POINTER),
        if_equal(names.gate as u32, 0, 2),
        plain(LOAD, OFFSET_POINTER + 4),
        if_equal((names.gate >> 32) as u32, 1, 0),
        plain(JUMP, 0),
    ]);
    code.check_gate_call(names);
    code.code[caller + 4].value = (code.code.len() - caller - 5) as u32;
    code.check_other_call();
    // As at the start of a filter.
    let end = code.code.len();
    code.emit(&[plain(SET, 0)]);
    for at in code.to_end {
        code.code[at].value = (end - at - 1) as u32;
    }
    code.code
}

/// Returns `None` if both together exceed the kernel's limit.
pub fn before(program: &[Instruction]) -> Option<Vec<Instruction>> {
    let mut code = exemption(Names {
        gate: raw::exempt_instruction_pointer(),
        process: program_filter::known_process(),
        high: descriptor::first_high(),
    });
    code.extend_from_slice(program);
    (code.len() <= MAX_INSTRUCTIONS).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::tests::verdict_within;

    const GATE: u64 = 0x1234_5678_9019;
    const KILL: u32 = 0x8000_0000;
    const NAMES: Names = Names { gate: GATE, process: 4711, high: 1024 };
    const OTHER: u64 = 3;

    fn verdict_of(number: i64, ip: u64, args: [u64; 6]) -> u32 {
        let mut code = exemption(NAMES);
        code.push(plain(RETURN, KILL));
        verdict_within(&code, number, ip, args, 400)
    }

    fn examples(what: Is) -> (u64, Vec<u64>) {
        match what {
            In(values) => {
                let bad = (0..70_000).filter(|value| !values.contains(value));
                (u64::from(values[values.len() - 1]), bad.map(u64::from).step_by(577).collect())
            }
            Without(bits) => (3, vec![u64::from(bits), u64::from(bits) | 3]),
            With(bits) => (u64::from(bits) | 2, vec![2, 1, 0]),
            Null => (0, vec![1, 1 << 40, 0x7fff_0000_1000]),
            OwnPid => (4711, vec![4710, 0, 1, u64::MAX]),
            High => (1024, vec![0, 2, 1023]),
        }
    }

    fn good(rules: &[(u32, Is)]) -> [u64; 6] {
        let mut args = [OTHER; 6];
        for (argument, what) in rules {
            args[*argument as usize] = examples(*what).0;
        }
        args
    }

    #[test]
    fn engine_calls_are_allowed_from_gate_only() {
        assert_eq!(verdict_of(libc::SYS_rt_sigreturn, 0x1000, [0; 6]), ALLOW);
        for number in (0..600).filter(|number| *number != libc::SYS_rt_sigreturn) {
            let rule = RULES.iter().find(|(listed, _)| *listed == number);
            let args = rule.map_or([OTHER; 6], |(_, rules)| good(rules));
            let expected = if rule.is_some() { ALLOW } else { KILL };
            assert_eq!(verdict_of(number, GATE, args), expected, "{number}");
            for other in [GATE + raw::APART as u64, GATE - 1, GATE ^ 1 << 40, 0x1000] {
                assert_eq!(verdict_of(number, other, args), KILL, "{number}");
            }
        }
    }

    #[test]
    fn other_arguments_are_denied() {
        for (number, rules) in RULES {
            for (argument, what) in *rules {
                for bad in examples(*what).1 {
                    let mut args = good(rules);
                    args[*argument as usize] = bad;
                    assert_eq!(verdict_of(*number, GATE, args), KILL, "{number} {argument} {bad}");
                }
            }
        }
    }

    /// A sandbox must prevent them.
    #[test]
    fn calls_to_other_processes_are_denied() {
        let process = u64::from(NAMES.process);
        for (number, args) in [
            (libc::SYS_io_uring_enter, [1024, 1, 1, 0, 0, 0]),
            (libc::SYS_tgkill, [process, process, 9, 0, 0, 0]),
            (libc::SYS_rt_tgsigqueueinfo, [1, 1, 9, 0, 0, 0]),
            (libc::SYS_process_vm_readv, [process, 0, 1, 0, 1, 0]),
            (libc::SYS_prlimit64, [1, 7, 0, 0, 0, 0]),
            (libc::SYS_prlimit64, [0, 7, 0x7fff_0000_0000, 0, 0, 0]),
            (libc::SYS_mmap, [0, 4096, 7, 0x22, u64::MAX, 0]),
            (libc::SYS_mmap, [0, 4096, 3, 1, 5, 0]),
            (libc::SYS_mmap, [0, 4096, 3, 1, 1024, 0]),
            (libc::SYS_mprotect, [0x1000, 4096, 5, 0, 0, 0]),
            (libc::SYS_fcntl, [5, libc::F_SETOWN as u64, 1, 0, 0, 0]),
            (libc::SYS_write, [5, 0, 1, 0, 0, 0]),
            (libc::SYS_pwrite64, [5, 0, 1, 0, 0, 0]),
            (libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]),
            (libc::SYS_userfaultfd, [0; 6]),
        ] {
            assert_eq!(verdict_of(number, GATE, args), KILL, "{number}");
        }
    }

    #[test]
    fn file_mappings_are_denied() {
        let map = |flags, fd| verdict_of(libc::SYS_mmap, GATE, [0, 4096, 3, flags, fd, 0]);
        assert_eq!(map(0x22, u64::MAX), ALLOW);
        assert_eq!(map(1, 1023), KILL);
        assert_eq!(map(1, 1024), KILL);
    }

    #[test]
    fn request_pages_is_allowed_from_anywhere() {
        let asking = raw::REQUEST_PAGES_MARK as u64;
        let ask = |advice: i32, word| {
            verdict_of(libc::SYS_madvise, 0x1000, [0x1000, 4096, advice as u64, word, 0, 0])
        };
        assert_eq!(ask(libc::MADV_POPULATE_READ, asking), ALLOW);
        assert_eq!(ask(libc::MADV_POPULATE_WRITE, asking), ALLOW);
        for word in [0, asking ^ 1, asking ^ 1 << 40, asking & 0xffff_ffff] {
            assert_eq!(ask(libc::MADV_POPULATE_READ, word), KILL);
        }
        assert_eq!(ask(libc::MADV_DONTNEED, asking), KILL);
        assert_eq!(verdict_of(libc::SYS_mprotect, 0x1000, [0, 0, 22, asking, 0, 0]), KILL);
    }

    #[test]
    fn exemption_can_be_queried() {
        let question = [u64::from(QUESTION), 0, 0, 0, 0, 0];
        assert_eq!(verdict_of(libc::SYS_getppid, GATE, question), ERRNO | YES as u32);
        assert_eq!(verdict_of(libc::SYS_getppid, GATE, [0; 6]), ALLOW);
        assert_eq!(verdict_of(libc::SYS_getppid, 0x1000, question), KILL);
    }

    #[test]
    fn overlong_filter_with_exemption_is_reported() {
        let own = exemption(NAMES).len();
        assert!(own < 256, "{own}");
        let program = vec![plain(RETURN, ALLOW); MAX_INSTRUCTIONS - own];
        assert_eq!(before(&program).unwrap().len(), MAX_INSTRUCTIONS);
        assert_eq!(before(&vec![plain(RETURN, ALLOW); MAX_INSTRUCTIONS - own + 1]), None);
    }
}
