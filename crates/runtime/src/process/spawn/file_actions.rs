//! Copies of the file actions of `posix_spawn`, which leave the engine's descriptors open.
//!
//! glibc carries the actions out in the child by instructions of its own, so the functions that hide
//! the engine's descriptors do not see them.

use super::argument_copies::{Copies, Readable};
use crate::process::descriptors::{for_each_open, is_engine_descriptor, last_hidden_from};
use std::ffi::c_char;

pub(super) type FileActions = *const libc::posix_spawn_file_actions_t;

/// A file action in glibc: a tag, then numbers and at most one path.
type Action = [usize; 4];

/// glibc's tags of actions.
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

/// Returns the index of an action's word that is a path.
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

/// Returns the last descriptor that an action must leave open, if it would close one.
fn last_to_keep(action: &Action) -> Option<u32> {
    if tag(action) == CLOSE_FROM { last_hidden_from(number(action)) } else { None }
}

/// Actions of the program.
pub(super) struct GivenActions<'a> {
    object: Actions,
    list: &'a [Action],
    /// Largest number of actions in the copy.
    most: usize,
}

impl<'a> GivenActions<'a> {
    /// # Safety
    /// `actions` is a valid file-actions object.
    pub(super) unsafe fn of(actions: &'a libc::posix_spawn_file_actions_t) -> Self {
        // SAFETY: the object starts with these fields in glibc, and `used` actions are in the array.
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
                open += SPARE + list.len();
            }
            open + 1
        });
        GivenActions { object, list, most: most.sum() }
    }

    /// Returns how many bytes the copy takes.
    pub(super) fn copy_bytes(&self) -> usize {
        let path_bytes = self.list.iter().filter_map(|action| {
            path_word(action).map(|word| Readable::new().text_bytes(action[word] as *const c_char))
        });
        size_of::<Actions>() + self.most * size_of::<Action>() + path_bytes.sum::<usize>()
    }

    /// Copies the actions. `copies` has space for [`GivenActions::copy_bytes`].
    pub(super) fn copy(&self, copies: &mut Copies) -> FileActions {
        let array = copies.take(self.most * size_of::<Action>()).cast::<Action>();
        let mut used = 0;
        let mut add = |action: Action| {
            if used < self.most {
                // SAFETY: `used` is within the array.
                unsafe { array.add(used).write(action) };
                used += 1;
            }
        };
        for (index, action) in self.list.iter().enumerate() {
            let mut copy = *action;
            if let Some(word) = path_word(action) {
                copy[word] = copies.copy_text(action[word] as *const c_char) as usize;
            }
            match last_to_keep(action) {
                // For the program, the number is not open.
                None if tag(action) == CLOSE && is_engine_descriptor(number(action) as i32) => {}
                None => add(copy),
                Some(last) => close_around(&self.list[..index], number(action), last, &mut add),
            }
        }
        let object =
            Actions { actions: array, allocated: used as i32, used: used as i32, ..self.object };
        // SAFETY: `Actions` is plain data without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const object).cast::<u8>(), size_of::<Actions>())
        };
        copies.copy_bytes(bytes).cast()
    }
}

/// Adds actions that close what is open from `first` on, or opened by `earlier` actions, except the
/// engine's descriptors, of which `last` is the highest.
fn close_around(earlier: &[Action], first: u32, last: u32, add: &mut impl FnMut(Action)) {
    let close = |number: u32| [CLOSE as usize, number as usize, 0, 0];
    let in_range = |number: u32| (first..=last).contains(&number);
    let mut add_open = |open: i32| {
        if in_range(open as u32) {
            add(close(open as u32));
        }
    };
    if for_each_open(first, &mut add_open).is_err() {
        // Without the list the child loses the engine's descriptors, and has a fixed budget.
        add([CLOSE_FROM as usize, first as usize, 0, 0]);
        return;
    }
    let opened =
        earlier.iter().filter(|action| matches!(tag(action), DUPLICATE | OPEN)).map(number);
    opened
        .filter(|opened| in_range(*opened) && !is_engine_descriptor(*opened as i32))
        .for_each(|opened| add(close(opened)));
    add([CLOSE_FROM as usize, last as usize + 1, 0, 0]);
}
