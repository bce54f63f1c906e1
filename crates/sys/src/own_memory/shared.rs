//! Words of memory shared between `softswap run` and the engine that it started. Their memfd is
//! sealed against shrinking: they stay valid regardless of what the other process does with it.

use crate::PAGE_SIZE;
use crate::raw;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

pub fn create(words: usize) -> io::Result<(OwnedFd, &'static [AtomicU64])> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = crate::descriptor::move_high(rustix::fs::memfd_create(c"softswap-stats", flags)?);
    check_file_size(words as u64 * 8)?;
    rustix::fs::ftruncate(&fd, (words * 8) as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    let mapped = open(&fd, words)?;
    Ok((fd, mapped))
}

/// Refuses a file that is larger than `ulimit -f` allows: the kernel would send SIGXFSZ.
fn check_file_size(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if most < bytes => {
            let (allowed, needed) = (most / 1024, bytes.div_ceil(1024));
            let reason =
                format!("`ulimit -f` allows files of {allowed} KiB; raise it to {needed} KiB");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, reason))
        }
        _ => Ok(()),
    }
}

/// Returns true if the file has `words` words, at least 1, and a seal against shrinking.
pub fn is_shared(fd: impl AsFd, words: usize) -> bool {
    let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
    words > 0
        && seals.contains(SealFlags::SHRINK)
        && rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_size >= (words * 8) as i64)
}

pub fn open_all(fd: impl AsFd) -> io::Result<&'static [AtomicU64]> {
    let words = rustix::fs::fstat(&fd)?.st_size as usize / 8;
    open(fd, words)
}

/// Maps words until the process exits. Fails with EINVAL unless [`is_shared`].
pub fn open(fd: impl AsFd, words: usize) -> io::Result<&'static [AtomicU64]> {
    let len = words * 8;
    if !is_shared(&fd, words) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let base = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)?
    };
    // SAFETY: the mapping is page-aligned, `len` bytes long, never unmapped, and backed throughout
    // (size checked, sealed against shrinking). Both processes use the words only as atomics.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), words) })
}

pub fn open_inherited(number: i32, words: usize) -> io::Result<&'static [AtomicU64]> {
    if number < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is borrowed only for this call, which queries and maps it. If the
    // number is not open, the kernel returns EBADF; `open` refuses any other file.
    open(unsafe { rustix::fd::BorrowedFd::borrow_raw(number) }, words)
}

/// Creates and maps a file, which keeps the words however the process exits. Replaces an existing
/// file only if it begins with `magic`: otherwise fails with EEXIST.
pub fn map_new_file(path: &Path, words: usize, magic: u64) -> io::Result<&'static [AtomicU64]> {
    if path.symlink_metadata().is_ok() && !begins_with(path, magic)? {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&fresh)?;
    let mapped = map_words(&file, words).and_then(|words| {
        std::fs::rename(&fresh, path)?;
        Ok(words)
    });
    mapped.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}

pub fn advise_order(words: &'static [AtomicU64], is_random: bool) -> io::Result<()> {
    let advice = if is_random { Advice::Random } else { Advice::Sequential };
    let (start, len) = (words.as_ptr().cast_mut(), size_of_val(words));
    // SAFETY: advice about readahead does not change the words.
    unsafe { rustix::mm::madvise(start.cast(), len, advice) }.map_err(Into::into)
}

fn begins_with(path: &Path, word: u64) -> io::Result<bool> {
    let mut first = [0; 8];
    // Check the type first: opening a pipe would wait for its other end.
    Ok(path.metadata()?.is_file()
        && File::open(path)?.read_at(&mut first, 0)? == first.len()
        && u64::from_le_bytes(first) == word)
}

fn map_words(file: &File, words: usize) -> io::Result<&'static [AtomicU64]> {
    let len = words * 8;
    file.set_len(len as u64)?;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let base = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)?
    };
    // SAFETY: the mapping is page-aligned, `len` bytes long and never unmapped; the words are used
    // only as atomics. If another process truncates the file, an access raises a signal, but reads
    // no other memory.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), words) })
}

/// Spare memory for [`make_private`]; 0 for none. At the limit on address space (RLIMIT_AS) the
/// kernel refuses new mappings, but still moves existing ones.
static SPARE: AtomicUsize = AtomicUsize::new(0);
/// Address of words that are private already: they are also private in children of this process.
static PRIVATE: AtomicUsize = AtomicUsize::new(0);

fn pages_of(words: &[AtomicU64]) -> (usize, usize) {
    let start = words.as_ptr() as usize & !(PAGE_SIZE - 1);
    let end = words.as_ptr() as usize + size_of_val(words);
    (start, (end - start).next_multiple_of(PAGE_SIZE))
}

/// Lets [`make_private`] succeed in a forked child under any limits, for one set of words.
pub fn prepare_private(words: &[AtomicU64]) -> io::Result<()> {
    let (_, len) = pages_of(words);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let base = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE)?
    };
    SPARE.store(base as usize, Relaxed);
    Ok(())
}

/// Replaces words by a private copy at the same address, in a forked child.
pub fn make_private(words: &'static [AtomicU64]) -> io::Result<()> {
    let (start, len) = pages_of(words);
    if PRIVATE.load(Relaxed) == start {
        return Ok(());
    }
    let values: Vec<u64> = words.iter().map(|word| word.load(Relaxed)).collect();
    let spare = SPARE.swap(0, Relaxed);
    // SAFETY: the pages hold only these words (a mapping of their own, or whole pages reserved for
    // them), and stay readable and writable words. The child has one thread, so no access happens
    // in between. The spare memory has the same length, and nothing else uses it.
    unsafe {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as usize;
        let mapped = raw::syscall(libc::SYS_mmap, [start, len, access, flags, usize::MAX, 0]);
        if mapped == -(libc::ENOMEM as isize) && spare != 0 {
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
            raw::check(raw::syscall(libc::SYS_mremap, [spare, len, len, flags, start, 0]))?;
        } else {
            raw::check(mapped)?;
        }
    }
    PRIVATE.store(start, Relaxed);
    for (word, value) in words.iter().zip(values) {
        word.store(value, Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_share_words() {
        let (fd, first) = create(700).unwrap();
        let second = open(&fd, 700).unwrap();
        first[699].store(42, Relaxed);
        assert_eq!(second[699].load(Relaxed), 42);
    }

    #[test]
    fn private_copy_is_detached() {
        let (fd, first) = create(700).unwrap();
        let second = open(&fd, 700).unwrap();
        first[3].store(7, Relaxed);
        prepare_private(first).unwrap();
        make_private(first).unwrap();
        assert_eq!(first[3].load(Relaxed), 7);
        first[3].store(8, Relaxed);
        assert_eq!(second[3].load(Relaxed), 7);
    }

    #[test]
    fn wrong_descriptor_is_rejected() {
        let (fd, _) = create(8).unwrap();
        assert!(open(&fd, 9).is_err());
        assert!(open(std::fs::File::open("/dev/null").unwrap(), 1).is_err());
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
    }
}
