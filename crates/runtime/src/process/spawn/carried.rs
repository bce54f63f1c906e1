//! Environment variables that load this library into started programs.
//!
//! A program may replace or clear its environment before it starts another. The runtime therefore
//! removes its own variables when it loads, keeps them here, and adds them to the environment of
//! each started program.

use super::argument_copies::{Copies, Readable, Strings, count};
use super::environment::{environment, move_environment};
use super::fork_safe_mutex::ForkSafeMutex;
use crate::base::instance;
use softswap_engine::api::settings::ENV_PREFIX;
use softswap_sys::linked::is_go_program;
use softswap_sys::program_file::preloaded_sanitizer;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Variable with a program's budget. If its value is empty, the program is unmanaged.
const BUDGET: &[u8; 19] = b"SOFTSWAP_RT_MEMORY=";
/// Variable added for started programs: their parent had an engine, or could have had one.
const STARTED: &CStr = c"SOFTSWAP_RT_STARTED=1";
const LIBRARY: &[u8] = b"libsoftswap.so";

struct Carried {
    library: Vec<u8>,
    /// The entries after that one, which the user has set.
    user_entries: Vec<u8>,
    /// The runtime's variables, as `NAME=value`.
    settings: Vec<CString>,
}

static CARRIED: OnceLock<Carried> = OnceLock::new();

pub(super) fn is_set() -> bool {
    CARRIED.get().is_some()
}

fn is_library(entry: &[u8]) -> bool {
    entry.rsplit(|byte| *byte == b'/').next() == Some(LIBRARY)
}

fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty())
}

fn joined<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    entries.collect::<Vec<_>>().join(&b':')
}

/// Called while the library is loaded, before the program's own code runs.
///
/// A Go program keeps the variables: its run-time starts programs by system calls that are not
/// intercepted.
pub(crate) fn hide() {
    // SAFETY: nothing else reads or changes the environment yet; `environ` is an array of strings
    // that ends with a null pointer, or null.
    unsafe {
        let array = environment().cast_mut();
        if array.is_null() {
            return;
        }
        let all: Vec<*const c_char> = (0..count(array)).map(|at| *array.add(at)).collect();
        let text = |at: &*const c_char| CStr::from_ptr(*at).to_bytes();
        let is_setting = |at: &&*const c_char| text(at).starts_with(ENV_PREFIX.as_bytes());
        let mut settings: Vec<CString> =
            all.iter().filter(is_setting).map(|at| CStr::from_ptr(*at).to_owned()).collect();
        let preload = all.iter().find_map(|at| text(at).strip_prefix(PRELOAD)).unwrap_or_default();
        let Some(library) = entries(preload).find(|entry| is_library(entry)) else { return };
        if settings.is_empty() {
            return;
        }
        if !settings.iter().any(|it| it.as_c_str() == STARTED) {
            settings.push(STARTED.to_owned());
        }
        if instance::is_plain() {
            // Rename the budget's variable, for readers of /proc/PID/environ. A Go program keeps
            // the name in a copy, for its children.
            if let Some(index) = all.iter().position(|at| text(at).starts_with(BUDGET)) {
                if is_go_program() {
                    array.add(index).write(CStr::from_ptr(all[index]).to_owned().into_raw());
                }
                mark_unused(all[index].cast_mut());
            }
        }
        let user_entries = entries(preload).skip_while(|entry| !is_library(entry)).skip(1);
        let others = joined(entries(preload).filter(|entry| !is_library(entry)));
        let carried =
            Carried { library: library.to_vec(), user_entries: joined(user_entries), settings };
        CARRIED.get_or_init(|| carried);
        if is_go_program() {
            return;
        }
        let mut kept = 0;
        for at in &all {
            let mut at = *at;
            if text(&at).starts_with(ENV_PREFIX.as_bytes()) {
                continue;
            }
            if text(&at).starts_with(PRELOAD) {
                let Ok(others) = CString::new([PRELOAD, &others].concat()) else { continue };
                if others.as_bytes().len() == PRELOAD.len() {
                    continue;
                }
                at = others.into_raw();
            }
            array.add(kept).write(at);
            kept += 1;
        }
        // The auxiliary vector follows the array: a reader that searches for it from the array's
        // first null pointer finds an empty one.
        (kept..all.len()).for_each(|at| array.add(at).write(std::ptr::null()));
    }
}

