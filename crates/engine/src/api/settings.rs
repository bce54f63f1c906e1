//! Start settings of an engine. CONTRIBUTING.md lists the steps to add one. A setting of the
//! command alone has no line here, but a field of `Resolved` in `crates/cli/src/run/resolve.rs`.
//!
//! `softswap run` combines flags, environment and file into one [`Config`], and passes it to the
//! runtime in environment variables ([`Config::to_env`]). So the runtime parses no user input.

use crate::codec::Choice;
use crate::policy::mechanism::Without;
pub use crate::policy::pool_limit::{BadPoolLimit, PoolLimit, size_of_text};
use crate::store::io::poll::mode::Mode;
use crate::store::swap::Discard;
use softswap_sys::aslr::Bases;
use softswap_sys::block_map::Fingerprint;
pub use softswap_sys::faults::Faults;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Minimum budget of an engine. With less, the fixed parts (fault contexts, bounce buffers,
/// staging) would leave no memory for pages.
pub const MIN_MEMORY_BYTES: u64 = 8 << 20;
/// Divisor: a process whose engine has not started keeps 1/16 of its budget, plus [`SPARE_BYTES`],
/// free so that the engine can start.
pub const SPARE_PART: u64 = 16;
/// See [`SPARE_PART`].
pub const SPARE_BYTES: u64 = 6 << 20;

/// Descriptor of an area that all processes of a tree inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherited {
    /// A file or device shared by the tree ([`Config::tables_fd`]).
    File(i32),
    /// A file written through the block device, and the fingerprint of its verified block map.
    Raw(i32, Fingerprint),
    /// The request queue to the helper of a cluster of servers.
    RequestQueue(i32),
    /// The request queue of a cluster that holds a second copy of the local swap file.
    Mirror(i32),
}

impl Inherited {
    pub(crate) fn mirror(self) -> Option<i32> {
        match self {
            Inherited::Mirror(fd) => Some(fd),
            Inherited::File(_) | Inherited::Raw(..) | Inherited::RequestQueue(_) => None,
        }
    }
}

impl fmt::Display for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inherited::File(fd) => write!(f, "file,{fd}"),
            Inherited::Raw(fd, verified) => write!(f, "raw,{fd},{verified}"),
            Inherited::RequestQueue(fd) => write!(f, "requests,{fd}"),
            Inherited::Mirror(fd) => write!(f, "mirror,{fd}"),
        }
    }
}

impl FromStr for Inherited {
    type Err = ();

    fn from_str(text: &str) -> Result<Inherited, ()> {
        let (kind, fd) = text.split_once(',').ok_or(())?;
        let (fd, verified) = fd.split_once(',').map_or((fd, None), |(fd, map)| (fd, Some(map)));
        let fd = fd.parse().map_err(drop)?;
        match (kind, verified) {
            ("file", None) => Ok(Inherited::File(fd)),
            ("raw", Some(verified)) => {
                verified.parse().map(|verified| Inherited::Raw(fd, verified))
            }
            ("requests", None) => Ok(Inherited::RequestQueue(fd)),
            ("mirror", None) => Ok(Inherited::Mirror(fd)),
            _ => Err(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaSpec {
    /// A directory, for an unlinked file in it; a swap file or device; or a cluster, as displayed.
    pub path: PathBuf,
    /// Maximum size of a file in a directory, in bytes; `None`: free space minus the reserve.
    pub limit_bytes: Option<u64>,
    /// Areas with a higher priority are filled first. `None`: after all that have one, in the given
    /// order, as with `swapon`.
    pub priority: Option<u16>,
    pub discard: Discard,
    /// Method by which a thread waits for a single page; `None`: [`Config::poll`].
    pub poll: Option<Mode>,
    /// Use the file's blocks on its device. Only for `softswap run`, which verifies the blocks and
    /// passes [`Inherited::Raw`] to the runtime.
    pub raw: bool,
    pub inherited: Option<Inherited>,
}

impl AreaSpec {
    pub fn new(path: impl Into<PathBuf>) -> AreaSpec {
        AreaSpec {
            path: path.into(),
            limit_bytes: None,
            priority: None,
            discard: Discard::None,
            poll: None,
            raw: false,
            inherited: None,
        }
    }

    pub(crate) fn priority_among(&self, order: usize) -> i32 {
        self.priority.map_or(-1 - order as i32, i32::from)
    }

    /// The path comes last, because it may contain any character.
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
        fn value<T: FromStr>(text: &str) -> Option<Option<T>> {
            if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
        }
        let mut parts = text.splitn(5, ',');
        Some(AreaSpec {
            limit_bytes: value(parts.next()?)?,
            priority: value(parts.next()?)?,
            poll: value(parts.next()?)?,
            discard: parts.next()?.parse().ok()?,
            path: parts.next().filter(|path| !path.is_empty())?.into(),
            raw: false,
            inherited: None,
        })
    }
}

/// Turns of the processes of a tree that thrashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    Auto,
    Off,
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Turns::Auto { "auto" } else { "off" })
    }
}

