//! The one engine of this process, and which addresses are its.

use softswap_engine::door::engine::Engine;
use softswap_sys::{futex, raw};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Where the runtime stands.
const LOADING: u32 = 0;
const MANAGED: u32 = 1;
const PLAIN: u32 = 2;
/// There is no engine as long as memory suffices.
const ASLEEP: u32 = 3;
/// A thread makes an engine; the others wait where they need one.
const WAKING: u32 = 4;
static STATE: AtomicU32 = AtomicU32::new(LOADING);
static ENGINE: OnceLock<Engine> = OnceLock::new();

fn state() -> u32 {
    STATE.load(Ordering::Acquire)
}

/// The engine, once it is up. Everything that lies in the window was put there
/// by it, so whoever has such an address gets `Some`.
#[inline]
pub(crate) fn engine() -> Option<&'static Engine> {
    if state() == MANAGED { ENGINE.get() } else { None }
}

/// Whether the runtime has decided what it does; before, memory comes from
/// the engine's own heap.
#[inline]
pub(crate) fn is_settled() -> bool {
    state() != LOADING
}

/// Whether this process has no engine and gets none.
#[inline]
pub(crate) fn is_plain() -> bool {
    state() == PLAIN
}

/// Whether an address is managed.
#[inline]
pub(crate) fn is_managed(address: usize) -> bool {
    engine().is_some_and(|engine| engine.contains(address))
}

/// Whether the engine's signals are emulated for the program: as long as there is an engine,
/// and from the first thread on that a process starts in its sleep.
static EMULATES: AtomicBool = AtomicBool::new(false);

#[inline]
pub(crate) fn emulates_signals() -> bool {
    EMULATES.load(Ordering::Acquire)
}

/// From now on they are.
pub(crate) fn emulate_signals() {
    EMULATES.store(true, Ordering::Release);
}

/// What makes an engine of a process that sleeps, and what has its signals emulated.
struct OnWaking {
    wake: fn(),
    prepare: fn(),
}

static ON_WAKING: OnceLock<OnWaking> = OnceLock::new();
/// Where its window will be: the first address, and the length.
static WINDOW: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// From now on this process is managed only when it needs to be: until `wake` has been called.
/// Before it has a second thread `prepare` is called.
pub(crate) fn fall_asleep(base: usize, len: usize, wake: fn(), prepare: fn()) {
    WINDOW[0].store(base, Ordering::Relaxed);
    WINDOW[1].store(len, Ordering::Relaxed);
    ON_WAKING.get_or_init(|| OnWaking { wake, prepare });
    STATE.store(ASLEEP, Ordering::Release);
}

/// Where the window of a process is that sleeps, or did: its first address and its length.
pub(crate) fn window() -> Option<(usize, usize)> {
    let [base, len] = [&WINDOW[0], &WINDOW[1]].map(|word| word.load(Ordering::Relaxed));
    (len != 0).then_some((base, len))
}

/// Whether an address lies in the window: that of the engine, or of one that there may be.
pub(crate) fn is_in_window(address: usize) -> bool {
    window().is_some_and(|(base, len)| address & !(len - 1) == base) || is_managed(address)
}

/// Whether this process sleeps: there is no engine, and there may be one.
#[inline]
pub(crate) fn is_asleep() -> bool {
    state() == ASLEEP
}

/// Whether a thread is just making an engine.
#[inline]
pub(crate) fn is_waking() -> bool {
    state() == WAKING
}

/// Whether there may be an engine that is not there yet.
#[inline]
pub(crate) fn may_wake() -> bool {
    matches!(state(), ASLEEP | WAKING)
}

/// The engine, for what a sleeping process cannot do: it wakes.
pub(crate) fn awake() -> Option<&'static Engine> {
    if may_wake()
        && let Some(on_waking) = ON_WAKING.get()
    {
        (on_waking.wake)();
    }
    engine()
}

/// The program has opened a library by itself.
static HAS_PLUG_INS: AtomicBool = AtomicBool::new(false);

pub(crate) fn note_plug_in() {
    HAS_PLUG_INS.store(true, Ordering::Relaxed);
}

/// Emulates the engine's signals before a thread blocks them, if a library may start threads past
/// the runtime. Such a thread inherits the mask, and the engine cannot start while a thread blocks
/// its signals.
pub(crate) fn prepare_for_full_mask() {
    if HAS_PLUG_INS.load(Ordering::Relaxed) {
        prepare_for_threads();
    }
}

/// Before a sleeping process has a second thread: what cannot be done for a thread by others
/// is done from now on.
pub(crate) fn prepare_for_threads() {
    if is_asleep()
        && !emulates_signals()
        && let Some(on_waking) = ON_WAKING.get()
    {
        (on_waking.prepare)();
    }
}

/// The thread that makes the engine; 0: none.
static WAKER: AtomicI32 = AtomicI32::new(0);

/// From now on this process wakes; false where it does not sleep, or another thread was first.
pub(crate) fn begin_waking() -> bool {
    let is_first =
        STATE.compare_exchange(ASLEEP, WAKING, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if is_first {
        WAKER.store(raw::current_thread(), Ordering::Relaxed);
    }
    is_first
}

/// Whether this thread makes the engine: it waits for nobody. What it calls of the C library
/// may come by here.
pub(crate) fn is_waker() -> bool {
    is_waking() && WAKER.load(Ordering::Relaxed) == raw::current_thread()
}

/// It could not be woken now: it sleeps on.
pub(crate) fn sleep_on() {
    STATE.store(ASLEEP, Ordering::SeqCst);
    futex::wake_all(&STATE);
}

/// Waits for the end of a waking that another thread has begun.
pub(crate) fn await_waking() {
    while is_waking() && !is_waker() {
        futex::wait(&STATE, WAKING, None);
    }
}

/// Keeps the engine, which nobody sees before [`settle`].
pub(crate) fn keep(engine: Engine) {
    ENGINE.get_or_init(|| engine);
}

/// The engine that was kept.
pub(crate) fn kept() -> Option<&'static Engine> {
    ENGINE.get()
}

/// From now on this process is managed by the engine that was kept, or does without.
pub(crate) fn settle(has_engine: bool) {
    if has_engine {
        emulate_signals();
    }
    let before = STATE.swap(if has_engine { MANAGED } else { PLAIN }, Ordering::AcqRel);
    if before == WAKING {
        futex::wake_all(&STATE);
    }
}
