//! Programs under the preloaded runtime, as `softswap run` starts them, with shared counters.

use softswap_cli::library::{own_executable, preloading, remove_variables};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_engine::api::settings::{AreaSpec, Config, ENV_PREFIX};
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) struct Counters {
    fd: OwnedFd,
    pub(crate) stats: Stats,
}

impl Counters {
    pub(crate) fn new() -> Result<Counters, Refusal> {
        let shared = softswap_sys::shared::create(STATS_WORDS);
        let (fd, words) = shared.or_own("cannot create the shared memory for counters")?;
        Ok(Counters { fd, stats: Stats::new(words) })
    }

    /// The program must inherit it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Configures the runtime, with its counters in this shared memory.
    pub(crate) fn environment(&self, config: &Config, library: &Path) -> Vec<(OsString, OsString)> {
        let config = Config {
            stats_fd: Some(self.fd.as_raw_fd()),
            supervisor_pid: i32::try_from(std::process::id()).ok(),
            ..config.clone()
        };
        let settings = config.to_env().into_iter();
        settings
            .map(|(name, value)| (format!("{ENV_PREFIX}{name}").into(), value.into()))
            .chain([("LD_PRELOAD".into(), preloading(library))])
            .collect()
    }

    pub(crate) fn has_engine(&self) -> bool {
        self.stats.get(Counter::Version) != 0
    }

    pub(crate) fn expect_engine(&self) -> Result<(), Refusal> {
        const WHY: &str = "softswap's engine did not start in the measured program; \
                           `softswap doctor` tests the reasons";
        self.has_engine().then_some(()).ok_or_else(|| Refusal::own(WHY))
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.stats.words().iter().map(|word| word.load(Relaxed)).collect()
    }

    /// Returns each counter's increase; for peaks and sizes the result is meaningless.
    pub(crate) fn since(&self, before: &[u64]) -> Result<Stats, Refusal> {
        let words = softswap_sys::memory::reserve_u64(before.len())
            .or_own("the counters cannot be allocated")?;
        for ((word, now), before) in words.iter().zip(self.values()).zip(before) {
            word.store(now.wrapping_sub(*before), Relaxed);
        }
        Ok(Stats::new(words))
    }
}

pub(crate) fn config(memory_bytes: u64, dir: &Path) -> Config {
    let areas = vec![AreaSpec::new(dir)];
    Config { memory_bytes, areas, reserve_bytes: 0, ..Config::default() }
}

pub(crate) fn managed(
    program: impl AsRef<OsStr>,
    config: &Config,
    library: &Path,
) -> Result<(Counters, Command), Refusal> {
    let (counters, mut command) = (Counters::new()?, command(program));
    command.envs(counters.environment(config, library));
    Ok((counters, command))
}

/// Removes the variables of an outer `softswap run`.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    remove_variables(&mut command);
    command
}

pub(crate) fn softswap_run() -> Result<Command, Refusal> {
    let mut command = command(own_executable()?.with_file_name("softswap"));
    command.args(["run", "--quiet", "--reserve", "0"]);
    Ok(command)
}

/// Otherwise the first run in a cgroup would be charged for the file's pages.
pub(crate) fn read_into_page_cache(path: &Path) -> Result<(), String> {
    let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    read.or_text(path.display()).map(drop)
}

pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// /tmp may be in memory.
pub(crate) fn temporary_directory() -> Result<tempfile::TempDir, Refusal> {
    tempfile::tempdir_in("/var/tmp").or_own("cannot create a temporary directory in /var/tmp")
}