impl FromStr for Turns {
    type Err = String;

    fn from_str(text: &str) -> Result<Turns, String> {
        match text {
            "auto" => Ok(Turns::Auto),
            "off" => Ok(Turns::Off),
            _ => Err(format!("\"{text}\" is neither \"auto\" nor \"off\"")),
        }
    }
}

/// The table of settings. A line is a field of [`Config`] with its default, and the variable that
/// passes it to the runtime. The option with the field's name sets it. (Sizes, and options with
/// other names, are set in the command's `run/resolve.rs`.)
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $variable:ident $field:ident: $type:ty = $default:expr;)+) => {
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $type,)+
            /// Swap areas, at least one.
            pub areas: Vec<AreaSpec>,
            pub stats_fd: Option<i32>,
            /// PID of the process that reads the statistics page. Only its direct child uses that page.
            pub supervisor_pid: Option<i32>,
            pub ledger_fd: Option<i32>,
            /// Descriptor of the tables with the owners of clusters in shared areas.
            pub tables_fd: Option<i32>,
            /// Addresses of the window and the gate in the tree of processes.
            pub bases: Option<Bases>,
        }

        impl Default for Config {
            fn default() -> Self {
                Config {
                    $($field: $default,)+
                    areas: vec![AreaSpec::new("/var/tmp")],
                    stats_fd: None,
                    supervisor_pid: None,
                    ledger_fd: None,
                    tables_fd: None,
                    bases: None,
                }
            }
        }

        impl Config {
            pub fn has(name: &str) -> bool {
                [$(stringify!($field)),+].contains(&name)
            }

            /// Parses and sets the setting of that name, if there is one.
            pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
                match name {
                    $(stringify!($field) => {
                        self.$field = text.parse::<$type>().map_err(|bad| bad.to_string())?;
                    })+
                    _ => {}
                }
                Ok(())
            }

            fn table_to_env(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($variable), self.$field.to_string())),+]
            }

            /// Sets values from variables. Returns the name of the first that is invalid.
            fn set_from_env(
                &mut self,
                lookup: &impl Fn(&str) -> Option<String>,
            ) -> Result<(), &'static str> {
                $(if let Some(text) = lookup(stringify!($variable)) {
                    self.set(stringify!($field), &text).map_err(|_| stringify!($variable))?;
                })+
                Ok(())
            }
        }
    };
}

settings! {
    /// DRAM budget: resident + pool + staging + bounce + metadata, in bytes.
    MEMORY memory_bytes: u64 = 1 << 30;
    /// Free space to leave on a swap directory's file system, in bytes.
    RESERVE reserve_bytes: u64 = 512 << 20;
    /// Limit of the compressed pool; can be changed later.
    POOL pool: PoolLimit = PoolLimit::Auto;
    /// Encrypt pages in the swap areas.
    ENCRYPT encrypt: bool = true;
    /// Codec of pages that leave DRAM; can be changed later.
    CODEC codec: Choice = Choice::Auto;
    /// Manage programs that the program starts. By default they share the tree's budget.
    CHILDREN manage_children: bool = true;
    /// Mechanism by which touches of absent pages reach the engine.
    FAULTS faults: Faults = Faults::Auto;
    /// Unmap pages by write-protect and copy even if UFFDIO_MOVE works.
    AVOID_MOVE avoid_move: bool = false;
    /// Use pread/pwrite even if io_uring works.
    AVOID_IO_URING avoid_io_uring: bool = false;
    /// Method by which a thread waits for a single page from the disk; can be changed later.
    POLL poll: Mode = Mode::Auto;
    /// Disabled mechanisms; for developers.
    WITHOUT without: Without = Without::default();
    /// Print no notes.
    QUIET quiet: bool = false;
    /// Start an engine even if memory suffices; for developers.
    AWAKE awake: bool = false;
    /// Turns of the processes if the tree thrashes; can be changed later.
    TURNS turns: Turns = Turns::Off;
    /// The budget of the tree is adjusted automatically.
    MOVING is_moving: bool = false;
    /// Memory that programs see, in bytes; 0: the machine's.
    TELL advertised_bytes: u64 = 0;
    /// New file that records page events of the first process; empty: none.
    RECORD record: String = String::new();
}

pub const ENV_PREFIX: &str = "SOFTSWAP_RT_";

