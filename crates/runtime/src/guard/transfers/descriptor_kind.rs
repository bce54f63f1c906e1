//! Kind of file behind a descriptor, which determines how a transfer may be split.

use crate::base::guarded_call;
use crate::base::issue_call::engine_syscall;
use softswap_sys::exemption::BLKGETSIZE64;
use softswap_sys::raw::{self, socket_option};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Read and written at a position. Other writes must not separate the pieces of an append.
    File {
        len: u64,
        /// Inode number XOR device number.
        inode: u64,
    },
    /// Block device: read and written at a position.
    Disk {
        len: u64,
    },
    /// Bytes without boundaries.
    Pipe,
    Stream,
    /// Device with independent bytes: random numbers, zeroes.
    Endless,
    /// The kernel does not read the data: a device drops it, or `fd` is not open for writing.
    Sink,
    Messages,
    /// Any other file: transfers may have boundaries.
    Whole,
}

pub(super) fn kind_of(fd: usize, writes: bool) -> Kind {
    let Ok(stat) = raw::file_status(fd) else {
        return if writes { Kind::Sink } else { Kind::Whole };
    };
    if writes && !may_write(fd) {
        return Kind::Sink;
    }
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => {
            Kind::File { len: stat.st_size.max(0) as u64, inode: stat.st_ino ^ stat.st_dev }
        }
        libc::S_IFBLK => disk(fd),
        libc::S_IFCHR => device(stat.st_rdev, writes),
        libc::S_IFIFO if !is_direct(fd) => Kind::Pipe,
        libc::S_IFSOCK if socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM) => {
            Kind::Stream
        }
        libc::S_IFSOCK => Kind::Messages,
        _ => Kind::Whole,
    }
}

fn disk(fd: usize) -> Kind {
    let mut len = 0_u64;
    let arguments = [fd, BLKGETSIZE64 as usize, &raw mut len as usize, 0, 0, 0];
    match engine_syscall(libc::SYS_ioctl, arguments) {
        0 => Kind::Disk { len },
        _ => Kind::Whole,
    }
}

fn device(number: libc::dev_t, writes: bool) -> Kind {
    const MEMORY_DEVICES: u32 = 1;
    const NULL: u32 = 3;
    const ZERO: u32 = 5;
    const FULL: u32 = 7;
    const RANDOM: u32 = 8;
    const URANDOM: u32 = 9;
    match (libc::major(number), libc::minor(number)) {
        (MEMORY_DEVICES, NULL | ZERO | FULL) if writes => Kind::Sink,
        (MEMORY_DEVICES, ZERO | FULL | RANDOM | URANDOM) => Kind::Endless,
        _ => Kind::Whole,
    }
}

/// O_DIRECT: whole blocks bypass the page cache, or, for a pipe, each write is a packet.
pub(super) fn is_direct(fd: usize) -> bool {
    has_flag(fd, libc::O_DIRECT)
}

fn may_write(fd: usize) -> bool {
    raw::open_flags(fd)
        .is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0)
}

pub(super) fn appends(fd: usize) -> bool {
    has_flag(fd, libc::O_APPEND)
}

fn has_flag(fd: usize, flag: i32) -> bool {
    raw::open_flags(fd).is_none_or(|flags| flags & flag != 0)
}

pub(super) fn file_len(fd: usize) -> Option<usize> {
    raw::file_status(fd).ok().map(|stat| stat.st_size as usize)
}

/// Moves the position of an open file by `by` bytes. Returns the new position or an error.
pub(super) fn seek(fd: usize, by: isize) -> isize {
    if by != 0 {
        guarded_call::note_effect();
    }
    engine_syscall(libc::SYS_lseek, [fd, by as usize, libc::SEEK_CUR as usize, 0, 0, 0])
}

/// Returns true if MSG_TRUNC makes a socket discard the data that it reports as received.
pub(super) fn drops_truncated(fd: usize) -> bool {
    let is_stream = socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM);
    is_stream && socket_option(fd, libc::SO_DOMAIN) != Some(libc::AF_UNIX)
}
