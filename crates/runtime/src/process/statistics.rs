//! The page of statistics, and to which process it belongs: the one that `softswap run` has
//! started, whatever it becomes by exec.

use crate::memory::asleep;
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use softswap_engine::door::settings::Config;
use softswap_sys::{memory, own_descriptors, raw, shared};
use std::sync::atomic::{AtomicI32, Ordering};

/// The descriptor of the statistics, which only this process's execs inherit.
static STATISTICS: AtomicI32 = AtomicI32::new(-1);

/// Whether `softswap run` started this very process.
pub(crate) fn is_supervised(config: &Config) -> bool {
    // A filter that an earlier program left may forbid to ask.
    let parent = raw::parent_process();
    parent > 0 && Some(parent) == config.supervisor_pid
}

/// The statistics of this process: what `softswap run` looks at, or memory of its own.
pub(crate) fn map(config: &Config) -> std::io::Result<Stats> {
    let stats = find_statistics(config)?;
    // Where it is refused a child needs what it asks for then.
    let _ = shared::prepare_private(stats.words());
    Ok(stats)
}

/// The page of a process that sleeps says so.
pub(crate) fn say_asleep(config: &Config) {
    if let Some(stats) = shared_statistics(config) {
        stats.set(Counter::BudgetBytes, config.memory_bytes);
        stats.set(Counter::UsedBytes, 0);
        stats.set(Counter::Asleep, 1);
        asleep::tell(stats);
    }
}

fn find_statistics(config: &Config) -> std::io::Result<Stats> {
    match shared_statistics(config) {
        Some(stats) => Ok(stats),
        None => Ok(Stats::new(memory::reserve_u64(STATS_WORDS)?)),
    }
}

/// The page is for the process that `softswap run` started, whatever it becomes by exec; those
/// it starts in turn count for themselves.
fn shared_statistics(config: &Config) -> Option<Stats> {
    let number = config.stats_fd?;
    // SAFETY: borrowed for these calls only; a wrong number is refused by them.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    if is_supervised(config) {
        let words = shared::open(fd, STATS_WORDS).ok()?;
        // What this process becomes by exec goes on with it.
        own_descriptors::keep(number);
        STATISTICS.store(number, Ordering::Relaxed);
        return Some(Stats::new(words));
    }
    if shared::is_shared(fd, STATS_WORDS) {
        // Come by way of posix_spawn, from the process that it is for.
        // SAFETY: takes no pointers; nobody here knows the number yet.
        unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
    }
    None
}

/// In a forked child: its statistics are its own, and so are those of what it
/// starts.
pub(crate) fn leave() {
    let number = STATISTICS.swap(-1, Ordering::Relaxed);
    if number >= 0 {
        own_descriptors::forget(number);
        // SAFETY: takes no pointers; nobody uses the number any more.
        unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
    }
}