impl Config {
    /// Returns the variables (without [`ENV_PREFIX`]) of this configuration.
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mut env = self.table_to_env();
        let numbers = [
            ("STATS_FD", self.stats_fd),
            ("SUPERVISOR_PID", self.supervisor_pid),
            ("LEDGER_FD", self.ledger_fd),
            ("TABLES_FD", self.tables_fd),
        ];
        env.extend(numbers.into_iter().filter_map(|(name, it)| Some((name, it?.to_string()))));
        if let Some(bases) = self.bases {
            env.push(("PLACE", bases.to_string()));
        }
        let areas = self.areas.iter().enumerate().flat_map(|(number, area)| {
            let inherited = area.inherited.map(|it| (inherited_variable(number), it.to_string()));
            [(area_variable(number), area.to_text())].into_iter().chain(inherited)
        });
        env.into_iter().map(|(name, value)| (name.to_string(), value)).chain(areas).collect()
    }

    /// Parses the variables of [`Config::to_env`]. `None` if MEMORY is absent or empty. On failure
    /// returns the name of the invalid variable.
    pub fn from_env(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Option<Result<Config, &'static str>> {
        lookup("MEMORY").filter(|text| !text.is_empty())?;
        let parse = || -> Result<Config, &'static str> {
            let number = |name: &'static str| {
                lookup(name).map(|text| text.parse().map_err(|_| name)).transpose()
            };
            let mut config = Config::default();
            config.set_from_env(&lookup)?;
            let texts = (0..).map_while(|number| Some((number, lookup(&area_variable(number))?)));
            let areas: Option<Vec<_>> = texts
                .map(|(number, text)| {
                    let inherited = lookup(&inherited_variable(number)).map(|text| text.parse());
                    let inherited = inherited.transpose().ok()?;
                    Some(AreaSpec { inherited, ..AreaSpec::from_text(&text)? })
                })
                .collect();
            let areas = areas.ok_or("SWAP")?;
            if !areas.is_empty() {
                config.areas = areas;
            }
            config.stats_fd = number("STATS_FD")?;
            config.supervisor_pid = number("SUPERVISOR_PID")?;
            config.ledger_fd = number("LEDGER_FD")?;
            config.tables_fd = number("TABLES_FD")?;
            config.bases = bases(&lookup);
            Ok(config)
        };
        Some(parse())
    }
}

/// Returns the tree's window and gate, also for a program without an engine. `None` if invalid.
pub fn bases(lookup: &impl Fn(&str) -> Option<String>) -> Option<Bases> {
    lookup("PLACE")?.parse().ok()
}

fn area_variable(number: usize) -> String {
    format!("SWAP_{number}")
}

fn inherited_variable(number: usize) -> String {
    format!("SWAP_FD_{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Compressor;
    use std::collections::HashMap;

    #[test]
    fn configuration_round_trips_through_environment() {
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
                AreaSpec { inherited: Some(Inherited::File(1040)), ..AreaSpec::new("/dev/sdx") },
                AreaSpec {
                    inherited: Some(Inherited::Raw(1043, Fingerprint::of(&[]))),
                    ..AreaSpec::new("/swap")
                },
                AreaSpec {
                    inherited: Some(Inherited::RequestQueue(1041)),
                    ..AreaSpec::new("redis://a:1,b:2")
                },
            ],
            manage_children: false,
            encrypt: false,
            avoid_move: true,
            quiet: true,
            faults: Faults::Protection,
            codec: Choice::Fixed(Some(Compressor::Zstd { level: -3 })),
            poll: Mode::Hybrid,
            stats_fd: Some(9),
            ledger_fd: Some(1031),
            tables_fd: Some(1032),
            bases: Some(Bases::choose()),
            ..Config::default()
        };
        let env: HashMap<_, _> = config.to_env().into_iter().collect();
        assert_eq!(Config::from_env(|k| env.get(k).cloned()), Some(Ok(config)));
        for (text, turns) in [("off", Turns::Off), ("auto", Turns::Auto)] {
            assert_eq!((text.parse::<Turns>(), turns.to_string()), (Ok(turns), text.to_string()));
        }
        for bad in ["", "7", "file,", "file,x", "pipe,7", "raw,7", "raw,7,x", "file,7,7"] {
            assert_eq!(bad.parse::<Inherited>(), Err(()), "{bad}");
        }
        for bad in ["", "1,2", ",,,none,", "x,,,none,/tmp", ",70000,,none,/tmp", ",,,some,/tmp"] {
            assert_eq!(AreaSpec::from_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn invalid_value_is_named() {
        let lookup = |k: &str| match k {
            "MEMORY" => Some("1000000".into()),
            "CODEC" => Some("maybe".into()),
            _ => None,
        };
        assert_eq!(Config::from_env(lookup), Some(Err("CODEC")));
    }

    #[test]
    fn configuration_requires_budget() {
        assert_eq!(Config::from_env(|_| None), None);
        assert_eq!(Config::from_env(|_| Some(String::new())), None);
    }
}
