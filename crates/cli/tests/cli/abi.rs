//! Differential tests: a case must print the same lines under softswap as without it (`tests/abi`).

use crate::support::{Ended, Running, compiled, compiled_from, directory, programs_in, softswap};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

const CASE_LIMIT: Duration = Duration::from_secs(300);
/// Maximum number of plain runs of a case. On a busy machine the output of plain Linux varies.
const PLAIN_RUNS: usize = 5;
const MIN_CASES: usize = 300;

const CONTAINER: &str = "container";

struct RunMode {
    name: &'static str,
    memory: &'static str,
    /// Enough for `evict` to evict all other pages.
    pressure_mib: &'static str,
    options: &'static [&'static str],
}

const fn mode(
    name: &'static str,
    memory: &'static str,
    pressure_mib: &'static str,
    options: &'static [&'static str],
) -> RunMode {
    RunMode { name, memory, pressure_mib, options }
}

const RUN_MODES: [RunMode; 8] = [
    mode("8M", "8M", "14", &["--awake"]),
    mode("64M", "64M", "0", &["--awake"]),
    mode("no-move", "16M", "40", &["--awake", "--no-move"]),
    mode("no-io-uring", "16M", "40", &["--awake", "--no-io-uring"]),
    mode("protection", "8M", "14", &["--awake", "--faults", "protection"]),
    // In `wakes` the engine starts when the first large block is allocated, in `sleeps` never.
    mode("wakes", "8M", "14", &[]),
    mode("sleeps", "64M", "0", &[]),
    mode(CONTAINER, "8M", "14", &[]),
];

/// `SOFTSWAP_ABI_WAYS` selects some, such as `8M,wakes`.
fn run_modes() -> Vec<&'static RunMode> {
    let Ok(names) = std::env::var("SOFTSWAP_ABI_WAYS") else { return RUN_MODES.iter().collect() };
    let named = |name| RUN_MODES.iter().find(|mode| mode.name == name);
    names.split(',').map(|name| named(name).unwrap_or_else(|| panic!("no way {name}"))).collect()
}

fn sources() -> PathBuf {
    directory("SOFTSWAP_ABI_DIR", "../../tests/abi")
}

fn themes() -> BTreeSet<String> {
    programs_in(&sources()).into_iter().filter(|name| !name.ends_with("_plugin")).collect()
}

/// Compiles each `NAME_plugin.c` once.
fn plugins() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let compile = || {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for theme in themes() {
            let source = sources().join(format!("{theme}_plugin.c"));
            if source.exists() {
                let mut compiler = Command::new("gcc");
                compiler.args(["-O2", "-shared", "-fPIC", "-pthread", "-o"]);
                compiler.arg(dir.path().join(format!("{theme}_plugin.so"))).arg(&source);
                assert!(compiler.status().expect("gcc").success(), "{}", source.display());
            }
        }
        dir
    };
    DIR.get_or_init(compile).path()
}

fn program(theme: &str) -> PathBuf {
    compiled_from(&sources(), theme, &format!("abi-{theme}"))
}

fn cases(theme: &str) -> Vec<String> {
    let list = Command::new(program(theme)).arg("--list").output().expect("a list of cases");
    let list = String::from_utf8(list.stdout).expect("names");
    list.lines().map(str::to_string).collect()
}

fn observed(ended: &Ended) -> String {
    format!("{}{}", ended.stdout_text(), ended.status)
}

fn run(command: &mut Command) -> Ended {
    let dir = tempfile::tempdir().expect("a temporary directory");
    command.env("TMPDIR", dir.path()).env("ABI_PLUGIN_DIR", plugins()).current_dir(dir.path());
    Running::start(command).finish(CASE_LIMIT)
}

fn start(program: impl AsRef<OsStr>, is_filtered: bool) -> Command {
    if !is_filtered {
        return Command::new(program);
    }
    let mut command = Command::new(compiled("emulated"));
    command.arg(CONTAINER).arg(program);
    command
}

fn plainly(theme: &str, case: &str, is_filtered: bool) -> Ended {
    run(start(program(theme), is_filtered).arg(case).env_remove("ABI_PRESSURE_MIB"))
}

fn managed(mode: &RunMode, theme: &str, case: &str) -> Ended {
    let mut command = start(softswap(), mode.name == CONTAINER);
    command.args(["run", "-q", "--memory", mode.memory]).args(mode.options).arg("--");
    command.arg(program(theme)).arg(case).env("ABI_PRESSURE_MIB", mode.pressure_mib);
    run(&mut command)
}

