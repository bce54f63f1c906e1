//! Starts the engine of this process, at load time or when the process wakes.

use crate::base::{instance, signal_stack};
use crate::guard::sigsys;
use crate::memory::{arenas, growing, libc_memory, other_malloc, stdio_buffers};
use crate::process::{
    control_thread, engine_threads, fork, program_threads, shared_areas, statistics, tree, turns,
};
use crate::signals::{lifecycle, page_fault};
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::waking::Before;
use softswap_engine::api::open_areas::{OpenError, not_on_disk, open};
use softswap_engine::api::settings::{Config, ENV_PREFIX, Faults};
use softswap_engine::store::swap::Backing;
use softswap_sys::file::FileError;
use softswap_sys::linked::is_go_program;
use softswap_sys::signals::{self, SIGBUS, SIGSEGV, SIGSYS};
use softswap_sys::{exemption, raw, seccomp};
use std::ffi::CString;

/// Exit status for softswap's own failures, as in `env`.
const OWN_FAILURE: i32 = 125;

/// Does not run destructors: the engine is only partly initialized. `is_started`: by a managed
/// program; the message then names the program.
pub(crate) fn fail(is_started: bool, why: &str) -> ! {
    let program = match is_started {
        true => format!("cannot start {}: ", own_name()),
        false => String::new(),
    };
    raw::write_stderr(format!("softswap: {program}{why}\n").as_bytes());
    // SAFETY: exits the process. Destructors must not run on partly initialized state.
    unsafe { libc::_exit(OWN_FAILURE) }
}

/// `sh (pid 4711)`
fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_else(|_| "a program".into());
    format!("{} (pid {})", name.trim_end().escape_debug(), raw::current_process())
}

pub(crate) fn prepare(config: &Config) -> Result<(), String> {
    if config.faults == Faults::Protection {
        signals::never_block_segv();
    }
    if !config.manage_children {
        disable_child_management();
    }
    program_threads::set_up();
    arenas::set_up(!config.awake);
    stdio_buffers::set_up();
    libc_memory::find(config.memory_bytes as usize)?;
    fork::install()
}

/// `before` describes the memory that a waking process already has.
pub(crate) fn bring_up(config: &Config, before: Option<&Before>) -> Result<(), String> {
    let stats = statistics::map(config).map_err(|e| format!("cannot map the statistics: {e}"))?;
    let backing = open_areas(config)?;
    let is_first = statistics::is_supervised(config);
    // The recording belongs to the first process, including the programs it becomes by exec. A
    // child would start the recording again.
    let record = if is_first { config.record.clone() } else { String::new() };
    let shared_bytes = tree::join(config);
    let memory_bytes = shared_bytes.unwrap_or(config.memory_bytes);
    let config = &Config { record, memory_bytes, ..config.clone() };
    let started = match before {
        None => Engine::start(config, backing, stats).map(|engine| (engine, Vec::new())),
        Some(before) => Engine::start_around(config, backing, stats, before),
    };
    let (engine, locked) = started.map_err(|e| e.to_string())?;
    growing::set_up(&engine)
        .map_err(|e| format!("cannot allocate the table of large blocks: {e}"))?;
    if exemption::is_in_force() {
        engine.enter_restricted_mode(|| ());
    }
    if tree::is_shared() {
        engine.share_budget(tree::grow);
        engine.share_turns(turns::await_turn);
        tree::inherit_minimum(&engine);
    }
    instance::keep(engine);
    // After `keep`: the share of the budget may have to grow.
    let unlocked_bytes = instance::kept().map_or(0, |engine| engine.adopt_locked(&locked));
    note_if_unlocked(unlocked_bytes, config);
    if !instance::emulates_signals() {
        take_signals()?;
    }
    Ok(())
}

fn note_if_unlocked(bytes: usize, config: &Config) {
    if bytes > 0 && !config.quiet {
        let line = format!(
            "softswap: note: {} MiB of locked memory (mlock) are no longer locked, because a quarter of \
             the budget is the limit; raise --memory\n",
            bytes.div_ceil(1 << 20)
        );
        raw::write_stderr(line.as_bytes());
    }
}

