//! The socket through which a running program is asked and told: where it
//! lies, who is at the other end, and talking over it within bounds.
//!
//! Each user has a directory that nobody else can enter, with one socket per
//! process, `<pid>.sock`. Nothing here waits longer, or takes in more, than
//! its caller allows.

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

/// Names the directory outright.
pub const DIR_VARIABLE: &str = "SOFTSWAP_RUNTIME_DIR";
/// A user's own directory, made when they log in.
const SESSION_VARIABLE: &str = "XDG_RUNTIME_DIR";
/// What [`directories`] asks for.
pub const DIR_VARIABLES: [&str; 2] = [DIR_VARIABLE, SESSION_VARIABLE];
/// A socket's path has at most 107 bytes; process numbers have up to 7 digits.
const LONGEST_DIR_BYTES: usize = 107 - "/1234567.sock".len();
/// Clients that may wait while another one is served.
const BACKLOG: i32 = 16;
/// How long a client that finds too many others waits before it tries again.
const RETRY: Duration = Duration::from_millis(5);

/// Why there is no socket in a directory.
///
/// ```
/// use softswap_sys::control_socket::{self, Unusable};
/// use std::path::Path;
///
/// assert!(matches!(control_socket::check(Path::new("here"), 0), Err(Unusable::Relative)));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A program may change its directory; the socket must be found all the same.
    #[error("is not an absolute path")]
    Relative,
    /// Nor is a symbolic link one: it may lead anywhere.
    #[error("is not a directory")]
    NotADirectory,
    /// Its owner could put another socket there.
    #[error("belongs to uid {0}")]
    Foreign(u32),
    /// So could others.
    #[error("can be written to by others (mode {0:03o}); `chmod 700` closes it")]
    Open(u32),
    /// The kernel takes at most 107 bytes for a socket's path.
    #[error("is too long a path for a socket")]
    TooLong,
    /// By a process of another container, say.
    #[error("has a socket of that number, which another process answers")]
    Taken,
    /// The kernel's reason.
    #[error(transparent)]
    Refused(#[from] io::Error),
}

impl From<Errno> for Unusable {
    fn from(error: Errno) -> Unusable {
        Unusable::Refused(error.into())
    }
}

/// The directories in which a process of `uid` with these variables may have
/// its socket, best first.
pub fn directories(lookup: impl Fn(&str) -> Option<OsString>, uid: u32) -> Vec<PathBuf> {
    let named = |name| lookup(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = named(DIR_VARIABLE) {
        return vec![dir];
    }
    // What `su` or `sudo` left in the environment belongs to somebody else.
    let is_ones_own = |dir: &PathBuf| rustix::fs::stat(dir).is_ok_and(|found| found.st_uid == uid);
    let session = named(SESSION_VARIABLE).filter(|dir| dir.is_absolute()).filter(is_ones_own);
    let session = session.map(|dir| dir.join("softswap"));
    session.into_iter().chain([fallback(uid)]).collect()
}

/// Where a user without a session directory has sockets.
#[must_use]
pub fn fallback(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/softswap-{uid}"))
}

/// Whether a user number is this process's user's own. In a name space that does not
/// map that user the kernel tells another one's: a directory of that name would be in
/// the way of whom it belongs to.
#[must_use]
pub fn is_own_number(uid: u32) -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map");
    map.map_or(true, |map| is_mapped(&map, uid))
}

/// Lines of: first number inside, first outside, how many.
fn is_mapped(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(inside)), Some(Ok(count))) = (numbers.next(), numbers.nth(1)) else {
            return false;
        };
        (inside..inside.saturating_add(count)).contains(&u64::from(uid))
    })
}

/// The path of a process's socket.
#[must_use]
pub fn socket_path(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("{pid}.sock"))
}

/// Checks that a directory is a user's own.
///
/// # Errors
/// What is wrong with it, or that it is not there.
pub fn check(dir: &Path, uid: u32) -> Result<(), Unusable> {
    check_name(dir)?;
    let found = rustix::fs::lstat(dir)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(Unusable::NotADirectory);
    }
    if found.st_uid != uid {
        return Err(Unusable::Foreign(found.st_uid));
    }
    match found.st_mode & 0o777 {
        mode if mode & 0o022 != 0 => Err(Unusable::Open(mode)),
        _ => Ok(()),
    }
}

fn check_name(dir: &Path) -> Result<(), Unusable> {
    match dir.as_os_str().len() {
        _ if !dir.is_absolute() => Err(Unusable::Relative),
        0..=LONGEST_DIR_BYTES => Ok(()),
        _ => Err(Unusable::TooLong),
    }
}

