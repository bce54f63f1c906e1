//! `exec`, `posix_spawn`, `system`, `popen`.
//!
//! A child that shares our memory but not our handlers (posix_spawn), and the
//! kernel when it reads argv and envp (exec), can bring nothing in. So all
//! that is handed over is copied out of managed memory first. What the C
//! library finds by itself, the environment, is kept in memory meanwhile;
//! only its array moves out of managed memory, once and for good, because
//! the filter would trap it in the child.

use crate::guard::{Arguments, issue};
use crate::pinned::Pinned;
use crate::real::{c_result, real};
use crate::start;
use softswap_engine::engine::Engine;
use softswap_sys::alloc::HEAP;
use softswap_sys::signals::{self, NEVER_BLOCKED};
use softswap_sys::{PAGE_SIZE, raw};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

type Strings = *const *const c_char;

thread_local! {
    /// Where this thread's last copies lie. Kept rather than freed: after
    /// vfork it is the child that fills it and the parent that stays.
    static BUFFER: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Key whose destructor takes a thread's buffer away; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);

/// While loading, so that the key is one of the first, whose values glibc
/// keeps without allocating.
#[used]
#[unsafe(link_section = ".init_array")]
static MAKE_KEY: extern "C" fn() = make_key;

extern "C" fn make_key() {
    let mut key = 0;
    // SAFETY: valid out-pointer; the destructor has the right signature.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_buffer)) } == 0 {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

extern "C" fn take_buffer(_base: *mut c_void) {
    let (base, len) = BUFFER.replace((0, 0));
    if len > 0 {
        issue(libc::SYS_munmap, [base, len, 0, 0, 0, 0]);
    }
}

/// A value that threads take turns at, with the program's signals blocked: a
/// handler may start programs too. The lock names the process that has it, so
/// that a forked child does not wait for a thread it does not have.
struct Turns<T> {
    owner: AtomicI32,
    value: UnsafeCell<T>,
}

// SAFETY: only whoever has the lock refers to the value.
unsafe impl<T: Send> Sync for Turns<T> {}

impl<T> Turns<T> {
    const fn new(value: T) -> Turns<T> {
        Turns { owner: AtomicI32::new(0), value: UnsafeCell::new(value) }
    }

    fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let mask = signals::block_all();
        // What `body` reads may be out.
        signals::set_mask(!NEVER_BLOCKED);
        let me = std::process::id() as i32;
        let mut seen = 0;
        while let Err(owner) =
            self.owner.compare_exchange_weak(seen, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // Held in the parent when this process was forked off: take it.
            seen = if owner == me { 0 } else { owner };
            if owner == me {
                std::thread::yield_now();
            }
        }
        // SAFETY: the lock is ours.
        let result = body(unsafe { &mut *self.value.get() });
        self.owner.store(0, Ordering::Release);
        signals::set_mask(mask);
        result
    }
}

/// Copies of strings and arrays outside managed memory.
struct Copies {
    base: usize,
    len: usize,
    used: usize,
}

impl Copies {
    /// Room for `len` bytes; `None` when the kernel has none.
    fn with_room(len: usize) -> Option<Copies> {
        let (base, have) = BUFFER.get();
        if have >= len {
            return Some(Copies { base, len: have, used: 0 });
        }
        if have > 0 {
            issue(libc::SYS_munmap, [base, have, 0, 0, 0, 0]);
        }
        let len = len.next_multiple_of(PAGE_SIZE).next_power_of_two();
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let base = issue(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]);
        if base < 0 {
            BUFFER.set((0, 0));
            return None;
        }
        BUFFER.set((base as usize, len));
        if let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) {
            // SAFETY: a live key of this library's.
            unsafe { libc::pthread_setspecific(key, base as *const c_void) };
        }
        Some(Copies { base: base as usize, len, used: 0 })
    }

    fn put(&mut self, bytes: &[u8]) -> *const c_char {
        assert!(self.used + bytes.len() <= self.len, "copies are measured before they are made");
        let at = (self.base + self.used) as *mut u8;
        // SAFETY: within this thread's buffer, which nothing else refers to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        self.used += bytes.len().next_multiple_of(size_of::<usize>());
        at as *const c_char
    }

    /// # Safety
    /// `text` is a C string or null.
    unsafe fn put_text(&mut self, text: *const c_char) -> *const c_char {
        if text.is_null() {
            return text;
        }
        // SAFETY: the caller's promise.
        self.put(unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes_with_nul())
    }

    /// # Safety
    /// `strings` is a null-terminated array of C strings, or null.
    unsafe fn put_strings(&mut self, strings: Strings) -> Strings {
        if strings.is_null() {
            return strings;
        }
        // SAFETY: the caller's promise.
        let count = unsafe { count(strings) };
        let array = (self.base + self.used) as *mut *const c_char;
        self.used += (count + 1) * size_of::<usize>();
        assert!(self.used <= self.len, "copies are measured before they are made");
        for index in 0..count {
            // SAFETY: within the array and within the buffer.
            unsafe { array.add(index).write(self.put_text(*strings.add(index))) };
        }
        // SAFETY: room for the terminator was taken above.
        unsafe { array.add(count).write(std::ptr::null()) };
        array
    }
}

