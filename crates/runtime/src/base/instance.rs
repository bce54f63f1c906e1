//! The engine of this process, its state, and the test for managed addresses.

use softswap_engine::api::engine::Engine;
use softswap_sys::{futex, raw};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

const LOADING: u32 = 0;
const MANAGED: u32 = 1;
const PLAIN: u32 = 2;
/// The process has no engine yet: its committed memory fits the budget.
const ASLEEP: u32 = 3;
/// One thread starts the engine; threads that need the engine wait.
const WAKING: u32 = 4;
static STATE: AtomicU32 = AtomicU32::new(LOADING);
static ENGINE: OnceLock<Engine> = OnceLock::new();

fn state() -> u32 {
    STATE.load(Ordering::Acquire)
}

/// Returns `None` while loading, asleep or waking, and in an unmanaged process.
#[inline]
pub(crate) fn engine() -> Option<&'static Engine> {
    if state() == MANAGED { ENGINE.get() } else { None }
}

/// Until then, memory comes from the engine's own heap.
#[inline]
pub(crate) fn is_loaded() -> bool {
    state() != LOADING
}

#[inline]
pub(crate) fn is_plain() -> bool {
    state() == PLAIN
}

#[inline]
pub(crate) fn is_managed(address: usize) -> bool {
    engine().is_some_and(|engine| engine.contains(address))
}

/// True if the engine's signals are emulated for the program: with an engine, or once a sleeping
/// process has started its first additional thread.
static EMULATES: AtomicBool = AtomicBool::new(false);

#[inline]
pub(crate) fn emulates_signals() -> bool {
    EMULATES.load(Ordering::Acquire)
}

pub(crate) fn emulate_signals() {
    EMULATES.store(true, Ordering::Release);
}

struct OnWaking {
    wake: fn(),
    prepare: fn(),
}

static ON_WAKING: OnceLock<OnWaking> = OnceLock::new();
static WINDOW: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Puts this process to sleep, with a future window at `base`. `wake` starts the engine; `prepare`
/// is called before the process has a second thread.
pub(crate) fn fall_asleep(base: usize, len: usize, wake: fn(), prepare: fn()) {
    WINDOW[0].store(base, Ordering::Relaxed);
    WINDOW[1].store(len, Ordering::Relaxed);
    ON_WAKING.get_or_init(|| OnWaking { wake, prepare });
    STATE.store(ASLEEP, Ordering::Release);
}

pub(crate) fn window() -> Option<(usize, usize)> {
    let [base, len] = [&WINDOW[0], &WINDOW[1]].map(|word| word.load(Ordering::Relaxed));
    (len != 0).then_some((base, len))
}

pub(crate) fn is_in_window(address: usize) -> bool {
    window().is_some_and(|(base, len)| address.wrapping_sub(base) < len) || is_managed(address)
}

pub(crate) fn overlaps((base, window_len): (usize, usize), start: usize, len: usize) -> bool {
    start < base + window_len && base < start.saturating_add(len)
}

pub(crate) fn overlaps_window(start: usize, len: usize) -> bool {
    window().is_some_and(|window| overlaps(window, start, len))
        || engine().is_some_and(|engine| overlaps(engine.window(), start, len))
}

#[inline]
pub(crate) fn is_asleep() -> bool {
    state() == ASLEEP
}

#[inline]
pub(crate) fn is_waking() -> bool {
    state() == WAKING
}

#[inline]
pub(crate) fn may_wake() -> bool {
    matches!(state(), ASLEEP | WAKING)
}

/// Starts the engine in a sleeping process; `None` if that fails, or if the process is unmanaged.
pub(crate) fn awake() -> Option<&'static Engine> {
    if may_wake()
        && let Some(on_waking) = ON_WAKING.get()
    {
        (on_waking.wake)();
    }
    engine()
}

static HAS_PLUG_INS: AtomicBool = AtomicBool::new(false);

pub(crate) fn note_plug_in() {
    HAS_PLUG_INS.store(true, Ordering::Relaxed);
}

/// Starts signal emulation before a thread blocks the engine's signals, if an opened library may
/// start threads without the runtime. Such a thread inherits the mask, and the engine cannot start
/// while a thread blocks its signals in the kernel.
pub(crate) fn prepare_for_full_mask() {
    if HAS_PLUG_INS.load(Ordering::Relaxed) {
        prepare_for_threads();
    }
}

/// Prepares a sleeping process for its second thread. Afterwards each thread sets its own signal
/// stack and mask at its start, because no other thread can set them.
pub(crate) fn prepare_for_threads() {
    if is_asleep()
        && !emulates_signals()
        && let Some(on_waking) = ON_WAKING.get()
    {
        (on_waking.prepare)();
    }
}

/// Thread ID of the thread that starts the engine; 0: none.
static WAKER: AtomicI32 = AtomicI32::new(0);

/// Returns false if the process does not sleep, or if another thread starts the engine.
pub(crate) fn begin_waking() -> bool {
    let is_first =
        STATE.compare_exchange(ASLEEP, WAKING, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if is_first {
        WAKER.store(raw::current_thread(), Ordering::Relaxed);
    }
    is_first
}

/// The waker must not wait for itself in [`await_waking`], which its C library calls may reach.
pub(crate) fn is_waker() -> bool {
    is_waking() && WAKER.load(Ordering::Relaxed) == raw::current_thread()
}

pub(crate) fn sleep_on() {
    STATE.store(ASLEEP, Ordering::SeqCst);
    futex::wake_all(&STATE);
}

pub(crate) fn await_waking() {
    while is_waking() && !is_waker() {
        futex::wait(&STATE, WAKING, None);
    }
}

/// Stores the engine. [`engine`] returns it only after [`set_managed`].
pub(crate) fn keep(engine: Engine) {
    ENGINE.get_or_init(|| engine);
}

pub(crate) fn kept() -> Option<&'static Engine> {
    ENGINE.get()
}

pub(crate) fn set_managed(has_engine: bool) {
    if has_engine {
        emulate_signals();
    }
    let before = STATE.swap(if has_engine { MANAGED } else { PLAIN }, Ordering::AcqRel);
    if before == WAKING {
        futex::wake_all(&STATE);
    }
}
