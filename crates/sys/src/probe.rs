//! Tests which features the kernel allows this process to use, for `softswap doctor`. Trials that
//! could kill the process or have lasting effects run in a forked child.

use crate::memory::{PAGE_SIZE, Page, reserve_bytes, reserve_pages};
use crate::uffd::Uffd;
use crate::{raw, seccomp};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::path::Path;

pub use crate::uffd::{
    FEATURE_MOVE, FEATURE_SIGBUS, FEATURE_WP_ASYNC, Privilege, offered_features,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Exit(i32),
    Signal(i32),
}

pub(crate) fn in_child(body: impl FnOnce() -> i32) -> io::Result<Ended> {
    // SAFETY: the child runs `body`, which in all of this crate only makes system calls, allocates
    // nothing and takes no locks, and exits by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        let _ =
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        // A panic that unwound further would end the thread, and the process with status 0.
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: exits the child immediately, without the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one `int` to `status`.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(if libc::WIFSIGNALED(status) {
        Ended::Signal(libc::WTERMSIG(status))
    } else {
        Ended::Exit(libc::WEXITSTATUS(status))
    })
}

/// Runs `body` in a child. The status is 0, or the errno of its error, limited to 1..=200.
fn trial(body: impl FnOnce() -> io::Result<()>) -> io::Result<Ended> {
    in_child(|| {
        body().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO).clamp(1, 200), |()| 0)
    })
}

pub fn holds_in_child(body: impl FnOnce() -> bool) -> io::Result<bool> {
    Ok(in_child(|| i32::from(!body()))? == Ended::Exit(0))
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

fn status_to_result(ended: Ended) -> io::Result<()> {
    match ended {
        Ended::Exit(0) => Ok(()),
        Ended::Exit(errno) => Err(io::Error::from_raw_os_error(errno)),
        Ended::Signal(signal) => {
            Err(io::Error::other(format!("signal {signal} killed the trial process")))
        }
    }
}

/// Touches a registered, missing page in a child, which SIGBUS must kill.
pub fn fault_as_sigbus() -> io::Result<()> {
    let page = reserve_bytes(PAGE_SIZE)?;
    let at = page.as_mut_ptr();
    let ended = trial(|| {
        let uffd = Uffd::open_sigbus()?;
        // SAFETY: the page was reserved for this trial, and the child has its own copy.
        unsafe { uffd.register(at as usize, PAGE_SIZE)? };
        // The default action must take place, regardless of handlers before the fork.
        // SAFETY: the default action runs no code of this program.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        // SAFETY: the page is mapped and writable. The write succeeds or kills the child.
        unsafe { at.write_volatile(1) };
        Err(unsupported())
    })?;
    match ended {
        Ended::Signal(libc::SIGBUS) => Ok(()),
        other => status_to_result(other),
    }
}

pub fn move_page() -> io::Result<()> {
    let bytes = reserve_bytes(2 * PAGE_SIZE)?;
    let from = bytes.as_mut_ptr() as usize;
    let to = from + PAGE_SIZE;
    let ended = trial(|| {
        let uffd = Uffd::open_sigbus()?;
        if !uffd.has_move() {
            return Err(unsupported());
        }
        // SAFETY: `from` is aligned memory for this trial, to which the child has no reference.
        unsafe { (from as *mut u64).write_volatile(0x5157_4150) };
        // SAFETY: `to` is a page for this trial, to which the child has no reference.
        unsafe { uffd.register(to, PAGE_SIZE)? };
        match uffd.move_pages(to, from, PAGE_SIZE).error {
            Some(error) => Err(error),
            // SAFETY: the page is present; otherwise SIGBUS kills the child, which is reported.
            None if unsafe { (to as *const u64).read_volatile() } == 0x5157_4150 => Ok(()),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    })?;
    status_to_result(ended)
}

/// Traps `getppid` by an unprivileged filter in a child, which SIGSYS must kill.
pub fn seccomp_trap() -> io::Result<()> {
    let filter = seccomp::trapping(libc::SYS_getppid);
    let ended = trial(|| {
        rustix::thread::set_no_new_privs(true)?;
        seccomp::install(&filter)?;
        // SAFETY: the default action runs no code of this program.
        unsafe { libc::signal(libc::SIGSYS, libc::SIG_DFL) };
        // SAFETY: the call takes no arguments, and only returns a number.
        let _ = unsafe { raw::syscall(libc::SYS_getppid, [0; 6]) };
        Err(unsupported())
    })?;
    match ended {
        Ended::Signal(libc::SIGSYS) => Ok(()),
        other => status_to_result(other),
    }
}

pub fn io_uring_nop() -> io::Result<()> {
    let mut ring = io_uring::IoUring::new(4)?;
    // SAFETY: an operation without effect refers to no memory.
    unsafe { ring.submission().push(&io_uring::opcode::Nop::new().build()) }
        .map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    match ring.completion().next() {
        Some(entry) if entry.result() >= 0 => Ok(()),
        Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
        None => Err(io::Error::other("no completion arrived")),
    }
}

pub fn reserve_window(address: usize, len: usize) -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags};
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
    let got = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::without_provenance_mut(address), len, access, flags)?
    };
    // SAFETY: the range was mapped just above, and nothing refers to it.
    unsafe { rustix::mm::munmap(got, len)? };
    if got.addr() == address { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
}