/// # Safety
/// `strings` is a null-terminated array.
unsafe fn count(strings: Strings) -> usize {
    // SAFETY: up to and including the terminator.
    (0..).take_while(|index| unsafe { !(*strings.add(*index)).is_null() }).count()
}

/// Bytes a copy of a string takes.
///
/// # Safety
/// `text` is a C string or null.
unsafe fn text_room(text: *const c_char) -> usize {
    if text.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::strlen(text) + 1 }.next_multiple_of(size_of::<usize>())
}

/// Bytes a copy of an array of strings takes.
///
/// # Safety
/// `strings` is a null-terminated array of C strings, or null.
unsafe fn strings_room(strings: Strings) -> usize {
    if strings.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let count = count(strings);
        let texts: usize = (0..count).map(|index| text_room(*strings.add(index))).sum();
        texts + (count + 1) * size_of::<usize>()
    }
}

unsafe extern "C" {
    static mut environ: Strings;
}

fn environment() -> Strings {
    // SAFETY: reading the pointer; programs that change it meanwhile race with
    // exec in any case.
    unsafe { environ }
}

/// The array that `environ` was last given here, and how many words it has room for.
struct Array {
    at: *mut *const c_char,
    room: usize,
}

// SAFETY: memory of the engine's heap, which belongs to no thread.
unsafe impl Send for Array {}

static ARRAY: Turns<Array> = Turns::new(Array { at: std::ptr::null_mut(), room: 0 });
/// `Array::at` when the C library has put a longer array in its place. One that
/// the program put aside itself may come back and is not touched again.
static SUPERSEDED: AtomicPtr<*const c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Moves the array `environ` points to out of managed memory, for good: the C
/// library's child names it to the kernel, and the filter would trap that. The
/// strings stay where they are. False when there is no memory.
///
/// As everywhere in C, no other thread may change the environment meanwhile.
fn settle_environment() -> bool {
    if !start::is_managed(environment() as usize) {
        return true;
    }
    ARRAY.with(|array| {
        let original = environment();
        if !start::is_managed(original as usize) {
            return true;
        }
        // SAFETY: `environ` is a null-terminated array.
        let words = unsafe { count(original) } + 1;
        let reusable = SUPERSEDED.swap(std::ptr::null_mut(), Ordering::Relaxed) == array.at;
        if !reusable || array.room < words {
            let room = words.next_power_of_two();
            let align = align_of::<usize>();
            let at = HEAP.allocate(room * size_of::<usize>(), align, false).cast::<*const c_char>();
            if at.is_null() {
                return false;
            }
            if reusable && !array.at.is_null() {
                // SAFETY: from the engine's heap, and no longer `environ`.
                unsafe { HEAP.release(array.at.cast()) };
            }
            *array = Array { at, room };
        }
        // SAFETY: room for as many words; C code reads the pointer, as it would
        // one that setenv had changed.
        unsafe {
            std::ptr::copy_nonoverlapping(original, array.at, words);
            std::sync::atomic::fence(Ordering::Release);
            (&raw mut environ).write_volatile(array.at);
        }
        true
    })
}

