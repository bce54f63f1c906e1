//! `posix_spawn`: its child shares the parent's memory and frames, but not its handlers. So the C
//! library's function runs on the engine's stack if the caller's is managed.

use super::argument_copies::{Copies, Strings};
use super::environment::with_environment;
use super::exec_call::program_bytes;
use super::file_actions::{FileActions, GivenActions};
use super::started_program::{self, Scratch};
use super::{carried, path_search};
use crate::base::instance;
use crate::base::real::real;
use crate::memory::sleep_gate;
use crate::process::tree_asleep;
use crate::signals::exec_mask;
use softswap_sys::signals::with_engine_stack;
use std::ffi::c_char;

type SpawnAttributes = *const libc::posix_spawnattr_t;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    FileActions,
    SpawnAttributes,
    Strings,
    Strings,
) -> i32;

/// If the attributes contain no mask, adds the program's: the kernel's lacks the engine's signals
/// that the program blocks, and contains all others on the engine's stack.
///
/// # Safety
/// `attributes` is a valid object or null, and there is space for a copy.
unsafe fn copy_attributes(copies: &mut Copies, attributes: SpawnAttributes) -> SpawnAttributes {
    // SAFETY: the object is plain data in glibc; all-zero is a new one.
    unsafe {
        let mut copy = match attributes.as_ref() {
            Some(attributes) => *attributes,
            None => std::mem::zeroed(),
        };
        let mut flags = 0;
        libc::posix_spawnattr_getflags(&raw const copy, &raw mut flags);
        let sets_mask = libc::POSIX_SPAWN_SETSIGMASK as i16;
        if flags & sets_mask == 0 {
            let mask = exec_mask::mask_to_inherit();
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
        let given = actions.as_ref().map(|actions| GivenActions::of(actions));
        let capacity = program_bytes(path, argv, envp)
            + if is_searched_for { path_search::path_bytes(path) } else { 0 }
            + given.as_ref().map_or(0, |given| given.copy_bytes())
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
        let actions = given.map_or(actions, |given| given.copy(&mut copies));
        let attributes = copy_attributes(&mut copies, attributes);
        // The C library writes the PID with all signals blocked.
        let start = move || {
            let mut made = 0;
            let result = real(&raw mut made, path, actions, attributes, argv, envp);
            (result, made)
        };
        let (result, made) = with_environment(engine, || with_engine_stack(start));
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
