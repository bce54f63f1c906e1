//! What an engine is told when it starts.
//!
//! `softswap run` settles flags, environment and file into one [`Config`] and
//! hands it to the runtime through environment variables with a prefix of
//! their own ([`Config::to_env`]), so that the runtime parses nothing a user wrote.

use crate::codec::Choice;
use crate::io::poll::mode::Mode;
use crate::swap::Discard;
use std::path::PathBuf;

/// The smallest budget an engine accepts: below it the fixed parts (fault
/// contexts, bounce buffers, staging) would leave no room for pages.
pub const MIN_MEMORY_BYTES: u64 = 8 << 20;

/// One swap area, as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaSpec {
    /// A directory, for an unlinked file in it; or a swap file or device.
    pub path: PathBuf,
    /// Largest size of a file in a directory, in bytes; `None`: free space less
    /// the reserve.
    pub limit_bytes: Option<u64>,
    /// Areas with a higher one are filled first; `None`: after all that have
    /// one, in the order in which they were given.
    pub priority: Option<u16>,
    /// When the storage is told what is not needed.
    pub discard: Discard,
    /// How a thread waits for a single page from it; `None`: as for all.
    pub poll: Option<Mode>,
}

impl AreaSpec {
    /// An area at `path` with nothing else asked for.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> AreaSpec {
        AreaSpec {
            path: path.into(),
            limit_bytes: None,
            priority: None,
            discard: Discard::None,
            poll: None,
        }
    }

    /// The path last: it may contain anything.
    fn to_text(&self) -> String {
        fn shown(value: Option<impl ToString>) -> String {
            value.map_or_else(String::new, |value| value.to_string())
        }
        let path = self.path.to_string_lossy();
        let AreaSpec { limit_bytes, priority, discard, poll, .. } = self;
        let (limit, priority, poll) = (shown(*limit_bytes), shown(*priority), shown(*poll));
        format!("{limit},{priority},{poll},{discard},{path}")
    }

    fn from_text(text: &str) -> Option<AreaSpec> {
        fn value<T: std::str::FromStr>(text: &str) -> Option<Option<T>> {
            if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
        }
        let mut parts = text.splitn(5, ',');
        Some(AreaSpec {
            limit_bytes: value(parts.next()?)?,
            priority: value(parts.next()?)?,
            poll: value(parts.next()?)?,
            discard: parts.next()?.parse().ok()?,
            path: parts.next().filter(|path| !path.is_empty())?.into(),
        })
    }
}

/// Settled settings of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// DRAM budget: resident + pool + staging + bounce + metadata, in bytes.
    pub memory_bytes: u64,
    /// Where pages go that leave DRAM, at least one.
    pub areas: Vec<AreaSpec>,
    /// Free space that is always left on a swap directory's file system, in bytes.
    pub reserve_bytes: u64,
    /// Share of the budget that compressed pages may take, in percent.
    pub pool_percent: u8,
    /// What packs pages before they leave DRAM; may be changed later.
    pub codec: Choice,
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
            areas: vec![AreaSpec::new("/var/tmp")],
            reserve_bytes: 512 << 20,
            pool_percent: 40,
            codec: Choice::LZ4,
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
    pub fn to_env(&self) -> Vec<(String, String)> {
        let flag = |on: bool| if on { "1" } else { "0" }.to_string();
        let mut env = vec![
            ("MEMORY", self.memory_bytes.to_string()),
            ("RESERVE", self.reserve_bytes.to_string()),
            ("POOL_PERCENT", self.pool_percent.to_string()),
            ("CODEC", self.codec.to_string()),
            ("CHILDREN", flag(self.manage_children)),
            ("AVOID_MOVE", flag(self.avoid_move)),
            ("AVOID_IO_URING", flag(self.avoid_io_uring)),
            ("POLL", self.poll.to_string()),
        ];
        if let Some(fd) = self.stats_fd {
            env.push(("STATS_FD", fd.to_string()));
        }
        if let Some(pid) = self.supervisor_pid {
            env.push(("SUPERVISOR_PID", pid.to_string()));
        }
        let areas = self.areas.iter().enumerate();
        let areas = areas.map(|(number, area)| (area_variable(number), area.to_text()));
        env.into_iter().map(|(name, value)| (name.to_string(), value)).chain(areas).collect()
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
            let areas: Option<Vec<_>> = (0..)
                .map_while(|number| lookup(&area_variable(number)))
                .map(|text| AreaSpec::from_text(&text))
                .collect();
            let areas = areas.ok_or("SWAP")?;
            Ok(Config {
                memory_bytes: memory.parse().map_err(|_| "MEMORY")?,
                areas: if areas.is_empty() { default.areas } else { areas },
                reserve_bytes: parsed(lookup("RESERVE"), "RESERVE")?
                    .unwrap_or(default.reserve_bytes),
                pool_percent: parsed(lookup("POOL_PERCENT"), "POOL_PERCENT")?
                    .unwrap_or(default.pool_percent),
                codec: parsed(lookup("CODEC"), "CODEC")?.unwrap_or(default.codec),
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

fn area_variable(number: usize) -> String {
    format!("SWAP_{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Packer;
    use std::collections::HashMap;

    #[test]
    fn a_configuration_survives_the_environment() {
        let config = Config {
            memory_bytes: 123 << 20,
            areas: vec![
                AreaSpec {
                    limit_bytes: Some(7 << 30),
                    priority: Some(5),
                    discard: Discard::Both,
                    poll: Some(Mode::Poll),
                    ..AreaSpec::new("/tmp/a b,c")
                },
                AreaSpec::new("/dev/sdx"),
            ],
            manage_children: false,
            avoid_move: true,
            codec: Choice(Some(Packer::Zstd { level: -3 })),
            poll: Mode::Hybrid,
            stats_fd: Some(9),
            ..Config::default()
        };
        let env: HashMap<_, _> = config.to_env().into_iter().collect();
        assert_eq!(Config::from_env(|k| env.get(k).cloned()), Some(Ok(config)));
        for bad in ["", "1,2", ",,,none,", "x,,,none,/tmp", ",70000,,none,/tmp", ",,,some,/tmp"] {
            assert_eq!(AreaSpec::from_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_bad_value_is_named() {
        let lookup = |k: &str| match k {
            "MEMORY" => Some("1000000".into()),
            "CODEC" => Some("maybe".into()),
            _ => None,
        };
        assert_eq!(Config::from_env(lookup), Some(Err("CODEC")));
    }

    #[test]
    fn without_a_budget_there_is_no_configuration() {
        assert_eq!(Config::from_env(|_| None), None);
    }
}