/// Makes the directory if it is not there, and checks it.
///
/// # Errors
/// As for [`check`].
pub fn make(dir: &Path, uid: u32) -> Result<(), Unusable> {
    check_name(dir)?;
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        // Whatever the program's umask is.
        Ok(()) => rustix::fs::chmod(dir, Mode::RWXU)?,
        Err(Errno::EXIST) => {}
        // A file system that is read-only says so first.
        Err(error) => check(dir, uid).map_err(|_| error)?,
    }
    check(dir, uid)
}

/// Removes a socket that nobody answers any more; whether it did. A socket
/// gets its name a moment before it is answered, so the caller makes sure
/// that no process is just starting to.
pub fn remove_stale(path: &Path) -> bool {
    let is_socket = rustix::fs::lstat(path)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket);
    let is_refused = || {
        connect(path, Duration::ZERO)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    is_socket && is_refused() && rustix::fs::unlink(path).is_ok()
}

/// A socket with its name, open for clients.
///
/// ```
/// use softswap_sys::control_socket::{self, Listener};
/// use std::time::Duration;
///
/// # fn example(dir: &std::path::Path, uid: u32) -> Result<(), Box<dyn std::error::Error>> {
/// let listener = Listener::open(dir, uid, std::process::id())?;
/// let client = control_socket::connect(listener.path(), Duration::from_secs(1))?;
/// let server = listener.accept()?;
/// client.write_all(b"stat\n", Duration::from_secs(1))?;
/// assert_eq!(server.read_line(&mut [0; 100], Duration::from_secs(1))?, b"stat");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Opens the socket of process `pid` in `dir`, in place of one that a
    /// process of the same number left behind.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(dir: &Path, uid: u32, pid: u32) -> Result<Listener, Unusable> {
        make(dir, uid)?;
        let path = socket_path(dir, pid);
        let address = SocketAddrUnix::new(&path)?;
        let fd = socket()?;
        // The name appears with this mode, or less by the program's umask.
        let only_ours = Mode::RUSR | Mode::WUSR;
        rustix::fs::fchmod(&fd, only_ours)?;
        match net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                take_over(&path, pid)?;
                net::bind(&fd, &address)?;
            }
            done => done?,
        }
        rustix::fs::chmod(&path, only_ours)?;
        net::listen(&fd, BACKLOG)?;
        Ok(Listener { fd, path })
    }

    /// The socket's name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sleeps until a client is there.
    ///
    /// # Errors
    /// `Interrupted` when a signal came before; the kernel's, and then the next
    /// client may fare better.
    pub fn accept(&self) -> io::Result<Peer> {
        poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)], None)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Peer(net::accept_with(&self.fd, flags)?))
    }
}

/// Removes what has this process's name and is not answered, or is answered
/// by this process: by what it was before it called exec, where somebody it
/// started still holds that open.
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

/// Who is at the other end.
///
/// ```
/// use softswap_sys::control_socket::{Credentials, Peer};
///
/// # fn example(peer: &Peer) -> std::io::Result<()> {
/// let Credentials { pid, uid } = peer.credentials()?;
/// println!("process {pid} of user {uid}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Its process; 0 where that is not visible from here.
    pub pid: i32,
    /// The user it acts for.
    pub uid: u32,
}

/// The other end of a connection.
///
/// ```
/// use softswap_sys::control_socket::Peer;
/// use std::time::Duration;
///
/// # fn example(peer: &Peer) -> std::io::Result<()> {
/// peer.write_all(b"stat\n", Duration::from_secs(1))?;
/// let answer = peer.read_to_end(1 << 16, Duration::from_secs(1))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Peer(OwnedFd);

/// Connects to the process that answers at `path`; waits for at most `limit`
/// where others are ahead.
///
/// # Errors
/// `ConnectionRefused` when nobody answers there; `TimedOut` when too many wait.
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
    /// Who is at the other end: of a client, who connected; of a server, who
    /// opened the socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn credentials(&self) -> io::Result<Credentials> {
        // Not by rustix, which has no process number 0.
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let [level, name] = [libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize];
        let fd = self.0.as_raw_fd() as usize;
        let arguments = [fd, level, name, &raw mut found as usize, &raw mut len as usize, 0];
        // SAFETY: the kernel writes at most `len` bytes to `found`, which is so long, and to
        // `len` how many.
        raw::check(unsafe { raw::syscall(libc::SYS_getsockopt, arguments) })?;
        Ok(Credentials { pid: found.pid, uid: found.uid })
    }

    /// Reads up to a newline, which is left out.
    ///
    /// # Errors
    /// `TimedOut` when it does not come within `limit`, `InvalidData` when not
    /// within `buffer`, `UnexpectedEof` when not at all.
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

    /// Reads until the other end closes.
    ///
    /// # Errors
    /// `TimedOut` when that is not within `limit`, `InvalidData` when not
    /// within `most` bytes.
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

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` when the other end does not take them within `limit`.
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

/// Sleeps until `fd` is ready or has failed; `TimedOut` at `until`.
fn wait_for(fd: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&left)) {
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
