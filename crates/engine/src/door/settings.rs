//! What an engine is told when it starts. A new setting is a line in the table `settings!`
//! here, and an option in the command's `run/options.rs`.
//!
//! `softswap run` settles flags, environment and file into one [`Config`] and
//! hands it to the runtime through environment variables with a prefix of
//! their own ([`Config::to_env`]), so that the runtime parses nothing a user wrote.

use crate::codec::Choice;
use crate::policy::mechanism::Without;
pub use crate::policy::pool_limit::{BadPoolLimit, PoolLimit, size_of_text};
use crate::store::io::poll::mode::Mode;
use crate::store::swap::Discard;
use softswap_sys::aslr::Bases;
pub use softswap_sys::faults::Faults;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The smallest budget an engine accepts: below it the fixed parts (fault
/// contexts, bounce buffers, staging) would leave no room for pages.
pub const MIN_MEMORY_BYTES: u64 = 8 << 20;

/// What all of a tree of processes inherit of an area: a descriptor.
///
/// ```
/// use softswap_engine::door::settings::Inherited;
/// assert_eq!(Inherited::RequestQueue(1032).to_string().parse(), Ok(Inherited::RequestQueue(1032)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherited {
    /// A file or device that they share ([`Config::tables_fd`]).
    File(i32),
    /// The request queue of the helper for a cluster of servers.
    RequestQueue(i32),
    /// As a request queue, if the cluster mirrors what is in the directory.
    Mirror(i32),
}

impl Inherited {
    /// The descriptor of a mirror's.
    pub(crate) fn mirror(self) -> Option<i32> {
        match self {
            Inherited::Mirror(fd) => Some(fd),
            Inherited::File(_) | Inherited::RequestQueue(_) => None,
        }
    }
}

impl fmt::Display for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inherited::File(fd) => write!(f, "file,{fd}"),
            Inherited::RequestQueue(fd) => write!(f, "requests,{fd}"),
            Inherited::Mirror(fd) => write!(f, "mirror,{fd}"),
        }
    }
}

impl FromStr for Inherited {
    type Err = ();

    fn from_str(text: &str) -> Result<Inherited, ()> {
        let (kind, fd) = text.split_once(',').ok_or(())?;
        let fd = fd.parse().map_err(drop)?;
        match kind {
            "file" => Ok(Inherited::File(fd)),
            "requests" => Ok(Inherited::RequestQueue(fd)),
            "mirror" => Ok(Inherited::Mirror(fd)),
            _ => Err(()),
        }
    }
}

/// One swap area, as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaSpec {
    /// A directory, for an unlinked file in it; or a swap file or device; or a cluster, as it is
    /// shown.
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
    /// What all of a tree of processes inherit of it from `softswap run`; `None`: nothing.
    pub inherited: Option<Inherited>,
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
            inherited: None,
        }
    }

    /// Its priority as the area of that number: those without one come after all others, in the
    /// order in which they were given, as with `swapon`.
    pub(crate) fn priority_among(&self, order: usize) -> i32 {
        self.priority.map_or(-1 - order as i32, i32::from)
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
            inherited: None,
        })
    }
}

