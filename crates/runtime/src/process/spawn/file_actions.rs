//! Copies of the file actions of `posix_spawn`, which leave the engine's descriptors open.
//!
//! glibc carries the actions out in the child by instructions of its own, so the functions that
//! hide the engine's descriptors do not see them.

use super::argument_copies::{Copies, Readable};
use crate::process::descriptors::{for_each_open, is_engine_descriptor, last_hidden_from};
use softswap_sys::exemption;
use std::cell::Cell;
use std::ffi::c_char;

pub(super) type FileActions = *const libc::posix_spawn_file_actions_t;

/// A file action in glibc: a tag, then numbers and at most one path.
type Action = [usize; 4];

const CLOSE: u32 = 0;
const DUPLICATE: u32 = 1;
const OPEN: u32 = 2;
const CHANGE_DIRECTORY: u32 = 3;
const CLOSE_FROM: u32 = 5;

/// Descriptors that other threads may open while the actions are copied.
const SPARE: usize = 64;

/// Public part of glibc's `posix_spawn_file_actions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Actions {
    allocated: i32,
    used: i32,
    actions: *const Action,
    pad: [i32; 16],
}

fn tag(action: &Action) -> u32 {
    action[0] as u32
}

fn path_word(action: &Action) -> Option<usize> {
    match tag(action) {
        OPEN => Some(2),
        CHANGE_DIRECTORY => Some(1),
        _ => None,
    }
}

/// Returns the descriptor that an action closes or opens, or from which on it closes all.
fn number(action: &Action) -> u32 {
    match tag(action) {
        DUPLICATE => (action[1] >> 32) as u32,
        _ => action[1] as u32,
    }
}

/// Returns the last descriptor that an action must leave open, if it would close one. Under the
/// program's own filter, which may forbid listing the descriptors, the action stays as it is. The
/// child then has a fixed budget.
fn last_to_keep(action: &Action) -> Option<u32> {
    match tag(action) {
        CLOSE_FROM if !exemption::is_in_force() => last_hidden_from(number(action)),
        _ => None,
    }
}

pub(super) struct GivenActions<'a> {
    object: Actions,
    list: &'a [Action],
    most: usize,
}

impl<'a> GivenActions<'a> {
    /// # Safety
    /// `actions` is a valid file-actions object.
    pub(super) unsafe fn of(actions: &'a libc::posix_spawn_file_actions_t) -> Self {
        // SAFETY: the object starts with these fields in glibc; the array has `used` actions.
        let (object, list) = unsafe {
            let object = *(&raw const *actions).cast::<Actions>();
            let list: &[Action] = match object.used {
                0 => &[],
                used => std::slice::from_raw_parts(object.actions, used as usize),
            };
            (object, list)
        };
        let most = list.iter().map(|action| {
            let mut open = 0;
            if last_to_keep(action).is_some() {
                // If the list cannot be read, the copy is the action itself.
                let _ = for_each_open(number(action), |_| open += 1);
                open += 2 * SPARE + list.len();
            }
            open + 1
        });
        GivenActions { object, list, most: most.sum() }
    }

    pub(super) fn copy_bytes(&self) -> usize {
        let path_bytes = self.list.iter().filter_map(|action| {
            path_word(action).map(|word| Readable::new().text_bytes(action[word] as *const c_char))
        });
        size_of::<Actions>() + self.most * size_of::<Action>() + path_bytes.sum::<usize>()
    }

    /// Copies the actions. `copies` has space for [`GivenActions::copy_bytes`].
    pub(super) fn copy(&self, copies: &mut Copies) -> FileActions {
        let array = copies.take(self.most * size_of::<Action>()).cast::<Action>();
        let used = Cell::new(0);
        let add = |action: Action| {
            // SAFETY: at most `most` actions are added, as many as the array has.
            unsafe { array.add(used.get()).write(action) };
            used.set(used.get() + 1);
        };
        for (index, action) in self.list.iter().enumerate() {
            let mut copy = *action;
            if let Some(word) = path_word(action) {
                copy[word] = copies.copy_text(action[word] as *const c_char) as usize;
            }
            let Some(last) = last_to_keep(action) else {
                // For the program, the engine's numbers are not open.
                if tag(action) != CLOSE || !is_engine_descriptor(number(action) as i32) {
                    add(copy);
                }
                continue;
            };
            // Each later action needs a place, and other threads may have opened descriptors.
            let begin = used.get();
            let mut left = (self.most - begin).saturating_sub(self.list.len() - 1 - index);
            let mut is_full = false;
            let is_listed =
                close_around(&self.list[..index], number(action), last, |action| match left {
                    0 => is_full = true,
                    _ => {
                        left -= 1;
                        add(action);
                    }
                });
            if is_full || !is_listed {
                // The child loses the engine's descriptors, and has a fixed budget.
                used.set(begin);
                add(copy);
            }
        }
        let count = used.get() as i32;
        let object = Actions { actions: array, allocated: count, used: count, ..self.object };
        // SAFETY: `Actions` is plain data without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const object).cast::<u8>(), size_of::<Actions>())
        };
        copies.copy_bytes(bytes).cast()
    }
}

/// Adds actions that close what is open from `first` on, or opened by `earlier` actions, except the
/// engine's descriptors, of which `last` is the highest. Other threads open the lowest free
/// numbers, so actions close these, too. Returns false if the descriptors cannot be listed.
fn close_around(earlier: &[Action], first: u32, last: u32, mut add: impl FnMut(Action)) -> bool {
    let is_closed =
        |at: u32| earlier.iter().any(|action| tag(action) == CLOSE && number(action) == at);
    // At or above the limit, glibc's child fails if the number is not open.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let is_below_limit = |at: u32| limit.is_none_or(|limit| u64::from(at) < limit);
    let mut close = |at: u32| add([CLOSE as usize, at as usize, 0, 0]);
    let (mut next, mut spare) = (first, SPARE);
    let mut close_free = |until: u32, close: &mut dyn FnMut(u32)| {
        while next < until && spare > 0 {
            if is_below_limit(next) && !is_engine_descriptor(next as i32) {
                close(next);
                spare -= 1;
            }
            next += 1;
        }
        next = until.saturating_add(1);
    };
    let is_listed = for_each_open(first, |open| {
        let open = open as u32;
        if open <= last {
            close_free(open, &mut close);
            if !is_closed(open) {
                close(open);
            }
        }
    });
    close_free(last, &mut close);
    for action in earlier.iter().filter(|action| matches!(tag(action), DUPLICATE | OPEN)) {
        // A number of the engine's is the program's in the child from this action on.
        if (first..=last).contains(&number(action)) {
            close(number(action));
        }
    }
    add([CLOSE_FROM as usize, last as usize + 1, 0, 0]);
    is_listed.is_ok()
}
