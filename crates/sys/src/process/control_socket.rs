//! The control socket of a running program: its path (`<pid>.sock` in a directory of the user), the
//! identity of the peer, and I/O within the caller's limits of time and bytes.

use crate::raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const DIR_VARIABLE: &str = "SOFTSWAP_RUNTIME_DIR";
const SESSION_VARIABLE: &str = "XDG_RUNTIME_DIR";
pub const DIR_VARIABLES: [&str; 2] = [DIR_VARIABLE, SESSION_VARIABLE];
/// A socket's path has at most 107 bytes, and a PID at most 7 digits.
const MAX_DIR_BYTES: usize = 107 - "/1234567.sock".len();
/// Clients that may wait while another one is served.
const BACKLOG: i32 = 16;
const RETRY: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A program may change its working directory, but the socket must stay reachable.
    #[error("is not an absolute path")]
    Relative,
    /// Includes symbolic links, which may lead anywhere.
    #[error("is not a directory")]
    NotADirectory,
    /// Its owner could replace the socket.
    #[error("belongs to uid {0}")]
    OtherOwner(u32),
    #[error("can be written to by others (mode {0:03o}); `chmod 700` closes it")]
    Open(u32),
    #[error("is too long a path for a socket")]
    TooLong,
    /// A process of another container, for example, uses the socket.
    #[error("has a socket for this PID on which another process answers")]
    Taken,
    #[error(transparent)]
    Refused(#[from] io::Error),
}

impl From<Errno> for Unusable {
    fn from(error: Errno) -> Unusable {
        Unusable::Refused(error.into())
    }
}

/// Returns the directories that may have the socket of a process of `uid`, best first.
pub fn directories(lookup: impl Fn(&str) -> Option<OsString>, uid: u32) -> Vec<PathBuf> {
    let named = |name| lookup(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = named(DIR_VARIABLE) {
        return vec![dir];
    }
    // After `su` or `sudo` the variable may name another user's directory.
    let is_own_directory =
        |dir: &PathBuf| rustix::fs::stat(dir).is_ok_and(|found| found.st_uid == uid);
    let session = named(SESSION_VARIABLE).filter(|dir| dir.is_absolute()).filter(is_own_directory);
    let session = session.map(|dir| dir.join("softswap"));
    session.into_iter().chain([fallback(uid)]).collect()
}

pub fn fallback(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/softswap-{uid}"))
}

/// Returns false for the overflow UID, which the kernel reports if the user namespace does not map
/// the user. It is another user's, whose directory would be blocked.
pub fn is_own_number(uid: u32) -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map");
    map.map_or(true, |map| is_mapped(&map, uid))
}

/// Parses lines of: first number inside, first outside, count.
fn is_mapped(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(inside)), Some(Ok(count))) = (numbers.next(), numbers.nth(1)) else {
            return false;
        };
        (inside..inside.saturating_add(count)).contains(&u64::from(uid))
    })
}

pub fn socket_path(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("{pid}.sock"))
}

pub fn check(dir: &Path, uid: u32) -> Result<(), Unusable> {
    check_name(dir)?;
    let found = rustix::fs::lstat(dir)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(Unusable::NotADirectory);
    }
    if found.st_uid != uid {
        return Err(Unusable::OtherOwner(found.st_uid));
    }
    match found.st_mode & 0o777 {
        mode if mode & 0o022 != 0 => Err(Unusable::Open(mode)),
        _ => Ok(()),
    }
}

fn check_name(dir: &Path) -> Result<(), Unusable> {
    match dir.as_os_str().len() {
        _ if !dir.is_absolute() => Err(Unusable::Relative),
        0..=MAX_DIR_BYTES => Ok(()),
        _ => Err(Unusable::TooLong),
    }
}

pub fn make(dir: &Path, uid: u32) -> Result<(), Unusable> {
    check_name(dir)?;
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        // Independent of the program's umask.
        Ok(()) => rustix::fs::chmod(dir, Mode::RWXU)?,
        Err(Errno::EXIST) => {}
        // On a read-only file system mkdir may report that instead of EEXIST.
        Err(error) => check(dir, uid).map_err(|_| error)?,
    }
    check(dir, uid)
}