/// The table of settings. A line is a field of [`Config`] with its default, and the variable
/// that carries it to the runtime; an option of `softswap run` by the field's name sets it. (A
/// size, and what an option has by another name, `settle` of the command sets.)
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $variable:ident $field:ident: $type:ty = $default:expr;)+) => {
        /// Settled settings of one engine.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $type,)+
            /// Where pages go that leave DRAM, at least one.
            pub areas: Vec<AreaSpec>,
            /// Descriptor of the shared statistics page, inherited from `softswap run`.
            pub stats_fd: Option<i32>,
            /// Process that shares that page; its direct child reports there.
            pub supervisor_pid: Option<i32>,
            /// Descriptor of the ledger of a tree that shares one budget.
            pub ledger_fd: Option<i32>,
            /// Descriptor of the tables that say whose the clusters of shared areas are.
            pub tables_fd: Option<i32>,
            /// Where the window and the gate lie in the tree of processes.
            pub place: Option<Bases>,
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
                    place: None,
                }
            }
        }

        impl Config {
            /// Whether the table has a setting of that name.
            #[must_use]
            pub fn has(name: &str) -> bool {
                [$(stringify!($field)),+].contains(&name)
            }

            /// Sets the setting of that name, if there is one.
            ///
            /// # Errors
            /// What is wrong with the text.
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

            /// Sets what variables say; the name of the first that cannot be understood.
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
    /// Free space that is always left on a swap directory's file system, in bytes.
    RESERVE reserve_bytes: u64 = 512 << 20;
    /// What compressed pages may take of the budget; may be changed later.
    POOL pool: PoolLimit = PoolLimit::Auto;
    /// Encrypt what is written to the swap areas.
    ENCRYPT encrypt: bool = true;
    /// What packs pages before they leave DRAM; may be changed later.
    CODEC codec: Choice = Choice::Auto;
    /// Programs started by the program run under softswap too, each with its own budget.
    CHILDREN manage_children: bool = true;
    /// How a touch of an absent page reaches the engine.
    FAULTS faults: Faults = Faults::Auto;
    /// Take pages out by write-protect and copy even where UFFDIO_MOVE works.
    AVOID_MOVE avoid_move: bool = false;
    /// Use pread/pwrite even where io_uring works.
    AVOID_IO_URING avoid_io_uring: bool = false;
    /// How a thread waits for a single page from the disk; may be changed later.
    POLL poll: Mode = Mode::Auto;
    /// Mechanisms that are switched off; for developers.
    WITHOUT without: Without = Without::default();
    /// An engine from the start, also where memory suffices; for developers.
    AWAKE awake: bool = false;
    /// The budget of the tree moves by itself.
    MOVING is_moving: bool = false;
    /// A new file for what the first process touches; none where it is empty.
    RECORD record: String = String::new();
}

/// Prefix of the variables that carry a [`Config`] to the runtime.
pub const ENV_PREFIX: &str = "SOFTSWAP_RT_";

impl Config {
    /// The variables (without [`ENV_PREFIX`]) that describe this configuration.
    #[must_use]
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mut env = self.table_to_env();
        if let Some(fd) = self.stats_fd {
            env.push(("STATS_FD", fd.to_string()));
        }
        if let Some(pid) = self.supervisor_pid {
            env.push(("SUPERVISOR_PID", pid.to_string()));
        }
        if let Some(fd) = self.ledger_fd {
            env.push(("LEDGER_FD", fd.to_string()));
        }
        if let Some(fd) = self.tables_fd {
            env.push(("TABLES_FD", fd.to_string()));
        }
        if let Some(place) = self.place {
            env.push(("PLACE", place.to_string()));
        }
        let areas = self.areas.iter().enumerate().flat_map(|(number, area)| {
            let inherited = area.inherited.map(|it| (inherited_variable(number), it.to_string()));
            [(area_variable(number), area.to_text())].into_iter().chain(inherited)
        });
        env.into_iter().map(|(name, value)| (name.to_string(), value)).chain(areas).collect()
    }

    /// Reads what [`Config::to_env`] wrote. `lookup` gets names without the
    /// prefix. `None` when there is no configuration (MEMORY absent or empty);
    /// the name of the variable when one cannot be understood.
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
            config.place = place(&lookup);
            Ok(config)
        };
        Some(parse())
    }
}

/// The place that the tree has, from the same variables: also for a program
/// without an engine. One that cannot be understood is none.
#[must_use]
pub fn place(lookup: &impl Fn(&str) -> Option<String>) -> Option<Bases> {
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
                AreaSpec { inherited: Some(Inherited::File(1040)), ..AreaSpec::new("/dev/sdx") },
                AreaSpec {
                    inherited: Some(Inherited::RequestQueue(1041)),
                    ..AreaSpec::new("redis://a:1,b:2")
                },
            ],
            manage_children: false,
            encrypt: false,
            avoid_move: true,
            faults: Faults::Protection,
            codec: Choice::Fixed(Some(Packer::Zstd { level: -3 })),
            poll: Mode::Hybrid,
            stats_fd: Some(9),
            ledger_fd: Some(1031),
            tables_fd: Some(1032),
            place: Some(Bases::choose()),
            ..Config::default()
        };
        let env: HashMap<_, _> = config.to_env().into_iter().collect();
        assert_eq!(Config::from_env(|k| env.get(k).cloned()), Some(Ok(config)));
        for bad in ["", "7", "file,", "file,x", "pipe,7"] {
            assert_eq!(bad.parse::<Inherited>(), Err(()), "{bad}");
        }
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
        assert_eq!(Config::from_env(|_| Some(String::new())), None);
    }
}
