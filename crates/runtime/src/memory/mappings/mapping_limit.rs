//! Memory calls of the program at the kernel's limit on mappings, which page protection uses up.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use softswap_engine::api::engine::Engine;
use softswap_sys::signals;

/// If the process has too many mappings for the call, evicts pages and repeats it.
pub(super) fn issue_with_room(number: i64, arguments: Arguments) -> isize {
    let result = issue(number, arguments);
    let frees_mappings = |engine: &Engine| signals::with_all_blocked(|| engine.free_mappings());
    match result == refused(libc::ENOMEM) && instance::engine().is_some_and(frees_mappings) {
        true => issue(number, arguments),
        false => result,
    }
}
