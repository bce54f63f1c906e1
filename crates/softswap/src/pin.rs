//! Pages kept in DRAM while a guard exists.

use crate::error::{Error, Result};
use crate::running::{Running, release_pins};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of guards: all may pin the same page, which counts its pins in 16 bits.
const MAX_PINS: usize = 1 << 15;

pub(crate) struct Held {
    running: Arc<Running>,
    start: usize,
    len: usize,
}

impl Held {
    pub(crate) fn new(running: &Arc<Running>, start: usize, len: usize) -> Result<Held> {
        // `drop` reverts these additions.
        running.with(|engine| {
            let pages = engine.pages_under(start, len);
            if running.pins.fetch_add(1, Relaxed) >= MAX_PINS {
                running.pins.fetch_sub(1, Relaxed);
                return Err(Error::TooManyPins { most: MAX_PINS });
            }
            if !engine.try_hold(pages) {
                running.pins.fetch_sub(1, Relaxed);
                let most_bytes = engine.hold_limit_bytes();
                return Err(Error::Pinned { asked_bytes: len, most_bytes });
            }
            let pinned = engine.pin(start, len, len);
            match pinned {
                Ok(bytes) if bytes == len => Ok(Held { running: Arc::clone(running), start, len }),
                other => {
                    engine.unpin(start, *other.as_ref().unwrap_or(&0));
                    engine.release(pages);
                    running.pins.fetch_sub(1, Relaxed);
                    Err(other
                        .map_or_else(Error::from, |_| Error::Page("a page is not mapped".into())))
                }
            }
        })?
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.running.with(|engine| {
            release_pins(engine, self.start, self.len);
            self.running.pins.fetch_sub(1, Relaxed);
        });
    }
}

/// Bytes that stay in DRAM while this guard exists: system calls and devices may read them.
///
/// ```
/// # fn main() -> softswap::Result<()> {
/// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
/// let region = pool.map(1 << 20)?;
/// let pin: softswap::Pin<'_> = region.pin(..4096)?;
/// assert_eq!(pin.len(), 4096);
/// assert!(matches!(region.pin(4096..1 << 30), Err(softswap::Error::Range { .. })));
/// # Ok(())
/// # }
/// ```
#[must_use = "the bytes stay in DRAM only while the guard exists"]
pub struct Pin<'r> {
    bytes: &'r [u8],
    _held: Held,
}

impl<'r> Pin<'r> {
    pub(crate) fn new(running: &Arc<Running>, bytes: &'r [u8]) -> Result<Pin<'r>> {
        let held = Held::new(running, bytes.as_ptr().addr(), bytes.len())?;
        Ok(Pin { bytes, _held: held })
    }
}

impl Deref for Pin<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// A [`Pin`] of bytes that may be written.
///
/// ```
/// # fn main() -> softswap::Result<()> {
/// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
/// let mut region = pool.map(1 << 20)?;
/// let mut pin: softswap::PinMut<'_> = region.pin_mut(..4096)?;
/// pin[0] = 1;
/// drop(pin);
/// assert_eq!(region[0], 1);
/// # Ok(())
/// # }
/// ```
#[must_use = "the bytes stay in DRAM only while the guard exists"]
pub struct PinMut<'r> {
    bytes: &'r mut [u8],
    _held: Held,
}

impl<'r> PinMut<'r> {
    pub(crate) fn new(running: &Arc<Running>, bytes: &'r mut [u8]) -> Result<PinMut<'r>> {
        let held = Held::new(running, bytes.as_ptr().addr(), bytes.len())?;
        Ok(PinMut { bytes, _held: held })
    }
}

impl Deref for PinMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for PinMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl std::fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PinMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinMut").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}
