//! The guard's filter: traps a system call if a pointer argument is in the managed window.
//!
//! The filter survives exec, perhaps into a program without a window or handler. There it matches
//! only addresses that the program chooses. A hint to `mmap` is allowed, because it never displaces
//! the window; `MAP_FIXED_NOREPLACE` fails as if the address were taken. [`crate::aslr`] describes
//! the remaining risk. Calls from the gates ([`crate::raw`]) are allowed.

use crate::pointer_lookup::{MAX_NUMBER, pointer_masks};
use crate::raw;
use std::io;

pub(crate) const ARCH_X86_64: u32 = 0xC000_003E;
// Offsets in struct seccomp_data.
pub(crate) const OFFSET_NUMBER: u32 = 0;
pub(crate) const OFFSET_ARCH: u32 = 4;
pub(crate) const OFFSET_POINTER: u32 = 8;
pub(crate) const OFFSET_ARGUMENTS: u32 = 16;

pub(crate) const SET: u16 = 0x00; // BPF_LD | BPF_W | BPF_IMM
pub(crate) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const SUBTRACT: u16 = 0x14; // BPF_ALU | BPF_SUB | BPF_K
pub(crate) const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
pub(crate) const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
pub(crate) const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(crate) const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
pub(crate) const IF_ANY_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
pub(crate) const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub(crate) const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
/// `si_errno` of a call trapped by [`build_for_callers`].
pub const BY_CALLER: u16 = 0x5357;
const TRAP_BY_CALLER: u32 = TRAP | BY_CALLER as u32;
pub(crate) const ERRNO: u32 = 0x0005_0000;

const MMAP_FLAGS: u32 = 3;
const NOREPLACE: u32 = libc::MAP_FIXED_NOREPLACE as u32;
/// Make the address of `mmap` binding.
const FIXED: u32 = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u32;

const SET_MODE_FILTER: usize = 1;
/// Existing threads, too.
const FLAG_ALL_THREADS: usize = 1;
/// Otherwise kernels before 5.16 disable speculation (SSB, IB) in all filtered threads.
const FLAG_SPEC_ALLOW: usize = 1 << 2;
const FUTEX_OPERATION: u32 = 1;
const PR_SET_NO_NEW_PRIVS: usize = 38;

/// In the kernel's format.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Instruction {
    pub(crate) code: u16,
    pub(crate) if_true: u8,
    pub(crate) if_false: u8,
    pub(crate) value: u32,
}

// SAFETY: all fields are integers.
unsafe impl crate::AnyBits for Instruction {}

pub(crate) fn plain(code: u16, value: u32) -> Instruction {
    branch(code, value, 0, 0)
}

/// The outcomes skip this many instructions.
pub(crate) fn branch(code: u16, value: u32, if_true: usize, if_false: usize) -> Instruction {
    Instruction { code, if_true: if_true as u8, if_false: if_false as u8, value }
}

/// Allows other architectures, and loads the number.
fn by_number() -> [Instruction; 4] {
    [
        plain(LOAD, OFFSET_ARCH),
        branch(IF_EQUAL, ARCH_X86_64, 1, 0),
        plain(RETURN, ALLOW),
        plain(LOAD, OFFSET_NUMBER),
    ]
}

/// Compared with pointers.
#[derive(Debug, Clone, Copy)]
struct Match {
    /// High half of the first address.
    base: u32,
    /// In units of 4 GiB.
    len: u32,
    exempt: u64,
}

/// Adjacent numbers with the same check.
#[derive(Debug, Clone, Copy)]
struct Run {
    first: u32,
    /// Bit i: argument i is a pointer.
    pointers: u8,
    kind: Kind,
}

impl Run {
    fn is_same(&self, other: &Run) -> bool {
        (self.pointers, self.kind) == (other.pointers, other.kind)
    }
}

/// How a call's pointers depend on another argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pointers,
    /// The address counts only with one of [`FIXED`].
    Mmap,
    /// Each operation uses its own pointers; other arguments have any value. A trap for those could
    /// kill the process: waiters are woken with all signals blocked.
    Futex,
    /// A pointer from [`ARCH_GET_FS`] on. Lower operations set a segment base, which in the handler
    /// would affect the handler itself.
    ArchPrctl,
}

/// <asm/prctl.h>: first with a pointer.
const ARCH_GET_FS: u32 = 0x1003;

fn kind_of(number: i64) -> Kind {
    match number {
        libc::SYS_mmap => Kind::Mmap,
        libc::SYS_futex => Kind::Futex,
        libc::SYS_arch_prctl => Kind::ArchPrctl,
        _ => Kind::Pointers,
    }
}

