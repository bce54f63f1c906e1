//! On which processor the calling thread runs.

use crate::descriptor::KeptFile;
use crate::raw;
use rustix::thread::CpuSet;
use std::io;
use std::ops::RangeInclusive;

/// Where the kernel knows of more processors than fit in a set, threads are left
/// where they are.
const MOST: usize = CpuSet::MAX_CPU;
/// How often to ask for what cannot be left undone.
const ATTEMPTS: usize = 8;

/// The processors of this machine.
///
/// ```
/// use softswap_sys::affinity::{Hop, Processors};
///
/// if let Some(processors) = Processors::open() {
///     assert_eq!(processors.hop_to(usize::MAX)?, Hop::Nowhere);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Processors {
    online: KeptFile,
    most: usize,
}

/// What came of moving a thread.
///
/// ```
/// use softswap_sys::affinity::{Hop, Processors};
///
/// # fn example(processors: &Processors) -> std::io::Result<()> {
/// if processors.hop_to(0)? == Hop::Moved {
///     println!("on processor 0, as far as anybody knows");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// It runs there now, or did a moment ago.
    Moved,
    /// There is no such processor, or none that is online.
    Nowhere,
    /// It may not run on all processors that are online: whoever bound it may bind it
    /// anew in a moment, and what was said could not be put back.
    Bound,
}

impl Processors {
    /// `None` where /sys does not tell.
    #[must_use]
    pub fn open() -> Option<Processors> {
        let possible = set_of(&std::fs::read("/sys/devices/system/cpu/possible").ok()?)?;
        let most = (0..MOST).rfind(|number| possible.is_set(*number))? + 1;
        let online = KeptFile::open("/sys/devices/system/cpu/online").ok()?;
        let processors = Processors { online, most };
        processors.online().map(|_| processors)
    }

    /// More than the highest number that any may have.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Those that are online now, whether or not this process may use them.
    fn online(&self) -> Option<CpuSet> {
        set_of(self.online.read(&mut [0; 4096])?)
    }

    /// Moves the calling thread to processor `to`. Then it may run anywhere, as
    /// before: the scheduler leaves it there for as long as nothing speaks against
    /// it. Anything but [`Hop::Moved`] changes nothing.
    ///
    /// # Errors
    /// When the kernel does not say where the thread may run, or does not move it; or,
    /// which it has no reason to, when it does not let it go again.
    pub fn hop_to(&self, to: usize) -> io::Result<Hop> {
        let online = self.online().ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?;
        if to >= MOST || !online.is_set(to) {
            return Ok(Hop::Nowhere);
        }
        let before = allowed()?;
        if (0..MOST).any(|number| online.is_set(number) && !before.is_set(number)) {
            return Ok(Hop::Bound);
        }
        let there = set(to..=to);
        bind(&there)?;
        // Where somebody else has bound it meanwhile, that holds, unless it is in the
        // moment between these two calls.
        if allowed().is_ok_and(|now| now != there) {
            return Ok(Hop::Moved);
        }
        let everywhere = set(0..=MOST - 1);
        // It succeeded a moment ago for one processor; a lack of memory passes.
        let free = || bind(&everywhere);
        let freed = (1..ATTEMPTS).fold(free(), |freed, _| freed.or_else(|_| free()));
        freed.map(|()| Hop::Moved)
    }
}

// By the engine's instruction: filters of the program's own may forbid it these.

/// Where the calling thread may run.
fn allowed() -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    let args = [0, size_of::<CpuSet>(), &raw mut set as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most `size_of::<CpuSet>()` bytes to `set`, which may be
    // any bits.
    raw::check(unsafe { raw::syscall(libc::SYS_sched_getaffinity, args) }).map(|_| set)
}

/// Says where the calling thread may run.
fn bind(set: &CpuSet) -> io::Result<()> {
    let args = [0, size_of::<CpuSet>(), std::ptr::from_ref(set) as usize, 0, 0, 0];
    // SAFETY: the kernel reads `size_of::<CpuSet>()` bytes from `set`.
    raw::check(unsafe { raw::syscall(libc::SYS_sched_setaffinity, args) }).map(drop)
}

fn set(numbers: RangeInclusive<usize>) -> CpuSet {
    let mut set = CpuSet::new();
    numbers.for_each(|number| set.set(number));
    set
}

/// "0-3,8\n" as a set; `None` where it is no such list, or none that fits.
fn set_of(text: &[u8]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for range in std::str::from_utf8(text).ok()?.trim_end().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        (first..=last).for_each(|number| set.set(number));
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::current_cpu;

    fn online_ones() -> Vec<usize> {
        let online = Processors::open().unwrap().online().unwrap();
        (0..MOST).filter(|cpu| online.is_set(*cpu)).collect()
    }

    #[test]
    fn a_thread_hops_and_may_run_where_it_might_before() {
        let processors = Processors::open().unwrap();
        let before = allowed().unwrap();
        let online = online_ones();
        let is_free = online.iter().all(|cpu| before.is_set(*cpu));
        // Where something else is to run there, it may be gone again at once.
        let arrives = |to: usize| {
            (0..1000).any(|_| {
                let expected = if is_free { Hop::Moved } else { Hop::Bound };
                assert_eq!(processors.hop_to(to).unwrap(), expected);
                assert_eq!(allowed().unwrap(), before);
                !is_free || current_cpu() == to
            })
        };
        assert!(online.into_iter().all(arrives));
        assert_eq!(processors.hop_to(MOST).unwrap(), Hop::Nowhere);
        assert_eq!(allowed().unwrap(), before);
    }

    #[test]
    fn a_thread_that_is_bound_stays_so() {
        let online = online_ones();
        let [first, .., last] = online[..] else { return eprintln!("skipped: one processor") };
        std::thread::spawn(move || {
            let one = set(first..=first);
            if bind(&one).is_err() {
                return eprintln!("skipped: processor {first} is not for this process");
            }
            let processors = Processors::open().unwrap();
            assert_eq!(processors.hop_to(first).unwrap(), Hop::Bound);
            assert_eq!(processors.hop_to(last).unwrap(), Hop::Bound);
            assert_eq!(allowed().unwrap(), one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        let ones = |text: &str| {
            set_of(text.as_bytes())
                .map(|set| (0..MOST).filter(|n| set.is_set(*n)).collect::<Vec<_>>())
        };
        assert_eq!(ones("0\n"), Some(vec![0]));
        assert_eq!(ones("0-2,63-65\n"), Some(vec![0, 1, 2, 63, 64, 65]));
        assert_eq!(ones("1023\n"), Some(vec![1023]));
        for bad in ["", "a", "0-", "-1", "0-1024", "1024", "0,,1"] {
            assert_eq!(ones(bad), None, "{bad}");
        }
    }
}