/// # Safety
/// `text` begins with [`BUDGET`], and nothing else refers to it.
unsafe fn mark_unused(text: *mut c_char) {
    const UNUSED: &[u8; BUDGET.len()] = b"SOFTSWAP_RT_UNUSED=";
    // SAFETY: by the caller's contract; both names have the same length.
    unsafe { std::ptr::copy_nonoverlapping(UNUSED.as_ptr(), text.cast(), UNUSED.len()) };
}

pub(super) struct Additions {
    /// Index of the string to replace, and its replacement; null removes the string.
    pub(super) replaced: Option<(usize, *const c_char)>,
    /// LD_PRELOAD, if the environment has none and needs it; otherwise null.
    preload: *const c_char,
    settings: &'static [CString],
}

impl Additions {
    const NONE: Additions = Additions { replaced: None, preload: std::ptr::null(), settings: &[] };

    pub(super) fn appended(&self) -> impl Iterator<Item = *const c_char> {
        let preload = Some(self.preload).filter(|text| !text.is_null());
        preload.into_iter().chain(self.settings.iter().map(|it| it.as_ptr()))
    }

    fn is_empty(&self) -> bool {
        self.replaced.is_none() && self.appended().next().is_none()
    }
}

pub(super) fn max_appended() -> usize {
    CARRIED.get().map_or(0, |carried| carried.settings.len() + 1)
}

/// Returns what [`copy_environment`] needs beyond a copy of the strings (`strings_bytes`).
pub(super) fn environment_bytes(strings_bytes: usize) -> usize {
    CARRIED.get().map_or(0, |carried| {
        let words = max_appended() + 3;
        // The array once more, and LD_PRELOAD, which is one of the strings or new.
        strings_bytes + words * size_of::<usize>() + PRELOAD.len() + carried.library.len() + 2
    })
}

/// `takes_library` is false if the program's loader cannot load this library. In that case, and if
/// the budget has an empty value, the library is removed from LD_PRELOAD.
///
/// Allocates nothing: a signal handler may start a program.
pub(super) fn additions(
    copies: &mut Copies,
    strings: &[*const c_char],
    takes_library: bool,
) -> Additions {
    let Some(carried) = CARRIED.get() else { return Additions::NONE };
    let mut readable = Readable::new();
    let (mut preload, mut budget) = (None, None);
    for (at, text) in strings.iter().enumerate() {
        let Some(text) = readable.text(*text) else { continue };
        if let Some(value) = text.strip_prefix(PRELOAD) {
            // The loader uses the last LD_PRELOAD.
            preload = Some((at, value));
        } else if let Some(value) = text.strip_prefix(BUDGET.as_slice()) {
            budget = Some(value);
        }
    }
    if takes_library && budget.is_some_and(|value| !value.is_empty()) {
        // Another `softswap run` or the user has set the variables: the settings are complete.
        return Additions::NONE;
    }
    let mut additions = Additions::NONE;
    let value = preload.map_or(&b""[..], |(_, value)| value);
    let takes_library = takes_library && budget.is_none() && preloaded_sanitizer(value).is_none();
    if entries(value).any(is_library) != takes_library {
        let text = match takes_library {
            true => {
                write_preload(copies, value.len(), split_for_library(value, carried).into_iter())
            }
            false => {
                write_preload(copies, value.len(), entries(value).filter(|it| !is_library(it)))
            }
        };
        match preload {
            Some((at, _)) => additions.replaced = Some((at, text)),
            None => additions.preload = text,
        }
    }
    if takes_library {
        additions.settings = &carried.settings;
    }
    additions
}

/// Returns the entries before the library, the library, and the entries after it. The program's
/// entries stay first, the user's last.
fn split_for_library<'v>(value: &'v [u8], carried: &'v Carried) -> [&'v [u8]; 3] {
    let first = value.strip_suffix(&carried.user_entries[..]);
    match first.filter(|first| first.last().is_none_or(|byte| matches!(byte, b':' | b' '))) {
        Some([first @ .., _]) => [first, &carried.library, &carried.user_entries],
        Some(first) => [first, &carried.library, &carried.user_entries],
        None => [value, &carried.library, b""],
    }
}

