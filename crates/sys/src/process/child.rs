//! A supervisor's signal queue, a child that is killed with its parent, and death by its signal.

use crate::raw;
use crate::signals::{self, Action};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    pub signal: i32,
    /// False if the kernel or the terminal sent it: those signal the whole process group.
    pub from_process: bool,
    /// The sending process's ID; 0 if that process is outside this process's PID namespace.
    pub sender: i32,
    user: u32,
    value: Option<u64>,
}

/// True if SIGPIPE was ignored at start: before `main`, Rust's library ignores it.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// A bit for each standard stream that was closed at start: Rust's library opens it.
static CLOSED_STREAMS: AtomicU8 = AtomicU8::new(0);

/// Calls [`note_inherited`] before `main`, in a program that invokes this macro.
#[macro_export]
macro_rules! note_inherited_before_main {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static NOTE_INHERITED: extern "C" fn() = $crate::child::note_inherited;
    };
}

pub extern "C" fn note_inherited() {
    let is_ignored = |action: Action| action.handler == libc::SIG_IGN;
    PIPE_WAS_IGNORED.store(signals::action_of(libc::SIGPIPE).is_ok_and(is_ignored), Relaxed);
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    let args = [streams.as_mut_ptr() as usize, streams.len(), 0, 0, 0, 0];
    // SAFETY: the kernel reads and writes the three entries, and does not wait.
    unsafe { raw::syscall(libc::SYS_poll, args) };
    let closed = streams.iter().filter(|stream| stream.revents & libc::POLLNVAL != 0);
    CLOSED_STREAMS.store(closed.map(|stream| 1 << stream.fd).sum(), Relaxed);
}

/// Signals that are blocked in this thread and read from a descriptor instead.
#[derive(Debug)]
pub struct SignalQueue {
    fd: OwnedFd,
    mask_before: libc::sigset_t,
    child_signal_was_ignored: bool,
}

impl SignalQueue {
    /// Blocks `signals` and SIGCHLD. The process must have one thread: signals could reach others.
    pub fn hold(signals: &[i32]) -> io::Result<SignalQueue> {
        let child_signal_was_ignored = set_default(libc::SIGCHLD)?;
        let held = set_of(signals.iter().chain(&[libc::SIGCHLD]));
        let mask_before = set_mask(libc::SIG_BLOCK, &held)?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the function reads `held`, and for -1 opens a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const held, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened just now and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(SignalQueue { fd, mask_before, child_signal_was_ignored })
    }