fn runs() -> Vec<Run> {
    let masks = pointer_masks();
    let mut runs: Vec<Run> = Vec::with_capacity(INSTRUCTION_CAPACITY);
    for number in 0..=MAX_NUMBER {
        let pointers = masks.get(number).copied().unwrap_or(0);
        let run = Run { first: number as u32, pointers, kind: kind_of(number as i64) };
        if !runs.last().is_some_and(|last| last.is_same(&run)) {
            runs.push(run);
        }
    }
    runs
}

/// `base` and `len` are multiples of 4 GiB. A binary search over the call number ends in jumps to
/// shared checks, which shortens the kernel's compilation at every start.
pub fn build(base: usize, len: usize, exempt: u64) -> Vec<Instruction> {
    assert!(len > 0 && (base | len).trailing_zeros() >= 32);
    let this = Match { base: (base >> 32) as u32, len: (len >> 32) as u32, exempt };
    // Inside the runtime each allocation costs two system calls.
    let mut code = Vec::with_capacity(INSTRUCTION_CAPACITY);
    code.extend(by_number());
    let mut leaves = Vec::with_capacity(INSTRUCTION_CAPACITY);
    search(&mut code, &runs(), &mut leaves);
    let mut checks: Vec<(Run, usize)> = Vec::with_capacity(INSTRUCTION_CAPACITY / 8);
    for (at, run) in leaves {
        let known = checks.iter().find(|(checked, _)| checked.is_same(&run));
        let start = known.map_or(code.len(), |(_, start)| *start);
        if known.is_none() {
            checks.push((run, start));
            check(&mut code, run, this);
        }
        code[at].value = (start - at - 1) as u32;
    }
    code
}

/// Avoids further allocations.
const INSTRUCTION_CAPACITY: usize = 1536;

/// Binary search over the number. Runs with pointers jump to targets that are set later (`leaves`).
fn search(code: &mut Vec<Instruction>, runs: &[Run], leaves: &mut Vec<(usize, Run)>) {
    if let [run] = runs {
        // Without loads of arguments the kernel can cache the result.
        let is_checked = run.pointers != 0;
        if is_checked {
            leaves.push((code.len(), *run));
        }
        code.push(if is_checked { plain(JUMP, 0) } else { plain(RETURN, ALLOW) });
        return;
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    let start = code.len();
    code.extend([branch(IF_AT_LEAST, high[0].first, 0, 1), plain(JUMP, 0)]);
    search(code, low, leaves);
    code[start + 1].value = (code.len() - start - 2) as u32;
    search(code, high, leaves);
}

/// Traps if one of the run's pointers is in the window.
fn check(code: &mut Vec<Instruction>, run: Run, this: Match) {
    if run.kind == Kind::Futex {
        return check_futex(code, run, this);
    }
    if run.kind == Kind::ArchPrctl {
        code.extend([
            plain(LOAD, OFFSET_ARGUMENTS),
            branch(IF_AT_LEAST, ARCH_GET_FS, 1, 0),
            plain(RETURN, ALLOW),
        ]);
    }
    let mut to_match = run.pointers.count_ones() as usize * 3 - 2;
    for argument in (0..6).filter(|i| run.pointers & (1 << i) != 0) {
        code.push(plain(LOAD, OFFSET_ARGUMENTS + argument * 8 + 4));
        code.push(plain(SUBTRACT, this.base));
        code.push(branch(IF_AT_LEAST, this.len, 0, to_match));
        to_match = to_match.saturating_sub(3);
    }
    code.push(plain(RETURN, ALLOW));
    if run.kind == Kind::Mmap {
        code.extend([
            plain(LOAD, OFFSET_ARGUMENTS + MMAP_FLAGS * 8),
            branch(IF_ANY_SET, FIXED, 1, 0),
            plain(RETURN, ALLOW),
        ]);
    }
    // Last, because few calls get here.
    code.extend([
        plain(LOAD, OFFSET_POINTER),
        plain(AND, !(raw::APART as u32)),
        branch(IF_EQUAL, this.exempt as u32, 0, 3),
        plain(LOAD, OFFSET_POINTER + 4),
        branch(IF_EQUAL, (this.exempt >> 32) as u32, 0, 1),
        plain(RETURN, ALLOW),
    ]);
    if run.kind == Kind::Mmap {
        // A program without a window may test by NOREPLACE if an address is free.
        code.extend([
            plain(LOAD, OFFSET_ARGUMENTS + MMAP_FLAGS * 8),
            branch(IF_ANY_SET, NOREPLACE, 0, 1),
            plain(RETURN, ERRNO | libc::EEXIST as u32),
        ]);
    }
    code.push(plain(RETURN, TRAP));
}

/// One [`check`] for each set of pointers of futex operations.
fn check_futex(code: &mut Vec<Instruction>, run: Run, this: Match) {
    const WORD: u8 = 1 << 0;
    const TIMEOUT: u8 = 1 << 3;
    const SECOND_WORD: u8 = 1 << 4;
    let groups: [(&[i32], u8); 3] = [
        (
            &[libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET, libc::FUTEX_LOCK_PI, libc::FUTEX_LOCK_PI2],
            WORD | TIMEOUT,
        ),
        (
            &[
                libc::FUTEX_REQUEUE,
                libc::FUTEX_CMP_REQUEUE,
                libc::FUTEX_CMP_REQUEUE_PI,
                libc::FUTEX_WAKE_OP,
            ],
            WORD | SECOND_WORD,
        ),
        (&[libc::FUTEX_WAIT_REQUEUE_PI], WORD | TIMEOUT | SECOND_WORD),
    ];
    let with = |pointers| Run { pointers, kind: Kind::Pointers, ..run };
    code.extend([
        plain(LOAD, OFFSET_ARGUMENTS + FUTEX_OPERATION * 8),
        plain(AND, libc::FUTEX_CMD_MASK as u32),
    ]);
    for (operations, pointers) in groups {
        for (index, value) in operations.iter().enumerate() {
            code.push(branch(IF_EQUAL, *value as u32, operations.len() - index, 0));
        }
        let jump = code.len();
        code.push(plain(JUMP, 0));
        check(code, with(pointers), this);
        code[jump].value = (code.len() - jump - 1) as u32;
    }
    check(code, with(WORD), this);
}

/// They map memory, or their buffers are behind nested pointers.
pub const CALLS_BY_CALLER: [i64; 19] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_vmsplice,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ioctl,
];