fn write_preload<'e>(
    copies: &mut Copies,
    value_len: usize,
    entries: impl Iterator<Item = &'e [u8]>,
) -> *const c_char {
    let library = CARRIED.get().map_or(0, |carried| carried.library.len());
    let text = copies.take(PRELOAD.len() + value_len + library + 3);
    let mut at = text;
    let mut push = |bytes: &[u8]| {
        // SAFETY: `text` has space for the name, the former value, the library, two separators and
        // a zero.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            at = at.add(bytes.len());
        }
    };
    push(PRELOAD);
    let mut has_any = false;
    for entry in entries.filter(|entry| !entry.is_empty()) {
        if std::mem::replace(&mut has_any, true) {
            push(b":");
        }
        push(entry);
    }
    push(b"\0");
    if has_any { text.cast() } else { std::ptr::null() }
}

static SHOWING: ForkSafeMutex<()> = ForkSafeMutex::new(());

thread_local! {
    /// True while `environ` contains this thread's additions. If already true, the caller is a
    /// signal handler that has interrupted this thread.
    static IS_SHOWING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`, which starts a shell with `environ`, with the runtime's variables in `environ`.
/// Returns `None` if there is no memory. `copies` must have space for [`environment_bytes`].
///
/// During `call`, other threads may see these variables, and may change other variables.
pub(super) fn with_shown<R>(copies: &mut Copies, call: impl FnOnce() -> R) -> Option<R> {
    if IS_SHOWING.replace(true) {
        return show(copies, call);
    }
    let result = SHOWING.with_mask_as_is(|()| show(copies, call));
    IS_SHOWING.set(false);
    result
}

fn show<R>(copies: &mut Copies, call: impl FnOnce() -> R) -> Option<R> {
    if !move_environment(max_appended()) {
        return None;
    }
    if !is_set() {
        return Some(call());
    }
    let array = environment().cast_mut();
    // SAFETY: `environ` is now the runtime's array, which ends with a null pointer.
    let len = unsafe { count(array) };
    // SAFETY: `len` is the length of that array.
    let strings = unsafe { std::slice::from_raw_parts(array, len) };
    let additions = additions(copies, strings, true);
    let before = additions.replaced.map(|(at, text)| (strings[at], text));
    // SAFETY: the array has space for the appended strings. The first one is written last: until
    // then the array ends at its previous end.
    unsafe {
        for (at, text) in additions.appended().enumerate().skip(1) {
            array.add(len + at).write(text);
        }
        if let Some(first) = additions.appended().next() {
            array.add(len + additions.appended().count()).write(std::ptr::null());
            array.add(len).write_volatile(first);
        }
        if let Some((at, text)) = additions.replaced {
            array.add(at).write_volatile(text);
        }
    }
    let result = call();
    conceal(&additions, before);
    Some(result)
}

/// Removes the variables from `environ` again, whose array another thread may have replaced.
fn conceal(additions: &Additions, replaced: Option<(*const c_char, *const c_char)>) {
    let array = environment().cast_mut();
    let mut kept = 0;
    // SAFETY: `environ` is an array that ends with a null pointer.
    unsafe {
        for at in 0..count(array) {
            let text = *array.add(at);
            if additions.appended().any(|it| it == text) {
                continue;
            }
            let text = replaced.filter(|(_, by)| *by == text).map_or(text, |(before, _)| before);
            array.add(kept).write(text);
            kept += 1;
        }
        array.add(kept).write(std::ptr::null());
    }
}

/// Returns an unreadable array unchanged: the kernel rejects it.
pub(super) fn copy_environment(copies: &mut Copies, envp: Strings, takes_library: bool) -> Strings {
    let copy = copies.copy_strings(envp);
    if !is_set() || (copy == envp && !envp.is_null()) {
        return copy;
    }
    let strings = if copy.is_null() {
        &[][..]
    } else {
        // SAFETY: the copy ends with a null pointer.
        unsafe { std::slice::from_raw_parts(copy, count(copy)) }
    };
    let additions = additions(copies, strings, takes_library);
    if additions.is_empty() {
        return copy;
    }
    let array = copies.take((strings.len() + max_appended() + 1) * size_of::<usize>());
    let array = array.cast::<*const c_char>();
    let replace = |(at, text): (usize, &*const c_char)| match additions.replaced {
        Some((index, other)) if index == at => other,
        _ => *text,
    };
    let kept = strings.iter().enumerate().map(replace).filter(|text| !text.is_null());
    // SAFETY: the array has space for all strings and the null pointer.
    unsafe {
        let end = kept.chain(additions.appended()).fold(array, |at, text| {
            at.write(text);
            at.add(1)
        });
        end.write(std::ptr::null());
    }
    array
}
