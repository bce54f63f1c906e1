//! The one engine of this process, and which addresses are its.

use softswap_engine::door::engine::Engine;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the runtime stands.
const LOADING: u8 = 0;
const MANAGED: u8 = 1;
const PLAIN: u8 = 2;
/// There is no engine as long as memory suffices.
const ASLEEP: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(LOADING);
static ENGINE: OnceLock<Engine> = OnceLock::new();

/// The engine, once it is up. Everything that lies in the window was put there
/// by it, so whoever has such an address gets `Some`.
#[inline]
pub(crate) fn engine() -> Option<&'static Engine> {
    if STATE.load(Ordering::Acquire) == MANAGED { ENGINE.get() } else { None }
}

/// Whether the runtime has decided what it does; before, memory comes from
/// the engine's own heap.
#[inline]
pub(crate) fn is_settled() -> bool {
    STATE.load(Ordering::Acquire) != LOADING
}

/// Whether this process has no engine and gets none.
#[inline]
pub(crate) fn is_plain() -> bool {
    STATE.load(Ordering::Acquire) == PLAIN
}

/// Whether an address is managed.
#[inline]
pub(crate) fn is_managed(address: usize) -> bool {
    engine().is_some_and(|engine| engine.contains(address))
}

/// What makes an engine of a process that sleeps.
static WAKE: OnceLock<fn()> = OnceLock::new();

/// From now on this process is managed only when it needs to be: until `wake` has been called.
pub(crate) fn fall_asleep(wake: fn()) {
    WAKE.get_or_init(|| wake);
    STATE.store(ASLEEP, Ordering::Release);
}

/// Whether this process sleeps: there is no engine, and there may be one.
#[inline]
pub(crate) fn is_asleep() -> bool {
    STATE.load(Ordering::Acquire) == ASLEEP
}

/// The engine, for what a sleeping process cannot do: it wakes.
pub(crate) fn awake() -> Option<&'static Engine> {
    if is_asleep()
        && let Some(wake) = WAKE.get()
    {
        wake();
    }
    engine()
}

/// Keeps the engine, which nobody sees before [`settle`].
pub(crate) fn keep(engine: Engine) {
    ENGINE.get_or_init(|| engine);
}

/// From now on this process is managed by the engine that was kept, or does without.
pub(crate) fn settle(has_engine: bool) {
    STATE.store(if has_engine { MANAGED } else { PLAIN }, Ordering::Release);
}