/// Runs what makes the C library put a longer array in the place of `environ`,
/// and notes when it was ours that it left.
fn growing(call: impl FnOnce() -> i32) -> i32 {
    let before = environment();
    let result = call();
    if environment() != before && HEAP.owns(before as usize) {
        SUPERSEDED.store(before.cast_mut(), Ordering::Relaxed);
    }
    result
}

/// # Safety
/// As `setenv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setenv(name: *const c_char, value: *const c_char, replace: i32) -> i32 {
    real!(setenv: fn(*const c_char, *const c_char, i32) -> i32);
    // SAFETY: the caller's promise.
    growing(|| unsafe { setenv()(name, value, replace) })
}

/// # Safety
/// As `putenv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn putenv(text: *mut c_char) -> i32 {
    real!(putenv: fn(*mut c_char) -> i32);
    // SAFETY: the caller's promise.
    growing(|| unsafe { putenv()(text) })
}

/// Calls a function of the C library whose child reads the environment, with
/// all of that kept in memory.
fn with_environment<R>(engine: &Engine, call: impl FnOnce() -> R) -> R {
    let mut pinned = Pinned::new(engine);
    let strings = environment();
    if !strings.is_null() {
        // SAFETY: a null-terminated array of C strings.
        unsafe {
            let count = count(strings);
            pinned.add(strings as usize, (count + 1) * size_of::<usize>());
            for index in 0..count {
                let text = *strings.add(index);
                pinned.add(text as usize, libc::strlen(text) + 1);
            }
        }
    }
    call()
}

/// Issues execve or execveat with everything copied out of managed memory.
/// The kernel's result; returns only on failure.
///
/// # Safety
/// As the call: a path, and arrays of strings.
unsafe fn exec(number: i64, mut arguments: Arguments, path_at: usize) -> isize {
    let path = arguments[path_at] as *const c_char;
    let argv = arguments[path_at + 1] as Strings;
    let envp = arguments[path_at + 2] as Strings;
    // SAFETY: the caller's promise.
    unsafe {
        let room = text_room(path) + strings_room(argv) + strings_room(envp);
        let Some(mut copies) = Copies::with_room(room) else {
            return -(libc::E2BIG as isize);
        };
        arguments[path_at] = copies.put_text(path) as usize;
        arguments[path_at + 1] = copies.put_strings(argv) as usize;
        arguments[path_at + 2] = copies.put_strings(envp) as usize;
        raw::syscall(number, arguments)
    }
}

/// exec that trapped: made by a raw system call or inside the C library.
pub(crate) fn answer_exec(number: i64, arguments: Arguments) -> isize {
    let path_at = usize::from(number == libc::SYS_execveat);
    // SAFETY: the program's own arguments.
    unsafe { exec(number, arguments, path_at) }
}

/// # Safety
/// As `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> i32 {
    let arguments = [path as usize, argv as usize, envp as usize, 0, 0, 0];
    if start::engine().is_none() {
        return c_result(issue(libc::SYS_execve, arguments)) as i32;
    }
    // SAFETY: the caller's promise.
    c_result(unsafe { exec(libc::SYS_execve, arguments, 0) }) as i32
}

/// # Safety
/// As `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { execve(path, argv, environment()) }
}