/// The kernel refuses longer filters.
pub const MAX_CALLERS: usize = 1200;

/// Traps [`CALLS_BY_CALLER`] from these return addresses, after `syscall` instructions: ascending,
/// at most [`MAX_CALLERS`].
///
/// Single addresses rarely match an instruction of the next program; a range of code would. Other
/// calls are decided by number alone, so the kernel caches the result.
pub fn build_for_callers(callers: &[usize]) -> Vec<Instruction> {
    assert!(callers.len() <= MAX_CALLERS && callers.is_sorted());
    let mut filter = by_number().to_vec();
    for (index, number) in CALLS_BY_CALLER.iter().enumerate() {
        filter.push(branch(IF_EQUAL, *number as u32, CALLS_BY_CALLER.len() - index, 0));
    }
    filter.push(plain(RETURN, ALLOW));
    for of_half in callers.chunk_by(|a, b| a >> 32 == b >> 32) {
        filter.push(plain(LOAD, OFFSET_POINTER + 4));
        filter.push(branch(IF_EQUAL, (of_half[0] >> 32) as u32, 1, 0));
        let skip = filter.len();
        filter.extend([plain(JUMP, 0), plain(LOAD, OFFSET_POINTER)]);
        search_callers(&mut filter, of_half);
        filter[skip].value = (filter.len() - skip - 1) as u32;
    }
    filter.push(plain(RETURN, ALLOW));
    filter
}

fn search_callers(filter: &mut Vec<Instruction>, callers: &[usize]) {
    const FEW: usize = 4;
    if callers.len() > FEW {
        let (low, high) = callers.split_at(callers.len() / 2);
        let start = filter.len();
        filter.extend([branch(IF_AT_LEAST, high[0] as u32, 0, 1), plain(JUMP, 0)]);
        search_callers(filter, low);
        filter[start + 1].value = (filter.len() - start - 2) as u32;
        return search_callers(filter, high);
    }
    for caller in callers {
        let is_it = branch(IF_EQUAL, *caller as u32, 0, 1);
        filter.extend([is_it, plain(RETURN, TRAP_BY_CALLER)]);
    }
    filter.push(plain(RETURN, ALLOW));
}

pub(crate) fn trapping(number: i64) -> [Instruction; 4] {
    [
        plain(LOAD, OFFSET_NUMBER),
        branch(IF_EQUAL, number as u32, 0, 1),
        plain(RETURN, TRAP),
        plain(RETURN, ALLOW),
    ]
}

