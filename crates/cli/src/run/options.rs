//! Options of `softswap run`. An option sets the field of the same name in the engine's
//! `door/settings.rs`, from the command line, the environment or the file.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueHint};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a program within a budget of DRAM.
///
/// The program's memory beyond the budget is compressed, and beyond that
/// written to an unlinked file in the swap directory. The program needs no
/// change; it must be a dynamically linked x86-64 program for glibc.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
#[command(override_usage = "softswap run [OPTIONS] [--] PROGRAM [ARG...]")]
// Settings are read by name from `given`; the fields only define the options.
#[allow(dead_code)]
pub(crate) struct RunArgs {
    /// First: what has been read of the others is gone.
    #[command(flatten)]
    pub(super) given: Given,

    /// DRAM budget of the program and all that it starts: auto, 512M, 2GiB, or a share of the
    /// available memory such as 50% [default: auto]
    ///
    /// `auto` is available memory minus an eighth (32 MiB to 1 GiB), updated ten times a second;
    /// `auto:FLOOR-CEILING` (auto:256M-4G) sets bounds. Available is MemAvailable in
    /// /proc/meminfo, or less if a memory control group (v1 or v2) allows less. A bare letter and
    /// `MiB` count by 1024, `MB` by 1000. At least 8 MiB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) memory: Option<String>,

    /// As --memory, but for each process by itself: each that the program starts has as much
    /// again
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, conflicts_with = "memory")]
    pub(super) memory_per_process: Option<String>,

    /// Where pages go: a directory for a swap file and its largest size [default: /var/tmp]
    ///
    /// Without SIZE the file may grow until only the reserve is left. May be
    /// given several times. Areas with a higher `pri` (0 to 32767) are filled
    /// first, equal ones in turn; those without come last, in the order given.
    /// `discard` gives what is not needed back: clusters of 2 MiB that have
    /// become free (`pages`), all of a device at the start (`once`), or `both`.
    /// `poll` is as --poll, for this area alone. Instead of a directory a swap
    /// file, a block device, or a cluster of Redis or Valkey servers:
    /// redis://HOST:PORT,HOST:PORT?size=SIZE, rediss:// with TLS.
    #[arg(long, value_name = "DIR[:SIZE][,pri=N][,discard=WHEN][,poll=MODE]")]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(super) swap: Vec<String>,

    /// Free space always left on the swap directory's file system [default: 512M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) reserve: Option<String>,

    /// How pages are compressed: auto, lz4, zstd, zstd:LEVEL or none [default: auto]
    ///
    /// With `auto` LZ4 packs them while the pool has plenty of room, then zstd, and Huffman's
    /// code those that LZ4 cannot pack. LEVEL is from -5 (fast) to 9 (small), 1 if it is left
    /// out. With `none` pages go straight to the disk. `softswap ctl PID set codec` changes it
    /// while the program runs.
    #[arg(long, value_name = "CODEC")]
    pub(super) codec: Option<String>,

    /// Largest share of the budget for compressed pages, or a size such as
    /// 64M; at most 80% [default: auto]
    ///
    /// With `auto` it is what gains most, from 2% to 80%: it grows while pages
    /// that a larger pool had held are read from the disk, and shrinks while
    /// pages are unpacked that had better stayed as they were.
    #[arg(long, value_name = "SHARE|SIZE|auto", allow_hyphen_values = true)]
    pub(super) pool: Option<String>,

    /// Write pages to the disk as they are: every user who can read the swap file or
    /// device can read them
    ///
    /// They still carry a checksum.
    #[arg(long)]
    pub(super) no_encrypt: bool,

    /// Memory that the program and all that it starts believe to have: auto, budget, off, or a
    /// size such as 8G [default: off]
    ///
    /// Many programs size their heap or buffers by the machine's memory: Java, Node, DuckDB, GNU
    /// sort. With `auto` they see the budget and the swap areas together, with `budget` the DRAM
    /// of the budget. It is what sysinfo, sysconf, /proc/meminfo, the nodes' meminfo and the
    /// control group's memory files say, in this tree alone. What is free follows its use.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) tell: Option<String>,

    /// Programs started by the program: managed or plain [default: managed]
    #[arg(long, value_name = "HOW")]
    pub(super) children: Option<String>,

    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Write the closing figures to FILE as JSON, or as a page if its name ends in .html
    ///
    /// May be given several times. The page has plots of all that happened, and needs nothing
    /// else; `softswap report` and `softswap advise` read it, too. JSON is one object, also when
    /// the program is killed. `schema` is 1; keys carry
    /// their unit (`_bytes`, `_ns`, `_s`), and what could not be measured is
    /// null. `outcome` has `kind` "exited" with `status`, or "killed" with
    /// `signal` and `signal_name`; `faults` has, for each of zero, staged, standby,
    /// filled, pool and disk, `count`, `p50_ns` and `p99_ns`;
    /// `engine_started` is false if the runtime never came up; `slept` is true where that was
    /// not needed.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Vec<PathBuf>,

    /// Print no closing summary and no notes
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Print all figures at the end, not only how it went
    #[arg(long, short, conflicts_with = "quiet")]
    pub(super) verbose: bool,

    /// Show on the terminal how the program and all that it starts fare: a line, each second anew
    ///
    /// Without it a program that swaps gets one line, after ten seconds, on a terminal and unless
    /// --quiet is given. Neither where standard error is no terminal.
    #[arg(long)]
    pub(super) progress: bool,

    /// Append what happens during the run to FILE, as a line of JSON for each event
    ///
    /// `event` is start, awake (memory has become short), pressure (more than 20% of the time is
    /// waited for pages) and pressure_over (less than 5%), budget (it has moved), area_full, error
    /// (also where softswap stopped the program: `kind` is stopped), thrashing, unmanaged (a process
    /// of the tree has no budget), end; `unix_s` and
    /// `at_s` say when. It is looked once a second.
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// How a thread waits for a page from the disk: interrupt, poll, hybrid or auto
    /// [default: auto]
    ///
    /// The first three are fixed; `poll` and `hybrid` are for few threads, on
    /// a machine with a processor to spare. `auto` polls where that is so, and sleeps
    /// elsewhere. `softswap ctl PID set io.poll` changes it while the program runs.
    #[arg(long, value_name = "MODE")]
    pub(super) poll: Option<String>,

    /// How touches of absent pages are taken: userfaultfd, protection or auto [default: auto]
    ///
    /// `protection` is page protection (PROT_NONE, SIGSEGV, /proc/self/mem): it needs no system
    /// call that containers forbid, and is slower. `auto` is userfaultfd where that is allowed,
    /// else protection.
    #[arg(long, value_name = "WAY", hide_short_help = true)]
    pub(super) faults: Option<String>,

    /// Take pages out by write-protect and copy even where UFFDIO_MOVE works
    #[arg(long, hide_short_help = true)]
    pub(super) no_move: bool,

    /// Use pread and pwrite even where io_uring works
    #[arg(long, hide_short_help = true)]
    pub(super) no_io_uring: bool,

    /// Mechanisms to switch off; for developers
    #[arg(long, value_name = "NAME,...", hide = true)]
    pub(super) without: Option<String>,

    /// Have an engine from the start, also where memory suffices; for developers
    #[arg(long, hide = true)]
    pub(super) awake: bool,

    /// A new file for what the program touches; for `softswap bench record`
    #[arg(long, value_name = "FILE", hide = true)]
    pub(super) record: Option<String>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(super) program: Vec<OsString>,
}

