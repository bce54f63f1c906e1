//! Children forked by a raw call through the C library, or by `clone` without CLONE_VM, on their
//! own stack.

use super::fork::{child, forked, parent, prepare};
use super::thread_exit::exit_if_last;
use super::tree_asleep;
use crate::base::errno::{c_result, refused};
use crate::base::issue_call::{Answer, Arguments, issue};
use crate::base::real::Real;
use crate::base::resident::ResidentRanges;
use crate::base::{instance, uaccess};
use crate::memory::sleep_gate;
use softswap_engine::api::engine::Engine;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, never_blocked, with_engine_stack};
use std::cell::UnsafeCell;
use std::ffi::c_void;

fn is_fork(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0
}

fn is_thread(flags: usize) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_VFORK) as usize == libc::CLONE_VM as usize
}

/// A fork with a shared table is refused: the engine's descriptors differ in the child.
fn shares_descriptors(flags: usize) -> bool {
    flags & libc::CLONE_FILES as usize != 0
}

/// `words` lists the addresses and lengths of the memory that the kernel accesses: the arguments,
/// and the IDs that it writes in the parent and in the child.
fn fork_by_call(
    number: i64,
    arguments: Arguments,
    flags: usize,
    words: &[(usize, usize)],
) -> isize {
    if !instance::emulates_signals() && (!instance::is_asleep() || shares_descriptors(flags)) {
        return issue(number, arguments);
    }
    if shares_descriptors(flags) {
        return refused(libc::EINVAL);
    }
    let mut pinned = instance::engine().map(ResidentRanges::new);
    if let Some(pinned) = &mut pinned {
        words.iter().for_each(|(word, len)| pinned.add(*word, *len));
    }
    // The arguments move to the engine's stack: no page can be faulted in at the call.
    forked(move || issue(number, arguments))
}

/// The child of `vfork` would overwrite the parent's frame, so it gets a copy of the memory.
fn answer_fork(_arguments: Arguments) -> isize {
    fork_by_call(libc::SYS_fork, [0; 6], 0, &[])
}

fn answer_clone(arguments: Arguments) -> isize {
    const NUMBER: usize = size_of::<libc::pid_t>();
    let [flags, _, in_parent, in_child, ..] = arguments;
    fork_by_call(libc::SYS_clone, arguments, flags, &[(in_parent, NUMBER), (in_child, NUMBER)])
}

/// Returns `None` if the kernel handles the call: the arguments have another size or cannot be
/// read, or the process has no budget.
fn clone_arguments(at: usize, len: usize) -> Option<[usize; 11]> {
    let has_budget = instance::emulates_signals() || instance::is_asleep();
    (len == size_of::<[usize; 11]>() && has_budget).then(|| uaccess::words(at))?
}

fn answer_clone3(arguments: Arguments) -> isize {
    const NUMBER: usize = size_of::<libc::pid_t>();
    let Some(request) = clone_arguments(arguments[0], arguments[1]) else {
        return issue(libc::SYS_clone3, arguments);
    };
    let [flags, pidfd, in_child, in_parent, _, _, _, _, set_tid, set_tid_size, _] = request;
    let set_tid_bytes = set_tid_size.min(32) * NUMBER;
    let words = [
        (request.as_ptr() as usize, size_of_val(&request)),
        (pidfd, NUMBER),
        (in_child, NUMBER),
        (in_parent, NUMBER),
        (set_tid, set_tid_bytes),
    ];
    fork_by_call(
        libc::SYS_clone3,
        [request.as_ptr() as usize, arguments[1], 0, 0, 0, 0],
        flags,
        &words,
    )
}

/// Returns `None` for a child on its own stack: it returns directly from the C library's `syscall`
/// and bypasses the handler, so it gets no managed memory.
pub(crate) fn answer_for(number: i64, a: usize, b: usize) -> Option<Answer> {
    match number {
        libc::SYS_fork | libc::SYS_vfork => Some(answer_fork),
        libc::SYS_clone if is_fork(a) && b == 0 => Some(answer_clone),
        libc::SYS_clone3 => {
            let [flags, _, _, _, _, stack, ..] = clone_arguments(a, b)?;
            (is_fork(flags) && stack == 0).then_some(answer_clone3)
        }
        _ => None,
    }
}

/// Read first: these arguments may be on the engine's stack, which a signal overwrites.
#[repr(C)]
struct Beginning {
    body: unsafe extern "C" fn(*mut c_void) -> i32,
    argument: *mut c_void,
    /// Signal mask of the caller of `clone`.
    mask: Mask,
}

/// Size of the stack on which a child initializes itself: its own stack may be managed memory.
const CHILD_STACK_BYTES: usize = 256 << 10;
#[repr(align(16))]
struct ChildStack(UnsafeCell<[u8; CHILD_STACK_BYTES]>);
// SAFETY: only the one thread of a forked child uses it, in the child's own copy.
unsafe impl Sync for ChildStack {}
static CHILD_STACK: ChildStack = ChildStack(UnsafeCell::new([0; CHILD_STACK_BYTES]));

extern "C" fn child_stack_end() -> usize {
    CHILD_STACK.0.get() as usize + CHILD_STACK_BYTES
}