pub fn is_available() -> bool {
    const GET_ACTION_AVAIL: usize = 2;
    let action = TRAP;
    let args = [GET_ACTION_AVAIL, 0, &raw const action as usize, 0, 0, 0];
    // SAFETY: the kernel reads the action's number.
    unsafe { raw::syscall(libc::SYS_seccomp, args) == 0 }
}

/// Installs a filter for all threads: a library loaded earlier may have started some. If one has
/// its own filter, only for the calling thread and later ones. Without CAP_SYS_ADMIN sets
/// no_new_privs.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let filter = program.as_ptr().cast_mut().cast();
    let descriptor = libc::sock_fprog { len: program.len() as u16, filter };
    let attempt = |flags| {
        let args = [SET_MODE_FILTER, flags, &raw const descriptor as usize, 0, 0, 0];
        // SAFETY: the kernel reads `descriptor` and the `program.len()` instructions of `program`.
        raw::check(unsafe { raw::syscall(libc::SYS_seccomp, args) })
    };
    let install = || match attempt(FLAG_SPEC_ALLOW | FLAG_ALL_THREADS) {
        Ok(0) => Ok(()),
        // Refused, or the ID of a thread that could not be synchronized.
        _ => attempt(FLAG_SPEC_ALLOW).map(drop),
    };
    match install() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: the call takes no pointers.
            unsafe { raw::syscall(libc::SYS_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]) };
            install()
        }
        result => result,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const BASE: usize = 0x2100_0000_0000;
    const LEN: usize = 3 << 40;
    const EXEMPT: u64 = 0x7f00_1234_5619;

    pub(crate) fn verdict(program: &[Instruction], number: i64, ip: u64, args: [u64; 6]) -> u32 {
        verdict_within(program, number, ip, args, 64)
    }

    /// Interprets a filter in at most `most` steps.
    pub(crate) fn verdict_within(
        program: &[Instruction],
        number: i64,
        ip: u64,
        args: [u64; 6],
        most: usize,
    ) -> u32 {
        let mut data = vec![number as u32, ARCH_X86_64, ip as u32, (ip >> 32) as u32];
        data.extend(args.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
        let (mut pc, mut acc, mut steps) = (0, 0, 0);
        loop {
            let i = program[pc];
            pc += 1;
            steps += 1;
            assert!(steps < most, "the filter is too long on this path");
            let jump = |taken: bool| usize::from(if taken { i.if_true } else { i.if_false });
            match i.code {
                LOAD => acc = data[i.value as usize / 4],
                SET => acc = i.value,
                AND => acc &= i.value,
                SUBTRACT => acc = u32::wrapping_sub(acc, i.value),
                JUMP => pc += i.value as usize,
                IF_EQUAL => pc += jump(acc == i.value),
                IF_AT_LEAST => pc += jump(acc >= i.value),
                IF_ANY_SET => pc += jump(acc & i.value != 0),
                RETURN => return i.value,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn only_pointer_arguments_in_window_trap() {
        let program = build(BASE, LEN, EXEMPT);
        assert!(program.len() <= INSTRUCTION_CAPACITY, "{}", program.len());
        let masks = pointer_masks();
        for number in 0..(MAX_NUMBER + 40) {
            for argument in 0..6 {
                for address in [BASE as u64, BASE as u64 + LEN as u64 - 1] {
                    let mut args = [1u64; 6];
                    args[MMAP_FLAGS as usize] = libc::MAP_FIXED as u64;
                    if number as i64 == libc::SYS_futex {
                        args[FUTEX_OPERATION as usize] = libc::FUTEX_WAIT_REQUEUE_PI as u64;
                    }
                    if number as i64 == libc::SYS_arch_prctl {
                        args[0] = u64::from(ARCH_GET_FS);
                    }
                    args[argument] = address;
                    let is_pointer = masks.get(number).is_some_and(|m| m & (1 << argument) != 0);
                    let expected = if is_pointer { TRAP } else { ALLOW };
                    assert_eq!(verdict(&program, number as i64, 0x1000, args), expected);
                    for gate in [EXEMPT, EXEMPT + raw::APART as u64] {
                        assert_eq!(verdict(&program, number as i64, gate, args), ALLOW);
                    }
                }
                for address in [BASE as u64 - 1, BASE as u64 + LEN as u64, 0, u64::MAX] {
                    let mut args = [0u64; 6];
                    args[argument] = address;
                    assert_eq!(verdict(&program, number as i64, 0x1000, args), ALLOW);
                }
            }
        }
    }

    /// See futex(2): unused arguments may have any value.
    #[test]
    fn futex_operation_traps_for_its_own_pointers_only() {
        let program = build(BASE, LEN, EXEMPT);
        for operation in 0..=libc::FUTEX_LOCK_PI2 as u64 + 3 {
            let expected: &[usize] = match operation {
                0 | 6 | 9 | 13 => &[0, 3],
                3 | 4 | 5 | 12 => &[0, 4],
                11 => &[0, 3, 4],
                _ => &[0],
            };
            for flags in [0, libc::FUTEX_PRIVATE_FLAG, libc::FUTEX_CLOCK_REALTIME] {
                for argument in (0..6).filter(|argument| *argument != 1) {
                    let mut args = [1, operation | flags as u64, 1, 1, 1, 1];
                    args[argument] = BASE as u64 + 8;
                    let verdict = verdict(&program, libc::SYS_futex, 0x1000, args);
                    let traps = expected.contains(&argument);
                    assert_eq!(verdict == TRAP, traps, "operation {operation}, {argument}");
                }
            }
        }
    }

    #[test]
    fn segment_base_is_not_a_pointer() {
        let program = build(BASE, LEN, EXEMPT);
        for (operation, expected) in [(0x1001, ALLOW), (0x1002, ALLOW), (0x1003, TRAP)] {
            let args = [operation, BASE as u64 + 8, 0, 0, 0, 0];
            assert_eq!(verdict(&program, libc::SYS_arch_prctl, 0x1000, args), expected);
        }
    }

    #[test]
    fn mmap_hint_is_allowed_and_fixed_address_traps() {
        let program = build(BASE, LEN, EXEMPT);
        let ask = |number, address, flags| {
            verdict(&program, number, 0x1000, [address, 4096, 3, flags, u64::MAX, 0])
        };
        let inside = BASE as u64 + 4096;
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        // The kernel uses only the low half.
        for hint in [0, anonymous, 0xffef_ffef, 0x10 << 32, 0x10_0000 << 32] {
            assert_eq!(ask(libc::SYS_mmap, inside, hint), ALLOW, "{hint:#x}");
            assert_eq!(ask(libc::SYS_munmap, inside, hint), TRAP, "{hint:#x}");
        }
        let taken = ERRNO | libc::EEXIST as u32;
        for (fixed, expected) in [(libc::MAP_FIXED, TRAP), (libc::MAP_FIXED_NOREPLACE, taken)] {
            let fixed = anonymous | fixed as u64;
            assert_eq!(ask(libc::SYS_mmap, inside, fixed), expected, "{fixed:#x}");
            assert_eq!(ask(libc::SYS_mmap, 0x1000, fixed), ALLOW, "{fixed:#x}");
        }
    }

    #[test]
    fn calls_trap_by_caller() {
        for count in [1, 4, 5, 9, 372, MAX_CALLERS] {
            // The second half is in another 4 GiB.
            let callers: Vec<usize> = (0..count)
                .map(|at| 0x5555_0000_1000 + at * 0x123 + ((at / (count / 2 + 1)) << 32))
                .collect();
            let filter = build_for_callers(&callers);
            assert!(filter.len() <= 4096, "{}", filter.len());
            let ask = |number, ip: usize| verdict(&filter, number, ip as u64, [0; 6]);
            for caller in &callers {
                for number in CALLS_BY_CALLER {
                    assert_eq!(ask(number, *caller), TRAP_BY_CALLER, "{number} {caller:#x}");
                }
                assert_eq!(ask(libc::SYS_read, *caller), ALLOW);
                for ip in [caller - 2, caller + 1, caller ^ (1 << 33), caller ^ (1 << 31)] {
                    assert_eq!(ask(libc::SYS_mmap, ip), ALLOW, "{ip:#x}");
                }
            }
            assert_eq!(ask(libc::SYS_mmap, 0), ALLOW);
        }
    }

    /// A filter cannot be removed, so this runs in a child.
    #[test]
    fn existing_threads_get_the_filter() {
        use crate::probe::{Ended, in_child};
        let program = trapping(libc::SYS_getppid);
        let ended = in_child(|| {
            // SAFETY: the default action runs no code of this program.
            unsafe { libc::signal(libc::SIGSYS, libc::SIG_DFL) };
            let (start, started) = std::sync::mpsc::channel();
            let earlier = std::thread::spawn(move || {
                let _ = started.recv();
                // SAFETY: the function takes no arguments, and only returns a number.
                unsafe { libc::getppid() }
            });
            if install(&program).is_err() || start.send(()).is_err() {
                return 1;
            }
            let _ = earlier.join();
            2
        });
        assert_eq!(ended.unwrap(), Ended::Signal(libc::SIGSYS));
    }
}