/// Returns the configurations in which each case may differ.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(sources().join("differences.txt")).expect("the list");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let (name, run_modes) =
                (words.next().expect("a case"), words.next().expect("configurations"));
            assert!(words.next().is_some(), "{name}: the reason is missing");
            let run_modes = match run_modes {
                "all" => RUN_MODES.iter().map(|mode| mode.name.to_string()).collect(),
                run_modes => run_modes.split(',').map(str::to_string).collect(),
            };
            (name.to_string(), run_modes)
        })
        .collect()
}

/// Repeats the plain run, at most [`PLAIN_RUNS`] times in all. Adds each output to `plain`.
fn is_shown_plainly(
    (theme, case, is_filtered): (&str, &str, bool),
    got: &String,
    plain: &mut Vec<String>,
) -> bool {
    while !plain.contains(got) && plain.len() < PLAIN_RUNS {
        plain.push(observed(&plainly(theme, case, is_filtered)));
    }
    plain.contains(got)
}

/// Returns unexpected differences, and known differences that no longer occur.
fn complaints_about(
    theme: &str,
    case: &str,
    known: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let name = format!("{theme}.{case}");
    let mut complaints = Vec::new();
    let mut known_plain = [const { Vec::new() }; 2];
    for mode in run_modes() {
        let is_filtered = mode.name == CONTAINER;
        let plain = &mut known_plain[usize::from(is_filtered)];
        if plain.is_empty() {
            plain.push(observed(&plainly(theme, case, is_filtered)));
        }
        if plain[0].contains("setting up:") {
            // The filter forbids calls that some cases need.
            complaints.extend((!is_filtered).then(|| format!("{name}: {}", plain[0])));
            continue;
        }
        let ended = managed(mode, theme, case);
        let got = observed(&ended);
        let may_differ = known.get(&name).is_some_and(|run_modes| run_modes.contains(mode.name));
        if may_differ {
            if got == plain[0] {
                let mode = mode.name;
                complaints.push(format!(
                    "{name} no longer differs ({mode}): remove its line from \
                     tests/abi/differences.txt"
                ));
            }
        } else if !is_shown_plainly((theme, case, is_filtered), &got, plain) {
            let (plain, stderr) = (&plain[0], &ended.stderr);
            complaints.push(format!(
                "{name} differs ({})\n--- plain\n{plain}\n--- under softswap\n{got}\n--- its stderr\n{stderr}",
                mode.name
            ));
        }
    }
    complaints
}

#[test]
fn program_results_equal_linux() {
    let known = known();
    // SOFTSWAP_ABI_ONLY selects a theme or a case: `messages` or `messages.name`.
    let only = std::env::var("SOFTSWAP_ABI_ONLY").unwrap_or_default();
    let all: Vec<(String, String)> = themes()
        .into_iter()
        .flat_map(|theme| cases(&theme).into_iter().map(move |case| (theme.clone(), case)))
        .collect();
    assert!(all.len() >= MIN_CASES, "{} cases", all.len());
    for name in known.keys() {
        let exists = all.iter().any(|(theme, case)| *name == format!("{theme}.{case}"));
        assert!(exists, "differences.txt names {name}, which does not exist");
    }
    let wanted: Vec<_> = all
        .into_iter()
        .filter(|(theme, case)| {
            only.is_empty() || only == *theme || only == format!("{theme}.{case}")
        })
        .collect();
    let (next, complaints) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some((theme, case)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // A case that times out panics, which counts as a difference.
                    let judged = std::panic::catch_unwind(|| complaints_about(theme, case, &known));
                    let found = judged.unwrap_or_else(|panic| {
                        let why = panic.downcast_ref::<String>().map_or("", String::as_str);
                        vec![format!("{theme}.{case}: {why}")]
                    });
                    complaints.lock().unwrap().extend(found);
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{} differ\n{}", complaints.len(), complaints.join("\n"));
    println!("{} cases in {} ways", wanted.len(), run_modes().len());
}

#[test]
fn differing_result_is_detected() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = "#include \"abi.h\"\nCASE(c) { say(\"%d\", getpid()); }";
    std::fs::write(dir.path().join("differs.c"), source).expect("a source");
    std::fs::copy(sources().join("abi.h"), dir.path().join("abi.h")).expect("the header");
    let differs = compiled_from(dir.path(), "differs", "abi-differs");
    let plain = run(Command::new(&differs).arg("c"));
    let other = run(Command::new(&differs).arg("c"));
    assert_ne!(observed(&plain), observed(&other));
}
