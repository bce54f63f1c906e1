//! Options of `softswap run`. An option sets the field of the same name in the engine's
//! `api/settings.rs`, from the command line, the environment or the file.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueHint};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a program within a budget of DRAM.
///
/// Memory of the program beyond the budget is compressed. Pages that do not
/// compress, or do not fit even compressed, are written to an unlinked file in
/// the swap directory. The program needs no change; it must be a dynamically
/// linked x86-64 program for glibc.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
#[command(override_usage = "softswap run [OPTIONS] [--] PROGRAM [ARG...]")]
// Settings are read by name from `given`; the fields only define the options.
#[allow(dead_code)]
pub(crate) struct RunArgs {
    /// The first field: clap removes the values of the others when it reads them.
    #[command(flatten)]
    pub(super) given: CommandLineOptions,

    /// DRAM budget of the program and all that it starts: auto, 512M, 2GiB, or a share of the
    /// available memory such as 50% [default: auto]
    ///
    /// `auto` is available memory minus an eighth (32 MiB to 1 GiB), updated ten times a second;
    /// `auto:FLOOR-CEILING` (auto:256M-4G) sets bounds. Available is MemAvailable in
    /// /proc/meminfo, or less if a memory control group (v1 or v2) allows less. A bare letter and
    /// `MiB` count by 1024, `MB` by 1000. At least 8 MiB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) memory: Option<String>,

    /// As --memory, but as a separate budget for each process, including those that the program
    /// starts
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, conflicts_with = "memory")]
    pub(super) memory_per_process: Option<String>,

    /// Where pages are written: a directory for a swap file, and its largest size
    /// [default: /var/tmp]
    ///
    /// Without SIZE the file may grow until only the reserve is free. DIR may also be a swap file,
    /// a block device, or a cluster of Redis or Valkey servers:
    /// redis://HOST:PORT,HOST:PORT?size=SIZE, or rediss:// with TLS. The option may be given
    /// several times. Areas with a higher `pri` (0 to 32767) are filled first, equal ones in turn;
    /// areas without `pri` come last, in the order given. `discard` discards unused storage:
    /// clusters of 2 MiB that have become free (`pages`), all of a device at the start (`once`),
    /// or `both`. `poll` is as --poll, for this area only. `raw` writes the blocks of a swap file
    /// through its device, as swapon does.
    #[arg(long, value_name = "DIR[:SIZE][,pri=N][,discard=WHEN][,poll=MODE][,raw]")]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(super) swap: Vec<String>,

    /// Space that softswap keeps free on the swap directory's file system [default: 512M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) reserve: Option<String>,

    /// How pages are compressed: auto, lz4, zstd, zstd:LEVEL or none [default: auto]
    ///
    /// `auto` is LZ4 while the pool has plenty of free space, then zstd, and Huffman coding for
    /// pages that LZ4 cannot compress. LEVEL is from -5 (fast) to 9 (small), 1 by default. With
    /// `none` pages are written to the disk uncompressed. `softswap ctl PID set codec` changes it
    /// while the program runs.
    #[arg(long, value_name = "CODEC")]
    pub(super) codec: Option<String>,

    /// Largest share of the budget for compressed pages, or a size such as
    /// 64M; at most 80% [default: auto]
    ///
    /// `auto` adjusts the share, from 2% to 80%: it grows while pages are read from the disk that
    /// a larger pool would have held, and shrinks while pages are decompressed that would have
    /// stayed resident with a smaller one.
    #[arg(long, value_name = "SHARE|SIZE|auto", allow_hyphen_values = true)]
    pub(super) pool: Option<String>,

    /// Write pages to the disk unencrypted: every user who can read the swap file or device can
    /// read them
    ///
    /// Pages still have a checksum.
    #[arg(long)]
    pub(super) no_encrypt: bool,

    /// Memory that the program and its children see: auto, budget, off, or a size such as 8G
    /// [default: off]
    ///
    /// Many programs size their heap or buffers by the machine's memory: Java, Node, DuckDB, GNU
    /// sort. With `auto` they see the budget plus the swap areas, at most 100 times the budget,
    /// with `budget` the budget alone. This changes sysinfo, sysconf, /proc/meminfo, meminfo of the
    /// nodes and the control group's memory files, for this tree only. Free memory follows its use.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) tell: Option<String>,

    /// Programs that the program starts: managed (within the budget) or plain (without softswap)
    /// [default: managed]
    #[arg(long, value_name = "HOW")]
    pub(super) children: Option<String>,

    /// If several processes thrash, let them take turns: auto or off [default: off]
    ///
    /// With `auto` one of the processes that want more memory than they get has a turn: it gets
    /// what it needs, and the other processes wait instead of reading pages, for 2 to 30 s. A
    /// process that is idle in between never waits, since other processes may depend on it.
    /// `softswap ctl PID set turns` changes it while the program runs.
    #[arg(long, value_name = "WHEN")]
    pub(super) turns: Option<String>,

    /// Free the DRAM of the program and all that it has started when it is paused by this signal:
    /// SIGTSTP, which Ctrl-Z sends
    ///
    /// The processes write their memory to the swap areas before they are stopped. `fg` and SIGCONT
    /// continue them, and swap in what was in DRAM before. `softswap ctl PID park` does the same.
    #[arg(long, value_name = "SIGNAL")]
    pub(super) park_on: Option<String>,

    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Write the closing figures to FILE as JSON, or as a page if its name ends in .html
    ///
    /// May be given several times. The page contains plots, and no links to other files;
    /// `softswap report` and `softswap advise` also read it. JSON is one object, even if the
    /// program is killed. `schema` is 1; keys contain their unit (`_bytes`, `_ns`, `_s`), and
    /// null is a value that could not be measured. `outcome` has `kind` "exited" with `status`, or
    /// "killed" with `signal` and `signal_name`; `faults` has, for each of zero, staged, standby,
    /// filled, pool and disk, `count`, `p50_ns` and `p99_ns`; `engine_started` is false if the
    /// engine did not start, and `slept` is true if the program fitted its budget and so needed
    /// none.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Vec<PathBuf>,

    /// Print no closing summary and no notes
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// Print all figures at the end, not only the summary
    #[arg(long, short, conflicts_with = "quiet")]
    pub(super) verbose: bool,

    /// Show memory and waits of the program and all that it starts: one line on the terminal,
    /// updated each second
    ///
    /// Without this option a program that swaps gets one such line, after ten seconds, unless
    /// --quiet is given. Nothing is shown if standard error is not a terminal.
    #[arg(long)]
    pub(super) progress: bool,

    /// Append what happens during the run to FILE, as a line of JSON for each event
    ///
    /// `event` is start, awake (memory has become short), pressure (the program waits for pages
    /// for more than 20 % of the time), pressure_over (less than 5 %), budget (it has changed),
    /// area_full, error (even if softswap stopped the program: `kind` is stopped), thrashing,
    /// parked, unparked, unmanaged (a process of the tree has no budget), or end. `unix_s` is the
    /// time, `at_s` the time since the start. softswap checks for events once a second.
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,

    /// How a thread waits for a page from the disk: interrupt, poll, hybrid or auto
    /// [default: auto]
    ///
    /// `interrupt` sleeps; `poll` and `hybrid` poll, and suit a program of few threads on a machine
    /// with an idle CPU. `auto` polls under that condition, and sleeps otherwise. `softswap ctl PID
    /// set io.poll` changes it while the program runs.
    #[arg(long, value_name = "MODE")]
    pub(super) poll: Option<String>,

    /// How page faults reach softswap: userfaultfd, protection or auto [default: auto]
    ///
    /// `protection` is page protection (PROT_NONE, SIGSEGV, /proc/self/mem): it needs no system
    /// call that containers forbid, and is slower. `auto` is userfaultfd if that is allowed,
    /// otherwise protection.
    #[arg(long, value_name = "WAY", hide_short_help = true)]
    pub(super) faults: Option<String>,

    /// Evict pages by write-protect and copy even if UFFDIO_MOVE works
    #[arg(long, hide_short_help = true)]
    pub(super) no_move: bool,

    /// Use pread and pwrite even if io_uring works
    #[arg(long, hide_short_help = true)]
    pub(super) no_io_uring: bool,

    /// Mechanisms to switch off; for developers
    #[arg(long, value_name = "NAME,...", hide = true)]
    pub(super) without: Option<String>,

    /// Start the engine with the program, even if its memory fits the budget; for developers
    #[arg(long, hide = true)]
    pub(super) awake: bool,

    /// A new file to which the touches of the program are recorded; for `softswap bench record`
    #[arg(long, value_name = "FILE", hide = true)]
    pub(super) record: Option<String>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub(super) program: Vec<OsString>,
}