/// Notes swap directories in DRAM: in a sandbox, a tmpfs may cover the disk.
fn note_if_in_memory(config: &Config) {
    for error in not_on_disk(&config.areas) {
        if matches!(error, FileError::InMemory { .. }) && !config.quiet {
            let process = raw::current_process();
            raw::write_stderr(format!("softswap: note: process {process}: {error}\n").as_bytes());
        }
    }
}

/// Skips named areas that cannot be opened if another area opens: outside `softswap run` they serve
/// only one process.
fn open_areas(config: &Config) -> Result<Vec<Backing>, String> {
    note_if_in_memory(config);
    let tables = shared_areas::tables(config);
    let opened = open(&config.areas, tables, config.reserve_bytes, config.avoid_io_uring);
    let (mut backing, mut refused) = (Vec::new(), None);
    for opened in opened {
        match opened {
            // `softswap run` has checked that there was space at the start.
            Ok(area) => backing.push(area.even_if_full()),
            Err(why @ OpenError::Directory(_)) => return Err(why.to_string()),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    match refused {
        Some(why) if backing.is_empty() => Err(why.to_string()),
        _ => Ok(backing),
    }
}

/// Called while the process has one thread.
pub(crate) fn take_signals() -> Result<(), String> {
    let bus = page_fault::install().map_err(|e| format!("cannot handle SIGBUS: {e}"))?;
    let segv = match signals::never_blocked() & signals::bit(SIGSEGV) {
        0 => None,
        _ => Some(page_fault::install_segv().map_err(|e| format!("cannot handle SIGSEGV: {e}"))?),
    };
    let sys = sigsys::install().map_err(|e| format!("cannot handle SIGSYS: {e}"))?;
    program_threads::adopt_main().map_err(|e| format!("cannot allocate a signal stack: {e}"))?;
    signal_stack::manage_stacks();
    if is_go_program() {
        signal_stack::reserve_program_half();
    }
    let segv = segv.map(|action| (SIGSEGV, action));
    lifecycle::remember([(SIGBUS, bus), (SIGSYS, sys)].into_iter().chain(segv));
    Ok(())
}

/// Installs the guard last: after that, calls with managed pointers trap.
///
/// # Errors
/// If the guard cannot be installed. The program must not continue.
pub(crate) fn begin_managing() -> Result<(), String> {
    lifecycle::adopt();
    start_threads();
    install_guard()
}

/// Does nothing if a filter of an earlier program is in force.
pub(crate) fn start_threads() {
    if !exemption::is_in_force() {
        engine_threads::start();
    }
}

pub(crate) fn record_initial_state() -> Result<(), String> {
    other_malloc::install()?;
    control_thread::prepare();
    Ok(())
}

fn disable_child_management() {
    // Without a budget in the environment, the library is inactive in children. It stays in
    // LD_PRELOAD, whose other entries belong to the user. SAFETY: called while loading, before the
    // program has threads.
    unsafe { remove_variable("MEMORY") };
}

/// # Safety
/// No other thread reads or changes the environment.
unsafe fn remove_variable(name: &str) {
    if let Ok(name) = CString::new(format!("{ENV_PREFIX}{name}")) {
        // SAFETY: the argument is a valid C string; the caller rules out races.
        unsafe { libc::unsetenv(name.as_ptr()) };
    }
}

fn install_guard() -> Result<(), String> {
    let Some(engine) = instance::engine() else { return Ok(()) };
    if sigsys::is_inherited(engine)? {
        return Ok(());
    }
    let (base, len) = engine.window();
    install_filter(base, len)
}

pub(crate) fn install_filter(base: usize, len: usize) -> Result<(), String> {
    let program = seccomp::build(base, len, raw::exempt_instruction_pointer());
    seccomp::install(&program).map_err(|e| {
        format!(
            "cannot install the system-call guard (seccomp): {e}; \
             the kernel needs CONFIG_SECCOMP_FILTER and a container must allow seccomp(2)"
        )
    })
}