/// Initializes a child made by `clone`, and restores the mask, which [`with_engine_stack`] changed.
extern "C" fn initialize(mask: Mask) {
    child();
    if instance::emulates_signals() {
        signals::set_mask(mask & !never_blocked());
    }
}

/// Initializes the child on [`CHILD_STACK`], then calls the program's function on the child's own
/// stack. When that returns, the C library exits only the calling thread.
#[unsafe(naked)]
unsafe extern "C" fn begin(_beginning: *mut Beginning) -> i32 {
    core::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "mov rbx, rdi",
        "mov rbp, rsp",
        "call {stack_end}",
        "mov rsp, rax",
        "mov r12, [rbx]",
        "mov rdi, [rbx + 16]",
        "mov rbx, [rbx + 8]",
        "call {initialize}",
        "mov rdi, rbx",
        "mov rsp, rbp",
        "call r12",
        "mov edi, eax",
        "call {exit_if_last}",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        stack_end = sym child_stack_end,
        initialize = sym initialize,
        exit_if_last = sym exit_if_last,
    )
}

type Clone = unsafe extern "C" fn(
    unsafe extern "C" fn(*mut c_void) -> i32,
    *mut c_void,
    i32,
    *mut c_void,
    usize,
    usize,
    usize,
) -> i32;
static CLONE: Real = Real::new(c"clone");

/// Pins the words that the kernel writes to, and the top of the child's stack, where the C library
/// and [`begin`] store a few words.
fn pin_for_child(
    engine: &'static Engine,
    flags: i32,
    stack_top: usize,
    in_parent: usize,
    in_child: usize,
) -> ResidentRanges<'static> {
    const TOP_BYTES: usize = 256;
    let mut pinned = ResidentRanges::new(engine);
    for (word, flag) in [
        (in_parent, libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD),
        (in_child, libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID),
    ] {
        if flags & flag != 0 {
            pinned.add(word, size_of::<libc::pid_t>());
        }
    }
    pinned.add(stack_top - TOP_BYTES, TOP_BYTES);
    pinned
}

/// glibc's `clone`. Without CLONE_VM it is a fork whose child has its own stack. Like `fork`, it
/// then runs on the engine's stack. Arguments that a variadic call omits have arbitrary values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    stack: *mut c_void,
    flags: i32,
    argument: *mut c_void,
    in_parent: usize,
    tls: usize,
    in_child: usize,
) -> i32 {
    // SAFETY: the C library's `clone` has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, Clone>(CLONE.get()) };
    let (Some(body), false) = (body, stack.is_null()) else {
        return c_result(refused(libc::EINVAL)) as i32;
    };
    tree_asleep::note_child_created();
    // Wake the process: while asleep, the runtime can handle neither threads that it does not
    // create, nor this fork in a multi-threaded process.
    if is_thread(flags as usize) || instance::emulates_signals() {
        instance::awake();
    }
    let is_shared = shares_descriptors(flags as usize);
    let engine = instance::engine();
    let is_managed = engine.is_some() || (instance::is_asleep() && !is_shared);
    if !is_fork(flags as usize) || !is_managed {
        // SAFETY: this is the C library's function of this name; the program passes the arguments.
        return unsafe { real(body, stack, flags, argument, in_parent, tls, in_child) };
    }
    if is_shared {
        return c_result(refused(libc::EINVAL)) as i32;
    }
    let _pinned =
        engine.map(|engine| pin_for_child(engine, flags, stack as usize, in_parent, in_child));
    let mask = signals::current_mask();
    with_engine_stack(move || {
        let mut beginning = Beginning { body, argument, mask };
        let beginning = (&raw mut beginning).cast::<c_void>();
        prepare();
        // SAFETY: `begin` has the signature of a child's first function; it never returns here in
        // the child. The other arguments are the program's.
        let pid = unsafe {
            let begin = begin as unsafe extern "C" fn(*mut Beginning) -> i32;
            let begin = std::mem::transmute::<
                unsafe extern "C" fn(*mut Beginning) -> i32,
                unsafe extern "C" fn(*mut c_void) -> i32,
            >(begin);
            real(begin, stack, flags, beginning, in_parent, tls, in_child)
        };
        raw::preserving_errno(|| parent());
        pid
    })
}

static VFORK: Real = Real::new(c"vfork");

/// Returns the C library's function to jump to, or null if [`vfork`] makes the call.
extern "C" fn before_vfork() -> *const c_void {
    tree_asleep::note_child_created();
    if instance::emulates_signals() && sleep_gate::begin_vfork() {
        return std::ptr::null();
    }
    VFORK.get()
}

extern "C" fn after_vfork(pid: isize) -> isize {
    sleep_gate::end_vfork();
    c_result(pid)
}

/// The child of a sleeping process uses its parent's memory, and has no filter that would make its
/// calls wait. So the parent does not wake until the child has exited or called exec. The child may
/// overwrite this frame, so the return address is in a register, which the kernel preserves for the
/// parent.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "test rax, rax",
        "jnz 3f",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "mov rdi, rax",
        "sub rsp, 8",
        "call {after}",
        "add rsp, 8",
        "2:",
        "ret",
        "3:",
        "jmp rax",
        before = sym before_vfork,
        after = sym after_vfork,
        number = const libc::SYS_vfork,
    )
}