    pub fn wait(&self, at_most: Duration) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let at_most = Timespec::try_from(at_most).ok();
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], at_most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub fn next(&self) -> io::Result<Option<ReceivedSignal>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes to `info`, which has that size.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: `info` consists of integers, which were zero before the kernel wrote them.
        let info = unsafe { info.assume_init() };
        let from_process = matches!(info.ssi_code, libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE);
        let sender = if from_process { info.ssi_pid as i32 } else { 0 };
        Ok(Some(ReceivedSignal {
            signal: info.ssi_signo as i32,
            from_process,
            sender,
            user: info.ssi_uid,
            value: (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_ptr),
        }))
    }

    /// Prepares `command`: its process starts with the signals and standard streams that this
    /// process inherited, keeps the descriptors `kept`, and is killed when this thread exits.
    pub fn prepare(&self, command: &mut Command, kept: &[BorrowedFd<'_>]) {
        let parent = std::process::id();
        let mask = self.mask_before;
        let ignore_child_signal = self.child_signal_was_ignored;
        let kept: Vec<i32> = kept.iter().map(AsRawFd::as_raw_fd).collect();
        let in_child = move || -> io::Result<()> {
            let death = Some(rustix::process::Signal::KILL);
            rustix::process::set_parent_process_death_signal(death)?;
            // The parent may have exited before the line above took effect.
            let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
            if now as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            keep_open(&kept)?;
            if ignore_child_signal {
                // SAFETY: an ignored signal runs no code of this program.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            }
            restore_inherited();
            set_mask(libc::SIG_SETMASK, &mask).map(drop)
        };
        // SAFETY: between fork and exec the closure only makes system calls; it neither allocates
        // nor takes locks that another thread may have held.
        unsafe { command.pre_exec(in_child) };
    }

    /// Dies by `signal`, or exits with 128 + `signal` if it cannot (first process of a container).
    pub fn die_by(self, signal: i32) -> ! {
        let _ = set_default(signal);
        // SAFETY: the default action runs no code of this program.
        unsafe { libc::raise(signal) };
        let _ = set_mask(libc::SIG_UNBLOCK, &set_of(&[signal]));
        std::process::exit(128 + signal)
    }
}

/// Prepares a process in a new session, without blocked signals, with the descriptors `kept`.
pub fn detach_from_session(command: &mut Command, kept: &[BorrowedFd<'_>]) {
    let kept: Vec<i32> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    let in_child = move || -> io::Result<()> {
        rustix::process::setsid()?;
        // Also closes descriptors that a managed program passes to its tree, if allowed.
        let args = [3, u32::MAX as usize, libc::CLOSE_RANGE_CLOEXEC as usize, 0, 0, 0];
        // SAFETY: the call takes numbers, and changes flags of this child's descriptors only.
        let _ = raw::check(unsafe { raw::syscall(libc::SYS_close_range, args) });
        keep_open(&kept)?;
        set_mask(libc::SIG_SETMASK, &set_of(&[])).map(drop)
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates
    // nor takes locks that another thread may have held.
    unsafe { command.pre_exec(in_child) };
}

/// Restores what Rust's library has changed, in a child that is about to call exec.
fn restore_inherited() {
    if PIPE_WAS_IGNORED.load(Relaxed) {
        // SAFETY: an ignored signal runs no code of this program.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
    let closed = CLOSED_STREAMS.load(Relaxed);
    for fd in (0..3).filter(|fd| closed & 1 << fd != 0) {
        // SAFETY: Rust's library has opened /dev/null as this descriptor, and no code of the child
        // uses it.
        unsafe { libc::close(fd) };
    }
}

fn keep_open(numbers: &[i32]) -> io::Result<()> {
    numbers.iter().try_for_each(|number| {
        // SAFETY: the child has its own copy of the descriptor and does not close it before exec.
        // If the caller closed the descriptor before the fork, the child only fails with EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(*number) };
        Ok(rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?)
    })
}

fn set_of<'s>(signals: impl IntoIterator<Item = &'s i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both functions write to `set`, which the first initialises; an invalid signal number
    // only makes the second fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers, and changes no memory of this process.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn forward(pid: i32, received: &ReceivedSignal) -> io::Result<()> {
    let Some(value) = received.value else { return send(pid, received.signal) };
    // `siginfo_t` of SI_QUEUE: signal and error number, code, sender and user, value.
    let mut info = [0_u64; 16];
    info[0] = received.signal as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = u64::from(received.sender as u32) | u64::from(received.user) << 32;
    info[3] = value;
    let args = [pid as usize, received.signal as usize, info.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads `info`, which has the size of a `siginfo_t`.
    raw::check(unsafe { raw::syscall(libc::SYS_rt_sigqueueinfo, args) }).map(drop)
}

/// Closes descriptors that this process inherited, except the standard streams: those without
/// close-on-exec, which Rust's library and this project set on all that they open.
pub fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&number| number > 2)
        .collect();
    for number in numbers {
        // SAFETY: F_GETFD only returns a flag. If the number is not open the kernel returns EBADF.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: Rust code sets close-on-exec on what it opens, so nothing in this process
            // owns the descriptor.
            unsafe { libc::close(number) };
        }
    }
}

pub fn real_time_signals() -> std::ops::RangeInclusive<i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Resets a signal to its default; returns true if it was ignored before.
fn set_default(signal: i32) -> io::Result<bool> {
    // SAFETY: the default action runs no code of this program.
    match unsafe { libc::signal(signal, libc::SIG_DFL) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        before => Ok(before == libc::SIG_IGN),
    }
}

fn set_mask(how: i32, mask: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the function reads `mask`, and writes a set to `before`.
    match unsafe { libc::pthread_sigmask(how, mask, before.as_mut_ptr()) } {
        // SAFETY: the function has succeeded, so it has initialized `before`.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
