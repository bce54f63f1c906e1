//! `posix_spawn`: its child shares the parent's memory, but not its handlers.

use super::argument_copies::{Copies, Readable, Strings};
use super::environment::with_environment;
use super::exec_call::program_bytes;
use super::started_program::{self, Scratch};
use super::{carried, path_search};
use crate::base::instance;
use crate::base::real::real;
use crate::memory::sleep_gate;
use crate::process::tree_asleep;
use crate::signals::exec_mask;
use std::ffi::c_char;

type FileActions = *const libc::posix_spawn_file_actions_t;
type SpawnAttributes = *const libc::posix_spawnattr_t;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    FileActions,
    SpawnAttributes,
    Strings,
    Strings,
) -> i32;

/// Size of one file action in glibc: a tag, then numbers and at most one path.
const ACTION_BYTES: usize = 32;

/// Public part of glibc's `posix_spawn_file_actions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Actions {
    allocated: i32,
    used: i32,
    actions: *const [usize; ACTION_BYTES / size_of::<usize>()],
    pad: [i32; 16],
}

/// Returns the index of an action's word that is a path: glibc's tags 2 (open) and 3 (chdir).
fn path_word(action: &[usize; ACTION_BYTES / size_of::<usize>()]) -> Option<usize> {
    match action[0] as u32 {
        2 => Some(2),
        3 => Some(1),
        _ => None,
    }
}

/// Returns how many bytes a copy of file actions with their paths takes.
///
/// # Safety
/// `actions` is a valid file-actions object.
unsafe fn actions_bytes(actions: &Actions) -> usize {
    let mut capacity = size_of::<Actions>() + actions.used as usize * ACTION_BYTES;
    for index in 0..actions.used as usize {
        // SAFETY: `index` is within the array; the word is a path.
        unsafe {
            let action = &*actions.actions.add(index);
            capacity += path_word(action)
                .map_or(0, |word| Readable::new().text_bytes(action[word] as *const c_char));
        }
    }
    capacity
}

/// # Safety
/// See [`actions_bytes`]; `copies` has space for that many bytes.
unsafe fn copy_actions(copies: &mut Copies, actions: &Actions) -> FileActions {
    let count = actions.used as usize;
    let array =
        copies.take(count * ACTION_BYTES).cast::<[usize; ACTION_BYTES / size_of::<usize>()]>();
    for index in 0..count {
        // SAFETY: `index` is within both arrays; the word is a path.
        unsafe {
            let mut action = *actions.actions.add(index);
            if let Some(word) = path_word(&action) {
                action[word] = copies.copy_text(action[word] as *const c_char) as usize;
            }
            array.add(index).write(action);
        }
    }
    let copy = Actions { actions: array, ..*actions };
    // SAFETY: `Actions` is plain data without padding.
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const copy).cast::<u8>(), size_of::<Actions>()) };
    copies.copy_bytes(bytes).cast()
}

/// Copies the attributes. If they contain no mask, and the program blocks signals that the kernel
/// does not, adds the program's mask to them.
///
/// # Safety
/// `attributes` is a valid object or null, and there is space for a copy.
unsafe fn copy_attributes(copies: &mut Copies, attributes: SpawnAttributes) -> SpawnAttributes {
    let inherited = exec_mask::mask_to_inherit();
    if attributes.is_null() && inherited.is_none() {
        return attributes;
    }
    // SAFETY: the object is plain data in glibc; all-zero is a new one.
    unsafe {
        let mut copy = match attributes.as_ref() {
            Some(attributes) => *attributes,
            None => std::mem::zeroed(),
        };
        let mut flags = 0;
        libc::posix_spawnattr_getflags(&raw const copy, &raw mut flags);
        let sets_mask = libc::POSIX_SPAWN_SETSIGMASK as i16;
        if let Some(mask) = inherited.filter(|_| flags & sets_mask == 0) {
            libc::posix_spawnattr_setsigmask(&raw mut copy, &raw const mask);
            libc::posix_spawnattr_setflags(&raw mut copy, flags | sets_mask);
        }
        let first = (&raw const copy).cast::<u8>();
        copies.copy_bytes(std::slice::from_raw_parts(first, size_of_val(&copy))).cast()
    }
}

unsafe fn spawn(
    (real, is_searched_for): (Spawn, bool),
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: FileActions,
    attributes: SpawnAttributes,
    argv: Strings,
    envp: Strings,
) -> i32 {
    tree_asleep::note_child_created();
    // SAFETY: the program passes valid objects or null; strings and arrays are only read if they
    // are readable.
    unsafe {
        if !instance::emulates_signals() && !carried::is_set() {
            return real(pid, path, actions, attributes, argv, envp);
        }
        // Do not wake until the child has called exec: the child uses this process's memory, and
        // has no filter that would make its calls wait.
        let _inside = sleep_gate::enter();
        let engine = instance::engine();
        let parsed = actions.cast::<Actions>().as_ref();
        let capacity = program_bytes(path, argv, envp)
            + if is_searched_for { path_search::path_bytes(path) } else { 0 }
            + parsed.map_or(0, |actions| actions_bytes(actions))
            + size_of::<libc::posix_spawnattr_t>();
        let Some(mut copies) = Copies::with_capacity(capacity) else { return libc::ENOMEM };
        let path = copies.copy_text(path);
        let argv = copies.copy_strings(argv);
        let is_full = !carried::is_set() || {
            let scratch = Scratch::take(&mut copies);
            match is_searched_for {
                true => path_search::takes_library_of(&mut copies, scratch, path),
                false => started_program::takes_library(scratch, libc::AT_FDCWD, path),
            }
        };
        let envp = carried::copy_environment(&mut copies, envp, is_full);
        let actions = match parsed {
            Some(parsed) => copy_actions(&mut copies, parsed),
            None => actions,
        };
        let attributes = copy_attributes(&mut copies, attributes);
        let mut made = 0;
        let result =
            with_environment(engine, || real(&raw mut made, path, actions, attributes, argv, envp));
        if result == 0 && !pid.is_null() {
            pid.write(made);
        }
        result
    }
}

macro_rules! spawning {
    ($name:ident, $is_searched_for:literal) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: FileActions,
            attributes: SpawnAttributes,
            argv: Strings,
            envp: Strings,
        ) -> i32 {
            real!($name: fn(*mut libc::pid_t, *const c_char, FileActions, SpawnAttributes,
                            Strings, Strings) -> i32);
            // SAFETY: this is the C library's function of this name; the program passes the
            // arguments.
            unsafe { spawn(($name(), $is_searched_for), pid, path, actions, attributes, argv, envp) }
        }
    };
}

spawning!(posix_spawn, false);
spawning!(posix_spawnp, true);
