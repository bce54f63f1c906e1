//! Memory of a pool, whose pages are in DRAM, compressed, or on the disk.

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::pin::{Held, Pin, PinMut};
use crate::running::Running;
use softswap_engine::api::engine::Engine;
use softswap_engine::base::access::Access;
use softswap_engine::policy::prefetch::advised::Order;
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::READ_WRITE;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Expected use of a range.
///
/// ```
/// # fn main() -> softswap::Result<()> {
/// use softswap::Advice;
/// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
/// let mut region = pool.map(1 << 20)?;
/// region.fill(1);
/// region.advise(.., Advice::Cold)?;
/// region.advise(..4096, Advice::WillNeed)?;
/// region.advise(100..200, Advice::DontNeed)?;
/// assert!(region[100..200].iter().all(|byte| *byte == 0) && region[99] == 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The range is used soon. It is faulted in now, up to half of the budget.
    WillNeed,
    /// The range is not used soon. Its pages are evicted before others if memory is short.
    Cold,
    /// The content is no longer needed. It then reads as zero, and takes neither DRAM nor disk
    /// space.
    DontNeed,
    /// The range is used from start to end. The first touch reads ahead, instead of the third
    /// consecutive one. Applies to whole pieces of 2 MiB within the range.
    Sequential,
    /// The range is used in random order: nothing is read ahead. Applies to whole pieces of 2 MiB
    /// within the range.
    Random,
    /// The order is detected, as by default.
    Normal,
}

/// Bytes of a pool. They are zero at first, and freed when this value is dropped.
///
/// A system call cannot wait for an absent page: it fails with `EFAULT`, as for a bad pointer.
/// [`Region::pin`] buffers that are passed to system calls, or create the pool with
/// [`guard_calls`](crate::Builder::guard_calls).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
/// let mut region = pool.map(1 << 20)?;
/// region[..5].copy_from_slice(b"hello");
/// std::thread::spawn(move || assert_eq!(&region[..5], b"hello")).join().unwrap();
/// # Ok(())
/// # }
/// ```
pub struct Region {
    bytes: Bytes,
    running: Arc<Running>,
    is_ordered: AtomicBool,
}

impl Region {
    pub(crate) fn map(running: Arc<Running>, len: usize) -> Result<Region> {
        let start = running.with(|engine| match whole_pages(engine, len) {
            Some(whole) => Ok(engine.map(whole, READ_WRITE)?),
            None => Err(Error::Length { len }),
        })??;
        let start = start.ok_or(Error::WindowFull { len })?;
        // SAFETY: the engine has just mapped these bytes for this region alone, readable and
        // writable; `running` serves their faults and is stored with them. Only the destructor
        // unmaps them.
        let bytes = unsafe { Bytes::new(start, len) };
        Ok(Region { bytes, running, is_ordered: AtomicBool::new(false) })
    }

    /// Declares the expected use of a range.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// # let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// let mut region = pool.map(8192)?;
    /// region.advise(4096.., softswap::Advice::WillNeed)?;
    /// assert!(region.advise(..9000, softswap::Advice::Cold).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Page`] if a page cannot be faulted in.
    pub fn advise(&mut self, range: impl RangeBounds<usize>, advice: Advice) -> Result<()> {
        let range = self.range(range)?;
        if advice == Advice::DontNeed { self.drop_content(range) } else { self.hint(range, advice) }
    }

    /// Declares the expected use of a range while the region is shared: see [`Region::advise`].
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// use softswap::{Advice, Error};
    /// # let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// let region = pool.map(8192)?;
    /// region.advise_shared(.., Advice::WillNeed)?;
    /// assert!(matches!(region.advise_shared(.., Advice::DontNeed), Err(Error::Shared)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Region::advise`], and [`Error::Shared`] for [`Advice::DontNeed`].
    pub fn advise_shared(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<()> {
        if advice == Advice::DontNeed {
            return Err(Error::Shared);
        }
        self.hint(self.range(range)?, advice)
    }

    /// Faults a range in and keeps it in DRAM, at its address, until the guard is dropped: for
    /// system calls that read from it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Write;
    /// # let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// # let mut file = tempfile::tempfile()?;
    /// let region = pool.map(1 << 20)?;
    /// for start in (0..region.len()).step_by(64 << 10) {
    ///     file.write_all(&region.pin(start..start + (64 << 10))?)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Pinned`] if all pins of the pool would hold more than a quarter
    /// of the budget available for pages; [`Error::Page`].
    pub fn pin(&self, range: impl RangeBounds<usize>) -> Result<Pin<'_>> {
        let range = self.range(range)?;
        Pin::new(&self.running, &self.bytes[range])
    }