/// Removes a socket that no process serves; returns true if it was removed. The caller must ensure
/// that no process is starting: a socket gets its name before it is served.
pub fn remove_stale(path: &Path) -> bool {
    let is_socket = rustix::fs::lstat(path)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
    let is_refused = || {
        connect(path, Duration::ZERO)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    is_socket && is_refused() && rustix::fs::unlink(path).is_ok()
}

#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Opens the socket of process `pid`. Replaces that of an earlier process with the same PID.
    pub fn open(dir: &Path, uid: u32, pid: u32) -> Result<Listener, Unusable> {
        make(dir, uid)?;
        let path = socket_path(dir, pid);
        let address = SocketAddrUnix::new(&path)?;
        let fd = socket()?;
        // The name appears with this mode, or less according to the program's umask.
        let owner_only = Mode::RUSR | Mode::WUSR;
        rustix::fs::fchmod(&fd, owner_only)?;
        match net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                take_over(&path, pid)?;
                net::bind(&fd, &address)?;
            }
            done => done?,
        }
        rustix::fs::chmod(&path, owner_only)?;
        net::listen(&fd, BACKLOG)?;
        Ok(Listener { fd, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a client. Fails with `Interrupted` after a signal; after other errors, retry.
    pub fn accept(&self) -> io::Result<Peer> {
        poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)], None)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Peer(net::accept_with(&self.fd, flags)?))
    }
}

/// Removes a socket that no process serves, or that this process opened before exec.
fn take_over(path: &Path, pid: u32) -> Result<(), Unusable> {
    if let Ok(peer) = connect(path, Duration::ZERO)
        && peer.credentials()?.pid == pid as i32
    {
        return Ok(rustix::fs::unlink(path)?);
    }
    if remove_stale(path) { Ok(()) } else { Err(Unusable::Taken) }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// The process's ID; 0 if the process is outside this process's PID namespace.
    pub pid: i32,
    pub uid: u32,
}

#[derive(Debug)]
pub struct Peer(OwnedFd);

/// Connects. Fails with `ConnectionRefused` without a server, `TimedOut` if the queue stays full.
pub fn connect(path: &Path, limit: Duration) -> io::Result<Peer> {
    let address = SocketAddrUnix::new(path)?;
    let until = Instant::now() + limit;
    let fd = socket()?;
    loop {
        match net::connect(&fd, &address) {
            Ok(()) => return Ok(Peer(fd)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(RETRY),
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Peer {
    /// Returns the identity of the process that connected, or of the one that opened the socket.
    pub fn credentials(&self) -> io::Result<Credentials> {
        // Not through rustix, which cannot represent PID 0.
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let [level, name] = [libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize];
        let fd = self.0.as_raw_fd() as usize;
        let arguments = [fd, level, name, &raw mut found as usize, &raw mut len as usize, 0];
        // SAFETY: the kernel writes at most `len` bytes, its size, to `found`, and writes to `len`.
        raw::check(unsafe { raw::syscall(libc::SYS_getsockopt, arguments) })?;
        Ok(Credentials { pid: found.pid, uid: found.uid })
    }

    /// Reads up to a newline, which is not returned. Fails with `TimedOut`, `InvalidData` if the
    /// line is longer than `buffer`, `UnexpectedEof` if the connection is closed.
    pub fn read_line<'b>(&self, buffer: &'b mut [u8], limit: Duration) -> io::Result<&'b [u8]> {
        let until = Instant::now() + limit;
        let mut len = 0;
        loop {
            if len == buffer.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let got = self.read_some(&mut buffer[len..], until)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let fresh = len..len + got;
            len += got;
            if let Some(at) = buffer[fresh.clone()].iter().position(|&byte| byte == b'\n') {
                return Ok(&buffer[..fresh.start + at]);
            }
        }
    }

    /// Reads all bytes. Fails with `TimedOut`, or `InvalidData` if there are more than `most`.
    pub fn read_to_end(&self, most: usize, limit: Duration) -> io::Result<Vec<u8>> {
        let until = Instant::now() + limit;
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.read_some(&mut buffer, until)? {
                0 => return Ok(all),
                got if all.len() + got > most => return Err(io::ErrorKind::InvalidData.into()),
                got => all.extend_from_slice(&buffer[..got]),
            }
        }
    }

    fn read_some(&self, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(got) => return Ok(got),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(self.0.as_fd(), PollFlags::IN, until)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes all bytes. Fails with `TimedOut` after `limit`.
    pub fn write_all(&self, bytes: &[u8], limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        let mut rest = bytes;
        while !rest.is_empty() {
            match net::send(&self.0, rest, net::SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(self.0.as_fd(), PollFlags::OUT, until)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn wait_for(fd: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> io::Result<()> {
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: remaining.as_secs() as i64,
            tv_nsec: i64::from(remaining.subsec_nanos()),
        };
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[path = "control_socket_tests.rs"]
mod tests;
