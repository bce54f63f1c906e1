//! Start: settings, engine, background thread, handlers, filter.

use crate::{
    control, faults, fork, growing, guard, heap, library, masks, other_malloc, own_threads,
    redirect, streams, threads, transfers,
};
use softswap_engine::base::stats::{STATS_WORDS, Stats};
use softswap_engine::door::config::{Config, ENV_PREFIX, place as place_of_tree};
use softswap_engine::door::engine::Engine;
use softswap_engine::door::open_areas::{OpenError, open};
use softswap_sys::descriptor::with_room;
use softswap_sys::{exemption, kept, memory, place, raw, seccomp, shared, signals};
use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// Where the runtime stands.
const LOADING: u8 = 0;
const MANAGED: u8 = 1;
const PLAIN: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(LOADING);
static ENGINE: OnceLock<Engine> = OnceLock::new();
/// The descriptor of the statistics, which only this process's execs inherit.
static STATISTICS: AtomicI32 = AtomicI32::new(-1);
/// softswap's own failures end the program with this status, as `env` does.
const OWN_FAILURE: i32 = 125;

/// The engine, once it is up. Everything that lies in the window was put there
/// by it, so whoever has such an address gets `Some`.
#[inline]
pub(crate) fn engine() -> Option<&'static Engine> {
    if STATE.load(Ordering::Acquire) == MANAGED { ENGINE.get() } else { None }
}

/// Whether the runtime has decided what it does; before, memory comes from
/// the engine's own heap.
#[inline]
pub(crate) fn is_settled() -> bool {
    STATE.load(Ordering::Acquire) != LOADING
}

/// Whether an address is managed.
#[inline]
pub(crate) fn is_managed(address: usize) -> bool {
    engine().is_some_and(|engine| engine.contains(address))
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    raw::settle_stderr();
    // The standard hook allocates and looks at the environment, wherever the
    // program was interrupted; a message is all that is wanted.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or("", |location| location.file());
        raw::write_stderr(b"softswap: internal error in ");
        raw::write_stderr(place.as_bytes());
        raw::write_stderr(b"; stopping the program\n");
    }));
    let lookup = |name: &str| std::env::var(format!("{ENV_PREFIX}{name}")).ok();
    let place = place_of_tree(&lookup);
    if let Some(place) = place {
        place::inherit(place);
        // Before anything that filters of an earlier program's do not let pass.
        place::settle(place);
        exemption::look();
    }
    let state = match Config::from_env(lookup) {
        None => PLAIN,
        Some(Err(name)) => fail(&format!("the setting {ENV_PREFIX}{name} cannot be understood")),
        Some(Ok(config)) => match signals::with_all_blocked(|| with_room(|| bring_up(&config))) {
            Ok(true) => MANAGED,
            Ok(false) => PLAIN,
            Err(why) => fail(&why),
        },
    };
    STATE.store(state, Ordering::Release);
    if let Err(why) = signals::with_all_blocked(redirect::install) {
        say_not_redirected(&why);
    }
    if state == PLAIN
        && let Some(place) = place
    {
        place::hold(place);
    }
    if state == MANAGED {
        if let Err(why) = other_malloc::install() {
            fail(&why);
        }
        masks::adopt();
        // The guard last: from here on calls with managed pointers trap.
        control::prepare();
        // Under a filter of an earlier program's there are none.
        if !exemption::is_in_force() {
            own_threads::start();
        }
        if let Err(why) = install_guard() {
            fail(&why);
        }
    }
}

fn say_not_redirected(why: &std::io::Error) {
    raw::write_stderr(
        format!(
            "softswap: the C library's code cannot be changed here ({why}): \
             libraries opened with RTLD_DEEPBIND must not be used\n"
        )
        .as_bytes(),
    );
}

fn fail(why: &str) -> ! {
    raw::write_stderr(format!("softswap: {why}\n").as_bytes());
    // SAFETY: ends the process; no destructors are wanted half-way up.
    unsafe { libc::_exit(OWN_FAILURE) }
}