    /// Pins a range for system calls that write to it: see [`Region::pin`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::Read;
    /// # let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// let mut region = pool.map(1 << 20)?;
    /// std::fs::File::open("/dev/urandom")?.read_exact(&mut region.pin_mut(..8192)?)?;
    /// assert!(region[..8192].iter().any(|byte| *byte != 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Region::pin`].
    pub fn pin_mut(&mut self, range: impl RangeBounds<usize>) -> Result<PinMut<'_>> {
        let range = self.range(range)?;
        PinMut::new(&self.running, &mut self.bytes[range])
    }

    /// Pins a range for calls that complete later: see [`Region::pin`]. The guard keeps the region
    /// alive.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// use std::sync::Arc;
    /// # let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// let region = Arc::new(pool.map(1 << 20)?);
    /// let pin: softswap::PinOwned = Region::pin_owned(&region, ..4096)?;
    /// # use softswap::Region;
    /// drop(region);
    /// assert_eq!(pin.len(), 4096);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Region::pin`].
    pub fn pin_owned(this: &Arc<Region>, range: impl RangeBounds<usize>) -> Result<PinOwned> {
        let range = this.range(range)?;
        let start = this.bytes[range.clone()].as_ptr().addr();
        let held = Held::new(&this.running, start, range.len())?;
        Ok(PinOwned { _held: held, range, region: Arc::clone(this) })
    }

    fn range(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let len = self.bytes.len();
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => len,
        };
        match start <= end && end <= len {
            true => Ok(start..end),
            false => Err(Error::Range { start, end, len }),
        }
    }

    /// Discards whole pages, and zeroes the parts of other pages in the range.
    fn drop_content(&mut self, range: Range<usize>) -> Result<()> {
        let first = range.start.next_multiple_of(PAGE_SIZE).min(range.end);
        // The last page contains nothing after the region's last byte.
        let is_end = range.end == self.bytes.len();
        let last = if is_end { range.end } else { range.end / PAGE_SIZE * PAGE_SIZE }.max(first);
        if first < last && first.is_multiple_of(PAGE_SIZE) {
            let start = self.bytes.as_ptr().addr() + first;
            self.running.with(|engine| engine.discard(start, last - first))??;
            self.bytes[range.start..first].fill(0);
            self.bytes[last..range.end].fill(0);
        } else {
            self.bytes[range].fill(0);
        }
        Ok(())
    }

    fn hint(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let start = (self.bytes.as_ptr().addr() + range.start) / PAGE_SIZE * PAGE_SIZE;
        let end = self.bytes.as_ptr().addr() + range.end;
        match advice {
            Advice::WillNeed => fault_in(&self.running, start..end),
            Advice::Cold => {
                Ok(self.running.with(|engine| engine.deactivate(start, end - start))??)
            }
            Advice::Sequential => self.set_order(start..end, Order::Sequential),
            Advice::Random => self.set_order(start..end, Order::Random),
            Advice::Normal | Advice::DontNeed => self.set_order(start..end, Order::Unknown),
        }
    }

    fn set_order(&self, range: Range<usize>, order: Order) -> Result<()> {
        self.is_ordered.store(true, Ordering::Relaxed);
        let len = range.end.next_multiple_of(PAGE_SIZE) - range.start;
        Ok(self.running.with(|engine| engine.set_order(range.start, len, order))??)
    }
}

fn whole_pages(engine: &Engine, len: usize) -> Option<usize> {
    let rounded = len.checked_next_multiple_of(PAGE_SIZE)?;
    (len > 0 && rounded <= engine.window().1).then_some(rounded)
}

/// Faults in at most half of the budget, because more pages would evict the first ones.
fn fault_in(running: &Running, range: Range<usize>) -> Result<()> {
    let max_bytes = running.with(Engine::half_of_budget_bytes)?;
    for address in range.take(max_bytes).step_by(PAGE_SIZE) {
        running.with(|engine| {
            let mut is_resident = [0];
            engine.residency(address, &mut is_resident)?;
            if is_resident == [0] {
                engine.fault(address, Access::Read)?;
            }
            Ok::<_, Error>(())
        })??;
    }
    Ok(())
}

/// A [`Pin`] that keeps its region alive.
///
/// ```
/// # fn main() -> softswap::Result<()> {
/// # let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
/// let region = std::sync::Arc::new(pool.map(1 << 20)?);
/// let pins: Vec<softswap::PinOwned> = (0..4)
///     .map(|part| softswap::Region::pin_owned(&region, part * 4096..part * 4096 + 512))
///     .collect::<softswap::Result<_>>()?;
/// assert!(pins.iter().all(|pin| pin[..] == [0; 512]));
/// # Ok(())
/// # }
/// ```
#[must_use = "the bytes stay in DRAM only while the guard exists"]
pub struct PinOwned {
    // Dropped before the region.
    _held: Held,
    range: Range<usize>,
    region: Arc<Region>,
}

impl Deref for PinOwned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }
}

impl std::fmt::Debug for PinOwned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinOwned").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Region {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (start, len) = (self.bytes.as_ptr().addr(), self.bytes.len());
        if self.is_ordered.load(Ordering::Relaxed) {
            // The next region at these addresses starts without an order.
            let _ = self.set_order(start..start + len, Order::Unknown);
        }
        // Fails only in a forked child, which lacks this memory, or if the kernel has no memory for
        // a call: then the range stays mapped as long as the pool.
        let _ = self.running.with(|engine| engine.unmap(start, len));
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}
