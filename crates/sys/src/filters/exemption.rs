//! A seccomp filter of the program's own, with what the engine needs in front.
//!
//! A program that sandboxes itself lists the calls that it makes itself. The
//! engine makes others, in the program's threads, whenever a page is brought
//! in or out; a filter that kills for them would end the program at a touch of
//! its own memory. So an exemption goes first: a call that it lists, and that comes
//! from the engine's instruction in the gate passes. All else, and so every
//! call that the program makes, the program's filter judges as before, also
//! when the guard issues it again ([`raw::syscall_for_program`]).
//!
//! Calls that are not listed meet one comparison each, and load nothing but
//! their number before the program's filter begins: what the kernel remembers
//! about that filter it still can.
//!
//! The return from a handler passes wherever it is made: the C library makes it
//! after each fault. It does nothing that its maker could not do by itself, and
//! the kernel's own strict mode lets it pass, too.
//!
//! What is listed is listed with its arguments (`RULES`): nothing that changes
//! another process or asks for its memory, no memory that may be run, nothing
//! is opened, and only what lies where the engine's descriptors do is read or written.
//! The rings are not listed: their queues lie in the program's memory, and what
//! they do no filter sees. From here on they are not used ([`crate::ring`]).
//!
//! What is left to somebody who has taken over the program and jumps to the
//! engine's instruction: its own memory, its own signals, the engine's files, and by a
//! duplicate of a descriptor to where the engine's lie, the files that the program has
//! open already. `shmctl` tells of memory that others share.
//!
//! No rule names this process by its number: children are judged by the same
//! filter, and would reach their parent by it. Where the kernel knows no other name
//! for a thread that signals itself (before Linux 6.15), one does.
//!
//! One call passes from anywhere: the one by which a page is asked for by way
//! of the guard ([`raw::ask_for_pages`]), which does what a touch does.

use crate::raw;
use crate::seccomp::{
    ALLOW, ARCH_X86_64, ERRNO, IF_ANY_SET, IF_AT_LEAST, IF_EQUAL, Instruction, JUMP, LOAD,
    OFFSET_ARCH, OFFSET_ARGUMENTS, OFFSET_NUMBER, OFFSET_POINTER, RETURN, SET, plain,
};
use crate::{descriptor, program_filter, uffd};

pub use crate::program_filter::is_in_force;

/// Most instructions that the kernel takes in one filter.
pub const MOST_INSTRUCTIONS: usize = 4096;

