//! A seccomp filter of the program's own, with what the engine needs in front.
//!
//! A program that sandboxes itself lists the calls that it makes itself. The
//! engine makes others, in the program's threads, whenever a page is brought
//! in or out; a filter that kills for them would end the program at a touch of
//! its own memory. So an exemption goes first: a call of [`NEEDED`] that comes
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
//! The list has what works on memory that is mapped or on descriptors that are
//! open. It is no small power: who has taken over the program and jumps to the
//! engine's instruction can write to an open file, make memory executable, and
//! enter the engine's rings, whose queues lie in the program's memory. So a
//! filter holds what the program does by itself, not what is done to it.

use crate::raw;
use crate::seccomp::{
    ALLOW, ARCH_X86_64, IF_EQUAL, Instruction, JUMP, LOAD, OFFSET_ARCH, OFFSET_ARGUMENTS,
    OFFSET_NUMBER, OFFSET_POINTER, RETURN, SET, plain,
};
use crate::uffd;

/// Most instructions that the kernel takes in one filter.
pub const MOST_INSTRUCTIONS: usize = 4096;

const TCGETS: u32 = 0x5401;
const BLKDISCARD: u32 = 0x1277;
const BLKGETSIZE64: u32 = 0x8008_1272;

/// What the engine calls while it brings pages in and out.
const NEEDED: &[i64] = &[
    libc::SYS_ioctl,
    libc::SYS_futex,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_io_uring_enter,
    libc::SYS_mincore,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_process_vm_readv,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sigaltstack,
    libc::SYS_clock_gettime,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_mremap,
    libc::SYS_getsockopt,
    libc::SYS_prlimit64,
    libc::SYS_userfaultfd,
    // To say why the program is stopped.
    libc::SYS_write,
    libc::SYS_exit_group,
];

/// Of `ioctl` only these: paging, and three questions.
const REQUESTS: &[u32] = &[
    uffd::IOCTL_COPY as u32,
    uffd::IOCTL_ZEROPAGE as u32,
    uffd::IOCTL_MOVE as u32,
    uffd::IOCTL_WRITEPROTECT as u32,
    uffd::IOCTL_REGISTER as u32,
    uffd::IOCTL_API as u32,
    BLKDISCARD,
    BLKGETSIZE64,
    TCGETS,
];

fn if_equal(value: u32, then: usize, otherwise: usize) -> Instruction {
    Instruction { code: IF_EQUAL, if_true: then as u8, if_false: otherwise as u8, value }
}

/// The exemption: it ends where the program's filter begins.
fn exemption(gate: u64) -> Vec<Instruction> {
    // What the program's filter judges goes on to the last instruction.
    let caller = [
        plain(LOAD, OFFSET_POINTER),
        if_equal(gate as u32, 0, 3),
        plain(LOAD, OFFSET_POINTER + 4),
        if_equal((gate >> 32) as u32, 0, 1),
        plain(RETURN, ALLOW),
    ];
    let mut requests = vec![plain(LOAD, OFFSET_ARGUMENTS + 8)];
    for (index, request) in REQUESTS.iter().enumerate() {
        // Over the rest, and the jump behind it.
        requests.push(if_equal(*request, REQUESTS.len() - index, 0));
    }
    requests.push(plain(JUMP, caller.len() as u32));
    let rest = NEEDED.len() + 1 + requests.len() + caller.len();
    let mut code = vec![
        plain(LOAD, OFFSET_ARCH),
        if_equal(ARCH_X86_64, 1, 0),
        plain(JUMP, (3 + rest) as u32),
        plain(LOAD, OFFSET_NUMBER),
        if_equal(libc::SYS_rt_sigreturn as u32, 0, 1),
        plain(RETURN, ALLOW),
    ];
    for (index, number) in NEEDED.iter().enumerate() {
        let to_requests = NEEDED.len() - index;
        let skipped = if *number == libc::SYS_ioctl { 0 } else { requests.len() };
        code.push(if_equal(*number as u32, to_requests + skipped, 0));
    }
    code.push(plain(JUMP, (requests.len() + caller.len()) as u32));
    code.extend(requests);
    code.extend(caller);
    // As the accumulator was when the filter began.
    code.push(plain(SET, 0));
    code
}

/// The program's filter behind the exemption; `None` where both together are
/// more than the kernel takes.
#[must_use]
pub fn before(program: &[Instruction]) -> Option<Vec<Instruction>> {
    let mut code = exemption(raw::exempt_instruction_pointer());
    code.extend_from_slice(program);
    (code.len() <= MOST_INSTRUCTIONS).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::tests::verdict;

    const GATE: u64 = 0x1234_5678_9019;
    const KILL: u32 = 0x8000_0000;

    fn judged(number: i64, ip: u64, args: [u64; 6]) -> u32 {
        let mut code = exemption(GATE);
        code.push(plain(RETURN, KILL));
        verdict(&code, number, ip, args)
    }

    #[test]
    fn what_the_engine_needs_passes_from_its_instruction_and_nowhere_else() {
        assert_eq!(judged(libc::SYS_rt_sigreturn, 0x1000, [0; 6]), ALLOW);
        for number in (0..600).filter(|number| *number != libc::SYS_rt_sigreturn) {
            let request = u64::from(REQUESTS[REQUESTS.len() - 1]);
            let args = [3, request, 0, 0, 0, 0];
            let expected = if NEEDED.contains(&number) { ALLOW } else { KILL };
            assert_eq!(judged(number, GATE, args), expected, "{number}");
            for other in [GATE + raw::APART as u64, GATE - 1, GATE ^ 1 << 40, 0x1000] {
                assert_eq!(judged(number, other, args), KILL, "{number}");
            }
        }
    }

    #[test]
    fn of_ioctl_only_what_is_listed_passes() {
        const TIOCSTI: u64 = 0x5412;
        for request in REQUESTS {
            let args = [3, u64::from(*request), 0, 0, 0, 0];
            assert_eq!(judged(libc::SYS_ioctl, GATE, args), ALLOW, "{request:#x}");
        }
        assert_eq!(judged(libc::SYS_ioctl, GATE, [0, TIOCSTI, 0, 0, 0, 0]), KILL);
    }

    #[test]
    fn a_filter_that_is_too_long_with_it_is_told() {
        let own = exemption(GATE).len();
        let program = vec![plain(RETURN, ALLOW); MOST_INSTRUCTIONS - own];
        assert_eq!(before(&program).unwrap().len(), MOST_INSTRUCTIONS);
        assert_eq!(before(&vec![plain(RETURN, ALLOW); MOST_INSTRUCTIONS - own + 1]), None);
    }
}
