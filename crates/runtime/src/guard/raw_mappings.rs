//! Memory that the program maps by `syscall` instructions of its own, as `rustix` does.
//!
//! Loaded code is searched for such instructions. If there are any, the process wakes, and a
//! filter traps private anonymous mappings from them. They are then mapped as by the C library's
//! `mmap`. Code is searched when a process wakes, before its second thread starts, and after
//! `dlopen` of a path: a sleeping process has no filter.

use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::memory::asleep::MIN_MANAGED_BYTES;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::mappings::memory_calls;
use softswap_sys::linked::is_go_program;
use softswap_sys::locked::Locked;
use softswap_sys::raw_calls::Searched;
use softswap_sys::raw_mmap::{MOST_SITES, install};
use softswap_sys::{aslr, exemption, signals};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The address after each such instruction; 0 in unused entries.
static SITES: [AtomicUsize; MOST_SITES] = [const { AtomicUsize::new(0) }; MOST_SITES];

struct State {
    searched: Searched,
    /// Sites that are known, and those for which there is a filter.
    known: usize,
    guarded: usize,
}

/// A thread that does not get it returns: a forked child may find it taken for ever.
static STATE: Locked<State> =
    Locked::new(State { searched: Searched::new(), known: 0, guarded: 0 });

/// Searches code that was loaded since the last call. Wakes the process if that code maps memory
/// by itself, and has it trapped.
pub(crate) fn look() {
    if !instance::is_settled() || instance::is_plain() || exemption::is_in_force() {
        return;
    }
    if !is_wanted() {
        return;
    }
    let unguarded = locked(|state| {
        search(state);
        state.known > state.guarded
    });
    if unguarded == Some(true) && instance::awake().is_some() {
        locked(guard);
    }
}

fn locked<R>(body: impl FnOnce(&mut State) -> R) -> Option<R> {
    signals::with_all_blocked(|| outside_the_window(|| STATE.try_with_mask_as_is(body)))
}

/// Returns true in a program whose instructions can be trapped. Go maps memory with SIGSYS
/// blocked, and so would be killed. Without address randomisation the filter could match
/// in a program that is started by `exec`.
fn is_wanted() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static WANTED: AtomicU8 = AtomicU8::new(UNKNOWN);
    if WANTED.load(Ordering::Relaxed) == UNKNOWN {
        let is_wanted = !is_go_program() && aslr::is_randomized();
        WANTED.store(if is_wanted { YES } else { NO }, Ordering::Relaxed);
    }
    WANTED.load(Ordering::Relaxed) == YES
}

fn search(state: &mut State) {
    let c_library = libc::gnu_get_libc_version as *const () as usize;
    let loader = {
        // SAFETY: the function returns a number.
        unsafe { libc::getauxval(libc::AT_BASE) as usize }
    };
    let left_out = [c_library, loader, look as *const () as usize];
    for site in state.searched.new_sites(&left_out) {
        if let Some(entry) = SITES.get(state.known) {
            entry.store(site, Ordering::Release);
            state.known += 1;
        }
    }
}

/// Installs a filter for sites that have none.
fn guard(state: &mut State) {
    let sites = SITES[state.guarded..state.known].iter();
    let sites: Vec<usize> = sites.map(|site| site.load(Ordering::Acquire)).collect();
    if !sites.is_empty() && install(&sites, MIN_MANAGED_BYTES as u32).is_ok() {
        state.guarded = state.known;
    }
}

/// Returns true if a trapped call is a mapping from one of the sites.
pub(super) fn is_site(number: i64, caller: u64) -> bool {
    let sites = || SITES.iter().map(|site| site.load(Ordering::Acquire));
    number == libc::SYS_mmap
        && sites().take_while(|site| *site != 0).any(|site| site as u64 == caller)
}

/// Maps as the C library's `mmap` does. A child that this library did not fork has no managed
/// memory, and a filter of the program's own judges the call.
pub(super) fn answer(arguments: Arguments) -> isize {
    if exemption::is_in_force() || !instance::is_in_own_process() {
        return issue(libc::SYS_mmap, arguments);
    }
    memory_calls::map(arguments)
}