/// What one argument must be. Of all arguments but pointers the kernel takes the
/// low half only.
#[derive(Debug, Clone, Copy)]
enum Is {
    /// One of these.
    In(&'static [u32]),
    /// Without any of these bits.
    Without(u32),
    /// With at least one of these bits.
    With(u32),
    /// No pointer.
    Null,
    /// The number of the process that installs the filter, if it needs it.
    Ourselves,
    /// A descriptor of those that lie where the engine's do.
    High,
}
use Is::{High, In, Null, Ourselves, With, Without};

/// A call, and what its arguments must be.
type Rule = (i64, &'static [(u32, Is)]);

const BLKGETSIZE64: u32 = 0x8008_1272;
/// The calling thread, as a descriptor of a process.
const SELF: u32 = raw::PIDFD_SELF as u32;
const PRIVATE: u32 = libc::FUTEX_PRIVATE_FLAG as u32;
const EXECUTABLE: u32 = libc::PROT_EXEC as u32;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
const IPC_STAT: u32 = libc::IPC_STAT as u32;

/// What the engine calls while it brings pages in and out.
const RULES: &[Rule] = &[
    // Memory.
    (
        libc::SYS_ioctl,
        &[(
            1,
            In(&[
                uffd::IOCTL_COPY as u32,
                uffd::IOCTL_ZEROPAGE as u32,
                uffd::IOCTL_MOVE as u32,
                uffd::IOCTL_WRITEPROTECT as u32,
                uffd::IOCTL_REGISTER as u32,
                uffd::IOCTL_API as u32,
                BLKGETSIZE64,
            ]),
        )],
    ),
    (libc::SYS_userfaultfd, &[(0, In(&[uffd::OPEN_FLAGS as u32]))]),
    (
        libc::SYS_madvise,
        &[(
            2,
            In(&[
                libc::MADV_DONTNEED as u32,
                libc::MADV_NOHUGEPAGE as u32,
                libc::MADV_DONTDUMP as u32,
                libc::MADV_DONTFORK as u32,
                libc::MADV_DOFORK as u32,
                libc::MADV_UNMERGEABLE as u32,
                libc::MADV_POPULATE_READ as u32,
                libc::MADV_POPULATE_WRITE as u32,
            ]),
        )],
    ),
    (libc::SYS_process_madvise, &[(0, In(&[SELF])), (3, In(&[libc::MADV_DONTNEED as u32]))]),
    (libc::SYS_mmap, &[(2, Without(EXECUTABLE)), (3, With(ANONYMOUS))]),
    (libc::SYS_mprotect, &[(2, Without(EXECUTABLE))]),
    (
        libc::SYS_mremap,
        &[(
            3,
            In(&[
                (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) as u32,
                (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u32,
            ]),
        )],
    ),
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
    // What a descriptor is, and where it is.
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
    (
        libc::SYS_futex,
        &[(
            1,
            In(&[
                libc::FUTEX_WAIT as u32 | PRIVATE,
                libc::FUTEX_WAKE as u32 | PRIVATE,
                libc::FUTEX_WAIT_BITSET as u32 | PRIVATE,
                // In the page by which processes share a budget.
                libc::FUTEX_WAIT as u32,
                libc::FUTEX_WAKE as u32,
            ]),
        )],
    ),
    (libc::SYS_rt_sigprocmask, &[]),
    (libc::SYS_rt_sigpending, &[]),
    (libc::SYS_rt_sigaction, &[]),
    (libc::SYS_sigaltstack, &[]),
    (libc::SYS_rt_tgsigqueueinfo, &[(0, Ourselves)]),
    (libc::SYS_pidfd_send_signal, &[(0, In(&[SELF]))]),
    // Whether a thread is there.
    (libc::SYS_tgkill, &[(2, In(&[0]))]),
    (libc::SYS_get_robust_list, &[(0, In(&[0]))]),
    (libc::SYS_sched_yield, &[]),
    (libc::SYS_clock_gettime, &[]),
    (libc::SYS_nanosleep, &[]),
    // The allocator in the runtime wants it for each thread.
    (libc::SYS_getrandom, &[(2, In(&[0, libc::GRND_NONBLOCK]))]),
    (libc::SYS_getpid, &[]),
    (libc::SYS_gettid, &[]),
    (libc::SYS_getppid, &[]),
    // Whether children are there that read this process's slots.
    (libc::SYS_shmctl, &[(1, In(&[IPC_STAT]))]),
    // To say why the program is stopped.
    (libc::SYS_write, &[(0, In(&[libc::STDERR_FILENO as u32]))]),
    (libc::SYS_exit_group, &[]),
];

/// What is asked to learn whether there is an exemption, and its answer.
const QUESTION: u32 = 0x7377_6170;
const YES: i32 = libc::ESTALE;

/// From now on there is one, or there is about to be. True if there was none.
pub fn begin() -> bool {
    if program_filter::set_in_force(true) {
        return false;
    }
    // SAFETY: signal 0 is never delivered; the call only tells whether it could be.
    let named = unsafe {
        raw::syscall(libc::SYS_pidfd_send_signal, [raw::PIDFD_SELF as usize, 0, 0, 0, 0, 0])
    };
    let known = if named == 0 { 0 } else { raw::current_process() };
    program_filter::set_known_process(known);
    true
}

/// There is none after all.
pub fn undo() {
    program_filter::set_in_force(false);
}

/// Looks whether this program was started under a filter of an earlier one's.
/// Where calls are not made from the gate yet there can be none that is known.
pub fn look() {
    // SAFETY: the call looks at no arguments, and only tells a number.
    let answer = unsafe { raw::syscall(libc::SYS_getppid, [QUESTION as usize, 0, 0, 0, 0, 0]) };
    if answer == -(YES as isize) {
        program_filter::set_in_force(true);
    }
}

fn if_equal(value: u32, then: usize, otherwise: usize) -> Instruction {
    Instruction { code: IF_EQUAL, if_true: then as u8, if_false: otherwise as u8, value }
}

/// What depends on the process that installs the filter.
#[derive(Debug, Clone, Copy)]
struct Names {
    gate: u64,
    /// [`program_filter::known_process`].
    process: u32,
    /// The first descriptor of those that may be the engine's.
    high: u32,
}

/// A filter's instructions, with jumps to its end that is not known yet.
struct Code {
    code: Vec<Instruction>,
    to_end: Vec<usize>,
}

impl Code {
    fn put(&mut self, instructions: &[Instruction]) {
        self.code.extend_from_slice(instructions);
    }

    /// Goes on to what the program's filter judges.
    fn jump_to_end(&mut self) {
        self.to_end.push(self.code.len());
        self.put(&[plain(JUMP, 0)]);
    }

    /// Goes on only where a half of an argument is one of `values`.
    fn need_one_of(&mut self, offset: u32, values: &[u32]) {
        self.put(&[plain(LOAD, offset)]);
        for (index, value) in values.iter().enumerate() {
            self.put(&[if_equal(*value, values.len() - index, 0)]);
        }
        self.jump_to_end();
    }

    /// Goes on only where a comparison with an argument holds, or does not.
    fn need(&mut self, offset: u32, comparison: u16, value: u32, holds: bool) {
        let (if_true, if_false) = if holds { (1, 0) } else { (0, 1) };
        self.put(&[
            plain(LOAD, offset),
            Instruction { code: comparison, if_true, if_false, value },
        ]);
        self.jump_to_end();
    }

    fn need_argument(&mut self, argument: u32, what: Is, names: Names) {
        let low = OFFSET_ARGUMENTS + argument * 8;
        match what {
            In(values) => self.need_one_of(low, values),
            Without(bits) => self.need(low, IF_ANY_SET, bits, false),
            With(bits) => self.need(low, IF_ANY_SET, bits, true),
            Null => {
                self.need_one_of(low, &[0]);
                self.need_one_of(low + 4, &[0]);
            }
            Ourselves => self.need_one_of(low, &[names.process]),
            High => self.need(low, IF_AT_LEAST, names.high, true),
        }
    }

    /// A call of the engine's: passes if its arguments are as they must be.
    fn judge_ours(&mut self, names: Names) {
        self.put(&[plain(LOAD, OFFSET_NUMBER)]);
        for (number, arguments) in RULES.iter().filter(|(_, arguments)| !arguments.is_empty()) {
            let start = self.code.len();
            self.put(&[if_equal(*number as u32, 0, 0)]);
            for (argument, what) in *arguments {
                self.need_argument(*argument, *what, names);
            }
            self.put(&[plain(RETURN, ALLOW)]);
            self.code[start].if_false = (self.code.len() - start - 1) as u8;
        }
        self.put(&[
            if_equal(libc::SYS_getppid as u32, 0, 3),
            plain(LOAD, OFFSET_ARGUMENTS),
            if_equal(QUESTION, 0, 1),
            plain(RETURN, ERRNO | YES as u32),
            plain(RETURN, ALLOW),
        ]);
    }

    /// A call of the program's that is listed: passes if it asks for pages.
    fn judge_others(&mut self) {
        const ADVICE: [u32; 2] =
            [libc::MADV_POPULATE_READ as u32, libc::MADV_POPULATE_WRITE as u32];
        let word = raw::ASKING as u64;
        self.need_one_of(OFFSET_NUMBER, &[libc::SYS_madvise as u32]);
        self.need_one_of(OFFSET_ARGUMENTS + 3 * 8, &[word as u32]);
        self.need_one_of(OFFSET_ARGUMENTS + 3 * 8 + 4, &[(word >> 32) as u32]);
        self.need_one_of(OFFSET_ARGUMENTS + 2 * 8, &ADVICE);
        self.put(&[plain(RETURN, ALLOW)]);
    }
}

/// The exemption: it ends where the program's filter begins.
fn exemption(names: Names) -> Vec<Instruction> {
    let mut code = Code { code: Vec::new(), to_end: Vec::new() };
    code.need_one_of(OFFSET_ARCH, &[ARCH_X86_64]);
    code.put(&[
        plain(LOAD, OFFSET_NUMBER),
        if_equal(libc::SYS_rt_sigreturn as u32, 0, 1),
        plain(RETURN, ALLOW),
    ]);
    for (index, (number, _)) in RULES.iter().enumerate() {
        // Over the rest, and the jump behind it.
        code.put(&[if_equal(*number as u32, RULES.len() - index, 0)]);
    }
    code.jump_to_end();
    let caller = code.code.len();
    code.put(&[
        plain(LOAD, OFFSET_POINTER),
        if_equal(names.gate as u32, 0, 2),
        plain(LOAD, OFFSET_POINTER + 4),
        if_equal((names.gate >> 32) as u32, 1, 0),
        plain(JUMP, 0),
    ]);
    code.judge_ours(names);
    code.code[caller + 4].value = (code.code.len() - caller - 5) as u32;
    code.judge_others();
    // As the accumulator was when the filter began.
    let end = code.code.len();
    code.put(&[plain(SET, 0)]);
    for at in code.to_end {
        code.code[at].value = (end - at - 1) as u32;
    }
    code.code
}

/// The program's filter behind the exemption; `None` where both together are
/// more than the kernel takes.
#[must_use]
pub fn before(program: &[Instruction]) -> Option<Vec<Instruction>> {
    let mut code = exemption(Names {
        gate: raw::exempt_instruction_pointer(),
        process: program_filter::known_process(),
        high: descriptor::first_high(),
    });
    code.extend_from_slice(program);
    (code.len() <= MOST_INSTRUCTIONS).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::tests::verdict_within;

    const GATE: u64 = 0x1234_5678_9019;
    const KILL: u32 = 0x8000_0000;
    const NAMES: Names = Names { gate: GATE, process: 4711, high: 1024 };
    const OTHER: u64 = 3;

    fn judged(number: i64, ip: u64, args: [u64; 6]) -> u32 {
        let mut code = exemption(NAMES);
        code.push(plain(RETURN, KILL));
        verdict_within(&code, number, ip, args, 400)
    }

    /// A value that an argument may have, and some that it may not.
    fn examples(what: Is) -> (u64, Vec<u64>) {
        match what {
            In(values) => {
                let bad = (0..70_000).filter(|value| !values.contains(value));
                (u64::from(values[values.len() - 1]), bad.map(u64::from).step_by(577).collect())
            }
            Without(bits) => (3, vec![u64::from(bits), u64::from(bits) | 3]),
            With(bits) => (u64::from(bits) | 2, vec![2, 1, 0]),
            Null => (0, vec![1, 1 << 40, 0x7fff_0000_1000]),
            Ourselves => (4711, vec![4710, 0, 1, u64::MAX]),
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
    fn what_the_engine_needs_passes_from_its_instruction_and_nowhere_else() {
        assert_eq!(judged(libc::SYS_rt_sigreturn, 0x1000, [0; 6]), ALLOW);
        for number in (0..600).filter(|number| *number != libc::SYS_rt_sigreturn) {
            let rule = RULES.iter().find(|(listed, _)| *listed == number);
            let args = rule.map_or([OTHER; 6], |(_, rules)| good(rules));
            let expected = if rule.is_some() { ALLOW } else { KILL };
            assert_eq!(judged(number, GATE, args), expected, "{number}");
            for other in [GATE + raw::APART as u64, GATE - 1, GATE ^ 1 << 40, 0x1000] {
                assert_eq!(judged(number, other, args), KILL, "{number}");
            }
        }
    }

    #[test]
    fn with_other_arguments_nothing_passes() {
        for (number, rules) in RULES {
            for (argument, what) in *rules {
                for bad in examples(*what).1 {
                    let mut args = good(rules);
                    args[*argument as usize] = bad;
                    assert_eq!(judged(*number, GATE, args), KILL, "{number} {argument} {bad}");
                }
            }
        }
    }

    /// What a sandbox is there to keep a program from.
    #[test]
    fn nothing_passes_that_reaches_beyond_the_process() {
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
            assert_eq!(judged(number, GATE, args), KILL, "{number}");
        }
    }

    #[test]
    fn no_file_can_be_mapped() {
        let map = |flags, fd| judged(libc::SYS_mmap, GATE, [0, 4096, 3, flags, fd, 0]);
        assert_eq!(map(0x22, u64::MAX), ALLOW);
        assert_eq!(map(1, 1023), KILL);
        assert_eq!(map(1, 1024), KILL);
    }

    #[test]
    fn pages_are_asked_for_from_anywhere_by_one_call_only() {
        let asking = raw::ASKING as u64;
        let ask = |advice: i32, word| {
            judged(libc::SYS_madvise, 0x1000, [0x1000, 4096, advice as u64, word, 0, 0])
        };
        assert_eq!(ask(libc::MADV_POPULATE_READ, asking), ALLOW);
        assert_eq!(ask(libc::MADV_POPULATE_WRITE, asking), ALLOW);
        for word in [0, asking ^ 1, asking ^ 1 << 40, asking & 0xffff_ffff] {
            assert_eq!(ask(libc::MADV_POPULATE_READ, word), KILL);
        }
        assert_eq!(ask(libc::MADV_DONTNEED, asking), KILL);
        assert_eq!(judged(libc::SYS_mprotect, 0x1000, [0, 0, 22, asking, 0, 0]), KILL);
    }

    #[test]
    fn who_asks_learns_that_there_is_an_exemption() {
        let question = [u64::from(QUESTION), 0, 0, 0, 0, 0];
        assert_eq!(judged(libc::SYS_getppid, GATE, question), ERRNO | YES as u32);
        assert_eq!(judged(libc::SYS_getppid, GATE, [0; 6]), ALLOW);
        assert_eq!(judged(libc::SYS_getppid, 0x1000, question), KILL);
    }

    #[test]
    fn a_filter_that_is_too_long_with_it_is_told() {
        let own = exemption(NAMES).len();
        assert!(own < 256, "{own}");
        let program = vec![plain(RETURN, ALLOW); MOST_INSTRUCTIONS - own];
        assert_eq!(before(&program).unwrap().len(), MOST_INSTRUCTIONS);
        assert_eq!(before(&vec![plain(RETURN, ALLOW); MOST_INSTRUCTIONS - own + 1]), None);
    }
}
