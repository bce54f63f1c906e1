//! Initialization when the loader loads the library.

use crate::base::instance;
use crate::bring_up::{self, fail};
use crate::guard::advertised_memory;
use crate::memory::{arenas, dlopen, inline_calls, libc_malloc_patch};
use crate::process::spawn::{argument_copies, carried};
use crate::waking;
use softswap_engine::api::settings::{Config, ENV_PREFIX, Faults, bases as bases_of_tree};
use softswap_sys::alloc::while_blocked;
use softswap_sys::descriptor::with_raised_limit;
use softswap_sys::linked::is_go_program_that_forks;
use softswap_sys::{aslr, exemption, raw, seccomp, signals, uffd};

/// Symbol by which the `softswap` command recognizes the library.
#[unsafe(export_name = "softswap_runtime")]
pub static RUNTIME: u8 = 1;

/// Runs before mimalloc's constructor.
#[used]
#[unsafe(link_section = ".init_array.00098")]
static BEFORE_MIMALLOC: extern "C" fn() = arenas::ignore_variables;

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    raw::record_stderr();
    set_panic_hook();
    arenas::skip_collection_at_exit();
    let lookup = |name: &str| std::env::var(format!("{ENV_PREFIX}{name}")).ok();
    let bases = bases_of_tree(&lookup);
    if let Some(bases) = bases {
        aslr::inherit(bases);
        // Must precede calls that the filter of an earlier program would reject.
        exemption::detect_inherited();
    }
    let is_started = lookup("STARTED").is_some();
    let mut is_emulated = is_started && is_under_valgrind();
    let mut advertised_bytes = 0;
    let is_managed = match while_blocked(|| Config::from_env(lookup)) {
        _ if is_emulated => false,
        None => false,
        Some(Err(name)) => fail(
            is_started,
            &format!(
                "the variable {ENV_PREFIX}{name} has no valid value; start the program with \
                 `softswap run` of this version"
            ),
        ),
        Some(Ok(config)) => {
            is_emulated = is_started && is_under_emulator(config.faults);
            advertised_bytes = config.advertised_bytes;
            let config = Config { faults: config.faults.settled(), ..config };
            start(&config, is_emulated).unwrap_or_else(|why| fail(is_started, &why))
        }
    };
    if !instance::is_asleep() {
        instance::set_managed(is_managed);
    }
    if let Err(why) = while_blocked(libc_malloc_patch::install) {
        report_not_patched(&why);
    }
    if let Err(why) = while_blocked(|| advertised_memory::begin(advertised_bytes)) {
        report_not_advertised(&why);
    }
    if is_managed {
        begin_managing(is_started);
    } else if let Some(bases) = bases.filter(|_| !is_emulated) {
        // Skipped under an emulator, where the reservation may use memory for each page.
        aslr::hold(bases);
    }
    argument_copies::set_up();
    while_blocked(carried::hide);
}

/// The default hook allocates and reads the environment, which is unsafe in interrupted code. This
/// one only writes a message, whether panics abort or unwind.
fn set_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or("", |location| location.file());
        raw::write_stderr(b"softswap: internal error in ");
        raw::write_stderr(place.as_bytes());
        raw::write_stderr(b"; stopping the program\n");
        std::process::abort();
    }));
}

/// A sleeping program only records its initial state. `is_started`: by a managed program.
fn begin_managing(is_started: bool) {
    dlopen::manage();
    let recorded = while_blocked(bring_up::record_initial_state);
    let managing = recorded.and_then(|()| match instance::is_asleep() {
        true => Ok(()),
        false => bring_up::begin_managing(),
    });
    if let Err(why) = managing {
        // A sleeping program that a managed one has started runs unmanaged; any other fails.
        match is_started && instance::is_asleep() {
            true => instance::set_managed(false),
            false => fail(is_started, &why),
        }
    }
    if !instance::is_plain() {
        inline_calls::trap_new_objects();
    }
}

/// valgrind has no userfaultfd, and prints a warning if a process requests it.
fn is_under_valgrind() -> bool {
    std::env::var("LD_PRELOAD").is_ok_and(|preloaded| preloaded.contains("/vgpreload_"))
}

fn report_not_patched(why: &std::io::Error) {
    raw::write_stderr(
        format!(
            "softswap: the C library's code cannot be patched ({why}): \
             libraries that look up malloc in the C library's handle must not be used\n"
        )
        .as_bytes(),
    );
}

fn report_not_advertised(why: &std::io::Error) {
    raw::write_stderr(
        format!(
            "softswap: --tell has no effect: the C library's code cannot be patched ({why}). The \
             program sees the machine's memory; set its own memory option (java -Xmx)\n"
        )
        .as_bytes(),
    );
}

/// Returns true in an emulator that a managed parent started. An emulator has neither userfaultfd
/// nor the seccomp filters that page protection needs.
fn is_under_emulator(faults: Faults) -> bool {
    // The program could install a filter (`exemption`) or use userfaultfd, so this is no emulator.
    if exemption::is_in_force() || faults == Faults::Auto && uffd::is_allowed() {
        return false;
    }
    uffd::is_unknown()
        && (faults == Faults::Userfaultfd
            || !seccomp::is_available()
            || Faults::Protection.check().is_err())
}

/// Returns false if the process is unmanaged.
fn start(config: &Config, is_emulated: bool) -> Result<bool, String> {
    // Such a Go program issues instructions of its own, with all signals blocked, before exec.
    if is_go_program_that_forks() {
        return Ok(false);
    }
    while_blocked(|| bring_up::prepare(config))?;
    if is_emulated {
        return Ok(false);
    }
    if waking::fall_asleep(config) {
        return Ok(true);
    }
    signals::with_all_blocked(|| with_raised_limit(|| bring_up::bring_up(config, None)))?;
    Ok(true)
}
