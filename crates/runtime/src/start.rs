//! What the loader calls: settings, engine, background threads, handlers, filter.

use crate::base::instance;
use crate::guard::sigsys;
use crate::guard::transfers::buffers;
use crate::memory::{growing, heap, libc_memory, other_malloc, redirect, stdio_buffers};
use crate::process::spawn::argument_copies;
use crate::process::{control_thread, engine_threads, fork, program_threads, statistics};
use crate::signals::{lifecycle, page_fault};
use softswap_engine::door::engine::Engine;
use softswap_engine::door::open_areas::{OpenError, open};
use softswap_engine::door::settings::{Config, ENV_PREFIX, place as place_of_tree};
use softswap_sys::descriptor::with_room;
use softswap_sys::{aslr, exemption, raw, seccomp, signals};
use std::ffi::CString;

/// softswap's own failures end the program with this status, as `env` does.
const OWN_FAILURE: i32 = 125;

/// By this name the command knows the library.
#[unsafe(export_name = "softswap_runtime")]
pub static RUNTIME: u8 = 1;

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
        aslr::inherit(place);
        // Before anything that filters of an earlier program's do not let pass.
        aslr::settle(place);
        exemption::look();
    }
    let is_managed = match Config::from_env(lookup) {
        None => false,
        Some(Err(name)) => fail(&format!("the setting {ENV_PREFIX}{name} cannot be understood")),
        Some(Ok(config)) => match signals::with_all_blocked(|| with_room(|| bring_up(&config))) {
            Ok(is_up) => is_up,
            Err(why) => fail(&why),
        },
    };
    instance::settle(is_managed);
    if let Err(why) = signals::with_all_blocked(redirect::install) {
        say_not_redirected(&why);
    }
    if is_managed {
        begin_managing();
    } else if let Some(place) = place {
        aslr::hold(place);
    }
    argument_copies::set_up();
}

/// From here on what the program does is seen. The guard last: then calls with managed
/// pointers trap.
fn begin_managing() {
    if let Err(why) = other_malloc::install() {
        fail(&why);
    }
    lifecycle::adopt();
    control_thread::prepare();
    // Under a filter of an earlier program's there are none.
    if !exemption::is_in_force() {
        engine_threads::start();
    }
    if let Err(why) = install_guard() {
        fail(&why);
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
    let stats = statistics::map(config).map_err(|e| format!("cannot map the statistics: {e}"))?;
    let mut backing = Vec::new();
    // Named areas serve one process. What it starts in turn does without, also
    // where it could not even look at them.
    let is_first = statistics::is_supervised(config);
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
    // The file is the first process's, whatever that becomes by exec: another one that it
    // starts would begin the recording again.
    let record = if is_first { config.record.clone() } else { String::new() };
    let config = &Config { record, ..config.clone() };
    let engine = Engine::start(config, backing, stats).map_err(|e| e.to_string())?;
    growing::set_up(&engine).map_err(|e| format!("cannot make the table of blocks: {e}"))?;
    if exemption::is_in_force() {
        engine.make_do(|| ());
    }
    instance::keep(engine);
    buffers::set_up(config.areas.iter().map(|area| area.path.clone()));
    if !config.manage_children {
        leave_children_alone();
    }
    heap::set_up();
    stdio_buffers::set_up();
    libc_memory::find(config.memory_bytes as usize)?;
    let bus = page_fault::install().map_err(|e| format!("cannot handle SIGBUS: {e}"))?;
    let sys = sigsys::install().map_err(|e| format!("cannot handle SIGSYS: {e}"))?;
    program_threads::adopt_main().map_err(|e| format!("cannot make a signal stack: {e}"))?;
    lifecycle::remember(bus, sys);
    fork::install()?;
    Ok(true)
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
    let Some(engine) = instance::engine() else { return Ok(()) };
    if sigsys::is_inherited(engine)? {
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