/// Brings the engine up; false where there is no swap area for this process.
fn bring_up(config: &Config) -> Result<bool, String> {
    let stats = statistics(config).map_err(|e| format!("cannot map the statistics: {e}"))?;
    let mut backing = Vec::new();
    // Named areas serve one process. What it starts in turn does without, also
    // where it could not even look at them.
    let is_first = is_supervised(config);
    for opened in open(&config.areas, config.reserve_bytes, config.avoid_io_uring, is_first) {
        match opened {
            Ok(area) => backing.push(area),
            Err(OpenError::Named(_)) if !is_first => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    if backing.is_empty() {
        return Ok(false);
    }
    let engine = Engine::start(config, backing, stats).map_err(|e| e.to_string())?;
    growing::set_up(&engine).map_err(|e| format!("cannot make the table of blocks: {e}"))?;
    if exemption::is_in_force() {
        engine.make_do(|| ());
    }
    ENGINE.get_or_init(|| engine);
    transfers::set_up(config.areas.iter().map(|area| area.path.clone()));
    if !config.manage_children {
        leave_children_alone();
    }
    heap::set_up();
    streams::set_up();
    library::find(config.memory_bytes as usize)?;
    let bus = faults::install().map_err(|e| format!("cannot handle SIGBUS: {e}"))?;
    let sys = guard::install().map_err(|e| format!("cannot handle SIGSYS: {e}"))?;
    threads::adopt_main().map_err(|e| format!("cannot make a signal stack: {e}"))?;
    masks::remember(bus, sys);
    fork::install()?;
    Ok(true)
}

/// In a forked child: its statistics are its own, and so are those of what it
/// starts.
pub(crate) fn leave_statistics() {
    let number = STATISTICS.swap(-1, Ordering::Relaxed);
    if number >= 0 {
        kept::forget(number);
        // SAFETY: takes no pointers; nobody uses the number any more.
        unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Whether `softswap run` started this very process.
fn is_supervised(config: &Config) -> bool {
    // A filter that an earlier program left may forbid to ask.
    let parent = raw::parent_process();
    parent > 0 && Some(parent) == config.supervisor_pid
}

fn statistics(config: &Config) -> std::io::Result<Stats> {
    let stats = find_statistics(config)?;
    // Where it is refused a child needs what it asks for then.
    let _ = shared::prepare_private(stats.words());
    Ok(stats)
}

fn find_statistics(config: &Config) -> std::io::Result<Stats> {
    // The page is for the process that `softswap run` started, whatever it
    // becomes by exec; those it starts in turn count for themselves.
    if let Some(number) = config.stats_fd {
        // SAFETY: borrowed for these calls only; a wrong number is refused by them.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        if is_supervised(config) {
            if let Ok(words) = shared::open(fd, STATS_WORDS) {
                // What this process becomes by exec goes on with it.
                kept::keep(number);
                STATISTICS.store(number, Ordering::Relaxed);
                return Ok(Stats::new(words));
            }
        } else if shared::is_shared(fd, STATS_WORDS) {
            // Come by way of posix_spawn, from the process that it is for.
            // SAFETY: takes no pointers; nobody here knows the number yet.
            unsafe { raw::syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
        }
    }
    Ok(Stats::new(memory::reserve_u64(STATS_WORDS)?))
}

/// Programs that this one starts run without softswap.
fn leave_children_alone() {
    // Without a budget there is no configuration. The library itself stays
    // preloaded and out of the way: other entries of LD_PRELOAD are the user's.
    // SAFETY: called while loading, before the program has threads.
    unsafe { remove_variable("MEMORY") };
}

/// # Safety
/// No other thread reads or changes the environment.
unsafe fn remove_variable(name: &str) {
    if let Ok(name) = CString::new(format!("{ENV_PREFIX}{name}")) {
        // SAFETY: a valid C string; the caller rules out races.
        unsafe { libc::unsetenv(name.as_ptr()) };
    }
}

fn install_guard() -> Result<(), String> {
    let Some(engine) = engine() else { return Ok(()) };
    if guard::is_inherited(engine)? {
        return Ok(());
    }
    let (base, len) = engine.window();
    let program = seccomp::build(base, len, raw::exempt_instruction_pointer());
    seccomp::install(&program).map_err(|e| {
        format!(
            "cannot install the system-call guard (seccomp): {e}; \
             the kernel needs CONFIG_SECCOMP_FILTER and a container must allow seccomp(2)"
        )
    })
}