/// # Safety
/// As `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: i32, argv: Strings, envp: Strings) -> i32 {
    let empty = c"".as_ptr() as usize;
    let flags = libc::AT_EMPTY_PATH as usize;
    let arguments = [fd as usize, empty, argv as usize, envp as usize, flags, 0];
    // SAFETY: the caller's promise.
    c_result(unsafe { exec(libc::SYS_execveat, arguments, 1) }) as i32
}

/// # Safety
/// As `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> i32 {
    real!(execvpe: fn(*const c_char, Strings, Strings) -> i32);
    // The search is the C library's; what it hands to the kernel must lie
    // outside managed memory before.
    // SAFETY: the caller's promise.
    unsafe {
        if start::engine().is_none() {
            return execvpe()(file, argv, envp);
        }
        let room = text_room(file) + strings_room(argv) + strings_room(envp);
        let Some(mut copies) = Copies::with_room(room) else {
            return c_result(-(libc::E2BIG as isize)) as i32;
        };
        let file = copies.put_text(file);
        let argv = copies.put_strings(argv);
        let envp = copies.put_strings(envp);
        execvpe()(file, argv, envp)
    }
}

/// # Safety
/// As `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, argv, environment()) }
}

/// How a variadic exec finds its arguments: five in registers, the rest on
/// the stack.
const IN_REGISTERS: usize = 5;
/// Most arguments of a variadic exec.
const MAX_LISTED: usize = 2000;

/// Which exec a variadic function stands for.
#[derive(PartialEq)]
enum Listed {
    Path,
    PathAndEnvironment,
    File,
}

/// # Safety
/// `registers` holds the first five variadic words, `stack` the others, of
/// which a null pointer ends the list.
unsafe fn exec_listed(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
    kind: &Listed,
) -> i32 {
    let word = |index: usize| {
        // SAFETY: the caller's promise.
        unsafe {
            if index < IN_REGISTERS {
                *registers.add(index)
            } else {
                *stack.add(index - IN_REGISTERS)
            }
        }
    };
    let mut argv = [std::ptr::null::<c_char>(); MAX_LISTED];
    let mut count = 0;
    while word(count) != 0 {
        if count + 1 == MAX_LISTED {
            return c_result(-(libc::E2BIG as isize)) as i32;
        }
        argv[count] = word(count) as *const c_char;
        count += 1;
    }
    // SAFETY: `argv` ends with a null pointer; the strings are the program's.
    unsafe {
        match kind {
            Listed::Path => execv(path, argv.as_ptr()),
            Listed::PathAndEnvironment => execve(path, argv.as_ptr(), word(count + 1) as Strings),
            Listed::File => execvp(path, argv.as_ptr()),
        }
    }
}

/// Defines a variadic exec: saves the register arguments below the return
/// address and hands both places on.
macro_rules! listed {
    ($name:ident, $inner:ident, $kind:expr) => {
        unsafe extern "C" fn $inner(
            path: *const c_char,
            registers: *const usize,
            stack: *const usize,
        ) -> i32 {
            // SAFETY: both places were set up by the function below.
            unsafe { exec_listed(path, registers, stack, &$kind) }
        }

        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {inner}",
                "add rsp, 40",
                "ret",
                inner = sym $inner,
            )
        }
    };
}

listed!(execl, execl_inner, Listed::Path);
listed!(execle, execle_inner, Listed::PathAndEnvironment);
listed!(execlp, execlp_inner, Listed::File);

type FileActions = *const libc::posix_spawn_file_actions_t;
type SpawnAttributes = *const libc::posix_spawnattr_t;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    FileActions,
    SpawnAttributes,
    Strings,
    Strings,
) -> i32;

/// Bytes of one action in glibc: a tag, then numbers and at most one path.
const ACTION_BYTES: usize = 32;

/// glibc's `posix_spawn_file_actions_t`, as far as it is public.
#[repr(C)]
#[derive(Clone, Copy)]
struct Actions {
    allocated: i32,
    used: i32,
    actions: *const [usize; ACTION_BYTES / size_of::<usize>()],
    pad: [i32; 16],
}

