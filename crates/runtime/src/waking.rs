//! A process sleeps as long as what it has committed fits its budget: it has no engine, no
//! handlers, no filter and no threads of ours, and its memory calls are the kernel's
//! ([`asleep`]). It wakes when a commit would exceed the budget, or before the program does what
//! would keep it from waking later: a second thread, a filter of its own, fewer rights.
//!
//! Then all that the start of a managed program does is done, around the memory that is there.
//! What the program has set up of signals meanwhile is taken over like what a constructor sets
//! up before the start.

use crate::base::instance;
use crate::bring_up;
use crate::guard::sigsys;
use crate::memory::asleep;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::mappings::program_break;
use crate::process::statistics;
use crate::signals::alternate_stack;
use softswap_engine::base::stats::Counter;
use softswap_engine::door::engine::waking::Before;
use softswap_engine::door::settings::Config;
use softswap_sys::descriptor::with_room;
use softswap_sys::file::may_make_files;
use softswap_sys::linked::{is_go_program, is_single_threaded};
use softswap_sys::window::longest_at;
use softswap_sys::{exemption, raw, signals, uffd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static CONFIG: OnceLock<Config> = OnceLock::new();

/// What an engine takes of a budget, roughly: that is left of it when the process wakes.
fn left_for_engine(memory_bytes: usize) -> usize {
    const LEAST: usize = 6 << 20;
    LEAST + memory_bytes / 16
}

/// Lets this process sleep, if it can: whether it does.
pub(crate) fn fall_asleep(config: &Config) -> bool {
    let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let limit_bytes = memory_bytes.saturating_sub(left_for_engine(memory_bytes));
    let Some(place) = config.place else { return false };
    // Files and devices are for one process, from its start. Where no engine could come up,
    // the start says so.
    let is_usable = |path: &Path| path.is_dir() && may_make_files(path).is_ok();
    let are_usable = || config.areas.iter().all(|area| is_usable(&area.path));
    if !config.sleep
        || !config.record.is_empty()
        || limit_bytes == 0
        // Its part of a budget that is shared is the engine's to move.
        || config.ledger_fd.is_some()
        || exemption::is_in_force()
        || !is_single_threaded()
        // What calls the kernel by itself is seen by the filter alone.
        || is_go_program()
        || !are_usable()
        || !uffd::is_allowed()
    {
        return false;
    }
    // What is started by a program that is awake has its filter, which must not look at memory
    // that sleeps: then the next place is as good, and gets a filter of its own on waking.
    let Some(base) = place.windows().find(|base| !sigsys::is_trapped(*base)) else { return false };
    let Some(len) = longest_at(base) else { return false };
    asleep::set_up(base, len, limit_bytes);
    statistics::say_asleep(config);
    CONFIG.get_or_init(|| config.clone());
    instance::fall_asleep(wake);
    true
}

static IS_WAKING: AtomicBool = AtomicBool::new(false);

/// Wakes this process, unless that cannot be now: in the child of a `vfork`, or in a handler on
/// an alternate stack, which the kernel would not let go of. The next commit tries again.
fn wake() {
    let (Some(config), Some((base, len))) = (CONFIG.get(), asleep::window()) else { return };
    let stack = alternate_stack::in_force();
    if !asleep::is_owner()
        || stack.ss_flags & libc::SS_ONSTACK != 0
        || IS_WAKING.swap(true, Ordering::AcqRel)
    {
        return;
    }
    let woken = raw::preserving_errno(|| {
        outside_the_window(|| {
            let reserved = program_break::reserved();
            let before = Before { base, len, reserved, is_odd: asleep::is_odd() };
            let up = || with_room(|| bring_up::bring_up(config, Some(&before)));
            let is_up = signals::with_all_blocked(up)?;
            instance::settle(is_up);
            if is_up {
                alternate_stack::remember(stack);
                bring_up::begin_managing().unwrap_or_else(|why| bring_up::fail(&why));
            }
            Ok::<bool, String>(is_up)
        })
    });
    match woken {
        Ok(_) => {
            if let Some(engine) = instance::engine() {
                signals::with_all_blocked(|| engine.fit());
                // What is used is told by now.
                engine.stats().set(Counter::Asleep, 0);
            }
        }
        Err(why) => {
            // Better beyond its budget than ended.
            instance::settle(false);
            raw::write_stderr(
                format!(
                    "softswap: memory is short, and this process cannot be managed: {why}; it \
                     goes on without a budget\n"
                )
                .as_bytes(),
            );
        }
    }
}
