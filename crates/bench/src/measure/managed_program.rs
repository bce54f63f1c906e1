//! A program under the preloaded runtime, as `softswap run` starts one, whose
//! page of counters the benchmark shares.

use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use softswap_engine::door::settings::{Config, ENV_PREFIX};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of a program that is yet to be started.
pub(crate) struct Counters {
    fd: OwnedFd,
    stats: Stats,
}

impl Counters {
    pub(crate) fn new() -> Result<Counters, Refusal> {
        let (fd, words) = softswap_sys::shared::create(STATS_WORDS).map_err(|error| {
            Refusal::own(format!("cannot make the shared page of figures: {}", plain(&error)))
        })?;
        Ok(Counters { fd, stats: Stats::new(words) })
    }

    /// The program must inherit it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// What the program's environment says, so that the runtime works within
    /// `config` and counts here.
    pub(crate) fn environment(&self, config: &Config, library: &Path) -> Vec<(OsString, OsString)> {
        let config = Config {
            stats_fd: Some(self.fd.as_raw_fd()),
            supervisor_pid: i32::try_from(std::process::id()).ok(),
            ..config.clone()
        };
        let mut preload = OsString::from(library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let settings = config.to_env().into_iter();
        settings
            .map(|(name, value)| (format!("{ENV_PREFIX}{name}").into(), value.into()))
            .chain([("LD_PRELOAD".into(), preload)])
            .collect()
    }

    /// Refuses when the program runs without the engine.
    pub(crate) fn expect_engine(&self) -> Result<(), Refusal> {
        if self.stats.get(Counter::Version) != 0 {
            return Ok(());
        }
        Err(Refusal::own("the runtime did not come up in the task; see `softswap doctor`"))
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.stats.words().iter().map(|word| word.load(Relaxed)).collect()
    }

    /// What was added to each word since `before`; peaks and sizes mean nothing then.
    pub(crate) fn since(&self, before: &[u64]) -> Result<Stats, Refusal> {
        let words = softswap_sys::memory::reserve_u64(before.len())
            .map_err(|error| Refusal::own(format!("no memory: {}", plain(&error))))?;
        let add = |(word, (now, before)): (&AtomicU64, (&AtomicU64, &u64))| {
            word.store(now.load(Relaxed).wrapping_sub(*before), Relaxed);
        };
        words.iter().zip(self.stats.words().iter().zip(before)).for_each(add);
        Ok(Stats::new(words))
    }
}

/// Takes what an outer `softswap run` may have left out of the environment.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with(ENV_PREFIX)) {
            command.env_remove(name);
        }
    }
}

/// A directory on a disk, removed when this is dropped.
pub(crate) fn temporary_directory() -> Result<tempfile::TempDir, Refusal> {
    tempfile::tempdir_in("/var/tmp")
        .map_err(|error| Refusal::own(format!("no temporary directory: {}", plain(&error))))
}