/// Which word of an action is a path: glibc's tags 2 (open) and 3 (chdir).
fn path_word(action: &[usize; ACTION_BYTES / size_of::<usize>()]) -> Option<usize> {
    match action[0] as u32 {
        2 => Some(2),
        3 => Some(1),
        _ => None,
    }
}

/// Room for a copy of file actions with their paths.
///
/// # Safety
/// `actions` is a valid file-actions object.
unsafe fn actions_room(actions: &Actions) -> usize {
    let mut room = size_of::<Actions>() + actions.used as usize * ACTION_BYTES;
    for index in 0..actions.used as usize {
        // SAFETY: within the array; the word is a path.
        unsafe {
            let action = &*actions.actions.add(index);
            room += path_word(action).map_or(0, |word| text_room(action[word] as *const c_char));
        }
    }
    room
}

/// # Safety
/// As `actions_room`, with as much room made.
unsafe fn put_actions(copies: &mut Copies, actions: &Actions) -> FileActions {
    let count = actions.used as usize;
    let array = (copies.base + copies.used) as *mut [usize; ACTION_BYTES / size_of::<usize>()];
    copies.used += count * ACTION_BYTES;
    for index in 0..count {
        // SAFETY: within both arrays; the word is a path.
        unsafe {
            let mut action = *actions.actions.add(index);
            if let Some(word) = path_word(&action) {
                action[word] = copies.put_text(action[word] as *const c_char) as usize;
            }
            array.add(index).write(action);
        }
    }
    let copy = Actions { actions: array, ..*actions };
    // SAFETY: plain data, read as bytes.
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const copy).cast::<u8>(), size_of::<Actions>()) };
    copies.put(bytes).cast()
}

/// # Safety
/// As `posix_spawn(3)`.
unsafe fn spawn(
    real: Spawn,
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: FileActions,
    attributes: SpawnAttributes,
    argv: Strings,
    envp: Strings,
) -> i32 {
    // SAFETY: the caller's promise throughout.
    unsafe {
        let Some(engine) = start::engine() else {
            return real(pid, path, actions, attributes, argv, envp);
        };
        let parsed = actions.cast::<Actions>().as_ref();
        let room = text_room(path)
            + strings_room(argv)
            + strings_room(envp)
            + parsed.map_or(0, |actions| actions_room(actions))
            + size_of::<libc::posix_spawnattr_t>();
        let Some(mut copies) = Copies::with_room(room) else { return libc::ENOMEM };
        let path = copies.put_text(path);
        let argv = copies.put_strings(argv);
        let envp = copies.put_strings(envp);
        let actions = match parsed {
            Some(parsed) => put_actions(&mut copies, parsed),
            None => actions,
        };
        let attributes = match attributes.cast::<u8>().as_ref() {
            Some(first) => {
                let len = size_of::<libc::posix_spawnattr_t>();
                copies.put(std::slice::from_raw_parts(first, len)).cast()
            }
            None => attributes,
        };
        let mut made = 0;
        let result =
            with_environment(engine, || real(&raw mut made, path, actions, attributes, argv, envp));
        if result == 0 && !pid.is_null() {
            pid.write(made);
        }
        result
    }
}

/// Defines an interposed `posix_spawn`.
macro_rules! spawning {
    ($name:ident) => {
        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: FileActions,
            attributes: SpawnAttributes,
            argv: Strings,
            envp: Strings,
        ) -> i32 {
            real!($name: fn(*mut libc::pid_t, *const c_char, FileActions, SpawnAttributes,
                            Strings, Strings) -> i32);
            // SAFETY: the caller's promise.
            unsafe { spawn($name(), pid, path, actions, attributes, argv, envp) }
        }
    };
}

spawning!(posix_spawn);
spawning!(posix_spawnp);