pub fn nameless_file(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?)
}

/// Writes one page to `file` and reads it back, by direct I/O. `file` keeps the flag O_DIRECT.
pub fn direct_round_trip(file: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT)?;
    let [out, back] = reserve_pages(2)? else {
        return Err(io::Error::other("no frames"));
    };
    let (Page(out), Page(back)) = (out, back);
    out.fill(0xA5);
    if rustix::io::pwrite(&file, out, 0)? != PAGE_SIZE
        || rustix::io::pread(&file, &mut back[..], 0)? != PAGE_SIZE
        || out != back
    {
        return Err(io::Error::other(
            "the page that was read differs from the page that was written",
        ));
    }
    Ok(())
}

/// Opens a userfaultfd through `/dev/userfaultfd`, which also handles kernel faults.
pub fn userfaultfd_device() -> io::Result<()> {
    const NEW: usize = 0xAA00;
    let device =
        rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let args = [device.as_raw_fd() as usize, NEW, libc::O_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: the request takes no pointers, and opens a new descriptor.
    let fd = raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) })?;
    // SAFETY: the descriptor was opened just now and has no other owner.
    drop(unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(fd as i32) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a signal its default action. The test executable ignores SIGPIPE.
    fn reset(signal: i32) {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }

    #[test]
    fn message_without_reader_raises_no_signal() {
        let lives_on = holds_in_child(|| {
            reset(libc::SIGPIPE);
            let Ok((reader, writer)) = rustix::pipe::pipe() else { return false };
            drop(reader);
            let is_moved = rustix::stdio::dup2_stderr(&writer).is_ok();
            raw::write_stderr(b"a message without a reader");
            is_moved
        });
        assert!(lives_on.unwrap());
    }

    #[test]
    fn test_page_beyond_the_file_size_limit_raises_no_signal() {
        let scratch = tempfile::tempdir().unwrap();
        let file = crate::file::SwapFile::open(scratch.path()).unwrap();
        let is_refused = holds_in_child(|| {
            reset(libc::SIGXFSZ);
            let limit = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            let is_set = rustix::process::setrlimit(rustix::process::Resource::Fsize, limit);
            is_set.is_ok() && file.with_a_page(|| ()).is_err()
        });
        assert!(is_refused.unwrap());
    }

    #[test]
    fn child_exit_reasons_are_distinguished() {
        assert_eq!(in_child(|| 7).unwrap(), Ended::Exit(7));
        assert!(status_to_result(Ended::Signal(libc::SIGKILL)).is_err());
        assert_eq!(
            status_to_result(Ended::Exit(libc::EPERM)).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
    }

    #[test]
    fn occupied_window_is_rejected() {
        let taken = reserve_bytes(PAGE_SIZE).unwrap();
        assert!(reserve_window(taken.as_ptr() as usize, PAGE_SIZE).is_err());
    }

    #[test]
    fn offered_features_work() {
        let Ok(offered) = offered_features(Privilege::UserModeOnly) else { return };
        if offered & FEATURE_SIGBUS != 0 {
            fault_as_sigbus().unwrap();
        }
        if offered & FEATURE_MOVE != 0 {
            move_page().unwrap();
        }
    }
}
