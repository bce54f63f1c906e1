//! What an engine is told when it starts.
//!
//! `softswap run` settles flags, environment and file into one [`Config`] and
//! hands it to the runtime through environment variables with a prefix of
//! their own ([`Config::to_env`]), so that the runtime parses nothing a user wrote.

use crate::io::poll::mode::Mode;
use std::path::PathBuf;

/// The smallest budget an engine accepts: below it the fixed parts (fault
/// contexts, bounce buffers, staging) would leave no room for pages.
pub const MIN_MEMORY_BYTES: u64 = 8 << 20;

/// Settled settings of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// DRAM budget: resident + pool + staging + bounce + metadata, in bytes.
    pub memory_bytes: u64,
    /// Directory in which the unlinked swap file is made.
    pub swap_dir: PathBuf,
    /// Largest size of the swap file in bytes; `None`: free space less the reserve.
    pub swap_bytes: Option<u64>,
    /// Free space that is always left on the swap directory's file system, in bytes.
    pub reserve_bytes: u64,
    /// Share of the budget that compressed pages may take, in percent.
    pub pool_percent: u8,
    /// Compress pages with LZ4 before they leave DRAM.
    pub compress: bool,
    /// Programs started by the program run under softswap too, each with its own budget.
    pub manage_children: bool,
    /// Take pages out by write-protect and copy even where UFFDIO_MOVE works.
    pub avoid_move: bool,
    /// Use pread/pwrite even where io_uring works.
    pub avoid_io_uring: bool,
    /// How a thread waits for a single page from the disk; may be changed later.
    pub poll: Mode,
    /// Descriptor of the shared statistics page, inherited from `softswap run`.
    pub stats_fd: Option<i32>,
    /// Process that shares that page; its direct child reports there.
    pub supervisor_pid: Option<i32>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            memory_bytes: 1 << 30,
            swap_dir: PathBuf::from("/var/tmp"),
            swap_bytes: None,
            reserve_bytes: 512 << 20,
            pool_percent: 40,
            compress: true,
            manage_children: true,
            avoid_move: false,
            avoid_io_uring: false,
            poll: Mode::Auto,
            stats_fd: None,
            supervisor_pid: None,
        }
    }
}

/// Prefix of the variables that carry a [`Config`] to the runtime.
pub const ENV_PREFIX: &str = "SOFTSWAP_RT_";

impl Config {
    /// The variables (without [`ENV_PREFIX`]) that describe this configuration.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let flag = |on: bool| if on { "1" } else { "0" }.to_string();
        let mut env = vec![
            ("MEMORY", self.memory_bytes.to_string()),
            ("SWAP_DIR", self.swap_dir.to_string_lossy().into_owned()),
            ("RESERVE", self.reserve_bytes.to_string()),
            ("POOL_PERCENT", self.pool_percent.to_string()),
            ("COMPRESS", flag(self.compress)),
            ("CHILDREN", flag(self.manage_children)),
            ("AVOID_MOVE", flag(self.avoid_move)),
            ("AVOID_IO_URING", flag(self.avoid_io_uring)),
            ("POLL", self.poll.to_string()),
        ];
        if let Some(bytes) = self.swap_bytes {
            env.push(("SWAP_BYTES", bytes.to_string()));
        }
        if let Some(fd) = self.stats_fd {
            env.push(("STATS_FD", fd.to_string()));
        }
        if let Some(pid) = self.supervisor_pid {
            env.push(("SUPERVISOR_PID", pid.to_string()));
        }
        env
    }

    /// Reads what [`Config::to_env`] wrote. `lookup` gets names without the
    /// prefix. `None` when there is no configuration (MEMORY absent);
    /// the name of the variable when one cannot be understood.
    pub fn from_env(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Option<Result<Config, &'static str>> {
        let memory = lookup("MEMORY")?;
        let parse = || -> Result<Config, &'static str> {
            fn parsed<T: std::str::FromStr>(
                value: Option<String>,
                name: &'static str,
            ) -> Result<Option<T>, &'static str> {
                value.map(|v| v.parse().map_err(|_| name)).transpose()
            }
            let flag = |name: &'static str, default: bool| match lookup(name).as_deref() {
                None => Ok(default),
                Some("1") => Ok(true),
                Some("0") => Ok(false),
                Some(_) => Err(name),
            };
            let default = Config::default();
            Ok(Config {
                memory_bytes: memory.parse().map_err(|_| "MEMORY")?,
                swap_dir: lookup("SWAP_DIR").map_or(default.swap_dir, PathBuf::from),
                swap_bytes: parsed(lookup("SWAP_BYTES"), "SWAP_BYTES")?,
                reserve_bytes: parsed(lookup("RESERVE"), "RESERVE")?
                    .unwrap_or(default.reserve_bytes),
                pool_percent: parsed(lookup("POOL_PERCENT"), "POOL_PERCENT")?
                    .unwrap_or(default.pool_percent),
                compress: flag("COMPRESS", default.compress)?,
                manage_children: flag("CHILDREN", default.manage_children)?,
                avoid_move: flag("AVOID_MOVE", default.avoid_move)?,
                avoid_io_uring: flag("AVOID_IO_URING", default.avoid_io_uring)?,
                poll: parsed(lookup("POLL"), "POLL")?.unwrap_or(default.poll),
                stats_fd: parsed(lookup("STATS_FD"), "STATS_FD")?,
                supervisor_pid: parsed(lookup("SUPERVISOR_PID"), "SUPERVISOR_PID")?,
            })
        };
        Some(parse())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_configuration_survives_the_environment() {
        let config = Config {
            memory_bytes: 123 << 20,
            swap_dir: "/tmp/a b".into(),
            swap_bytes: Some(7 << 30),
            manage_children: false,
            avoid_move: true,
            poll: Mode::Hybrid,
            stats_fd: Some(9),
            ..Config::default()
        };
        let env: HashMap<_, _> = config.to_env().into_iter().collect();
        assert_eq!(Config::from_env(|k| env.get(k).cloned()), Some(Ok(config)));
    }

    #[test]
    fn a_bad_value_is_named() {
        let lookup = |k: &str| match k {
            "MEMORY" => Some("1000000".into()),
            "COMPRESS" => Some("maybe".into()),
            _ => None,
        };
        assert_eq!(Config::from_env(lookup), Some(Err("COMPRESS")));
    }

    #[test]
    fn without_a_budget_there_is_no_configuration() {
        assert_eq!(Config::from_env(|_| None), None);
    }
}