/// # Safety
/// As `popen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    real!(popen: fn(*const c_char, *const c_char) -> *mut c_void);
    // SAFETY: the caller's promise.
    unsafe {
        let Some(engine) = start::engine() else { return popen()(command, mode) };
        let copies = Copies::with_room(text_room(command));
        let Some(mut copies) = copies.filter(|_| settle_environment()) else {
            raw::set_errno(libc::ENOMEM);
            return std::ptr::null_mut();
        };
        let command = copies.put_text(command);
        with_environment(engine, || popen()(command, mode))
    }
}

/// `system(3)`. Written out, because the C library's waits for the command
/// inside, and the environment would be kept in memory for so long.
///
/// # Safety
/// As `system(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> i32 {
    real!(system: fn(*const c_char) -> i32);
    // SAFETY: the caller's promise.
    unsafe {
        if start::engine().is_none() || command.is_null() {
            return system()(command);
        }
        system_by_spawn(command)
    }
}

/// Waits for `pid`, through interruptions; its status. Not a place where the
/// thread can be cancelled: what was changed for it would stay changed.
fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = -1;
    loop {
        let arguments = [pid as usize, &raw mut status as usize, 0, 0, 0, 0];
        let waited = c_result(issue(libc::SYS_wait4, arguments));
        if waited == pid as isize {
            return status;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return -1;
        }
    }
}

/// How many threads are in `system`, and what the first of them found there
/// for SIGINT and SIGQUIT; the last one puts it back.
struct Ignoring {
    count: usize,
    found: [libc::sigaction; 2],
}

const IGNORED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
// SAFETY: plain data; all-zero is SIG_DFL.
const DEFAULT: libc::sigaction = unsafe { std::mem::zeroed() };
static IGNORING: Turns<Ignoring> = Turns::new(Ignoring { count: 0, found: [DEFAULT; 2] });

/// Ignores both signals; what the program has for them.
fn begin_ignoring() -> [libc::sigaction; 2] {
    IGNORING.with(|ignoring| {
        if ignoring.count == 0 {
            let ignore = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..DEFAULT };
            for (signal, found) in IGNORED.iter().zip(&mut ignoring.found) {
                // SAFETY: valid places for both.
                unsafe { signals::sigaction(*signal, &raw const ignore, found) };
            }
        }
        ignoring.count += 1;
        ignoring.found
    })
}

fn end_ignoring() {
    IGNORING.with(|ignoring| {
        ignoring.count -= 1;
        if ignoring.count == 0 {
            for (signal, found) in IGNORED.iter().zip(&ignoring.found) {
                // SAFETY: what the kernel gave for this signal.
                unsafe { signals::sigaction(*signal, found, std::ptr::null_mut()) };
            }
        }
    });
}

/// # Safety
/// `command` is a C string.
unsafe fn system_by_spawn(command: *const c_char) -> i32 {
    // SAFETY: all objects are locals, initialised before use; POSIX's order:
    // ignore INT and QUIT and block CHLD until the command has ended.
    unsafe {
        let found = begin_ignoring();
        let mut block: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut block);
        libc::sigaddset(&raw mut block, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const block, &raw mut before);

        let mut defaults: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut defaults);
        for (signal, action) in IGNORED.iter().zip(&found) {
            if action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&raw mut defaults, *signal);
            }
        }
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        libc::posix_spawnattr_init(&raw mut attributes);
        libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const before);
        libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const defaults);
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(&raw mut attributes, flags as i16);

        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"--".as_ptr(), command, std::ptr::null()];
        let mut pid = 0;
        let failed = posix_spawn(
            &raw mut pid,
            c"/bin/sh".as_ptr(),
            std::ptr::null(),
            &raw const attributes,
            argv.as_ptr(),
            environment(),
        );
        let status = if failed == 0 {
            wait_for(pid)
        } else {
            const SHELL_FAILED: i32 = 127 << 8;
            SHELL_FAILED
        };
        libc::posix_spawnattr_destroy(&raw mut attributes);
        end_ignoring();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        status
    }
}
