//! The page of statistics of the process that `softswap run` has started, also after an exec.

use crate::memory::asleep;
use softswap_engine::api::settings::Config;
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use softswap_sys::{memory, own_descriptors, raw, shared};
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptor of the page, or -1. Only programs that this process becomes by exec may use it.
static STATISTICS: AtomicI32 = AtomicI32::new(-1);

pub(crate) fn is_supervised(config: &Config) -> bool {
    // A filter installed before exec may forbid the call.
    let parent = raw::parent_process();
    parent > 0 && Some(parent) == config.supervisor_pid
}

pub(crate) fn map(config: &Config) -> std::io::Result<Stats> {
    let stats = find_statistics(config)?;
    // On failure a forked child creates its private memory itself.
    let _ = shared::prepare_private(stats.words());
    Ok(stats)
}

pub(crate) fn mark_asleep(config: &Config) {
    if let Some(stats) = shared_statistics(config) {
        stats.set(Counter::BudgetBytes, config.memory_bytes);
        stats.set(Counter::UsedBytes, 0);
        stats.set(Counter::Asleep, 1);
        asleep::publish(stats);
    }
}

fn find_statistics(config: &Config) -> std::io::Result<Stats> {
    match shared_statistics(config) {
        Some(stats) => Ok(stats),
        None => Ok(Stats::new(memory::reserve_u64(STATS_WORDS)?)),
    }
}

/// Returns `None` unless `softswap run` started this process.
fn shared_statistics(config: &Config) -> Option<Stats> {
    let number = config.stats_fd?;
    // SAFETY: the descriptor is borrowed for these calls only, which reject a wrong number.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    if is_supervised(config) {
        let words = shared::open(fd, STATS_WORDS).ok()?;
        // A program that this process becomes by exec continues to use the page.
        own_descriptors::keep(number);
        STATISTICS.store(number, Ordering::Relaxed);
        return Some(Stats::new(words));
    }
    if shared::is_shared(fd, STATS_WORDS) {
        // The owner of the page has started this process by posix_spawn.
        // SAFETY: the call takes no pointers; nothing in this process uses the descriptor yet.
        unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
    }
    None
}

/// Gives a forked child and its descendants their own statistics.
pub(crate) fn detach() {
    let number = STATISTICS.swap(-1, Ordering::Relaxed);
    if number >= 0 {
        own_descriptors::forget(number);
        // SAFETY: the call takes no pointers; nothing uses the descriptor any more.
        unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
    }
}