/// Values by the option's name as in a file (`no_move`).
#[derive(Debug, Default)]
pub(super) struct CommandLineOptions(BTreeMap<String, Vec<String>>);

impl CommandLineOptions {
    pub(super) fn values(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

impl Args for CommandLineOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for CommandLineOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<CommandLineOptions, clap::Error> {
        let is_given =
            |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let values = |id: &clap::Id| {
            let raw = matches.try_get_raw(id.as_str()).ok()??;
            let texts = raw.map(|text| text.to_string_lossy().into_owned()).collect();
            Some((id.to_string(), texts))
        };
        Ok(CommandLineOptions(matches.ids().filter(is_given).filter_map(values).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = CommandLineOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Each option, except `config`, is also a key of the configuration file.
pub(super) fn options() -> Vec<clap::Arg> {
    let command = RunArgs::augment_args(clap::Command::new("run"));
    command.get_arguments().filter(|option| option.get_long().is_some()).cloned().collect()
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
  Options override the environment, which overrides the file, which overrides the defaults.
  SOFTSWAP_LIBRARY is the path of libsoftswap.so if it is not installed with softswap,
  SOFTSWAP_RUNTIME_DIR the directory of the sockets for `softswap stat` and `softswap ctl`.

Exit status:
  The program's own. If a signal killed it, softswap exits by the same signal, which a shell
  shows as 128+N. Otherwise:
    2    a value of an option, or the swap directory, cannot be used
    125  softswap itself failed
    126  the program was found but cannot be run here (static, setuid, 32-bit, not executable, ...)
    127  the program was not found
    135  softswap stopped the program (SIGBUS), and printed the reason

Signals sent to softswap reach the program; job control (Ctrl-Z, fg, bg) works as usual.";