/// Values from the command line, by the option's name as in a file (`no_move`).
#[derive(Debug, Default)]
pub(super) struct Given(BTreeMap<String, Vec<String>>);

impl Given {
    pub(super) fn values(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let is_given =
            |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let values = |id: &clap::Id| {
            let raw = matches.try_get_raw(id.as_str()).ok()??;
            let texts = raw.map(|text| text.to_string_lossy().into_owned()).collect();
            Some((id.to_string(), texts))
        };
        Ok(Given(matches.ids().filter(is_given).filter_map(values).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

const AFTER_HELP: &str = "\
Examples:
  softswap run -- python3 analysis.py
  softswap run --memory 2G --swap /mnt/fast:50G -- sort -S 8G big.txt
  softswap run --memory 50% --report run.html -- make -j8

Settings:
  Every option but PROGRAM can also come from the environment, as SOFTSWAP_ and its name
  (SOFTSWAP_MEMORY=512M, SOFTSWAP_NO_MOVE=1), or, except `config`, from the TOML file
  (memory = \"512M\", no_move = true).
  Options win over the environment, that over the file, that over the defaults.
  SOFTSWAP_LIBRARY names libsoftswap.so where it is in no usual place, SOFTSWAP_RUNTIME_DIR the
  directory of the sockets for `softswap stat` and `softswap ctl`.

Exit status:
  The program's own. Where a signal ended it, softswap ends by the same signal, which a shell
  shows as 128+N. Otherwise:
    2    a value that was given cannot be used (also: the swap directory)
    125  softswap itself failed
    126  the program was found but cannot be run here (static, setuid, 32-bit, not executable, ...)
    127  the program was not found

Signals sent to softswap reach the program; job control (Ctrl-Z, fg, bg) works as without it.";
