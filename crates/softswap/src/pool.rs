//! A DRAM budget and the regions that share it.

use crate::error::Result;
use crate::region::Region;
use crate::running::Running;
use crate::size::bytes_of;
use crate::stats::Stats;
use std::sync::Arc;

/// A DRAM budget with swap areas. Clones refer to the same pool, which exists until the last clone
/// and the last region are dropped.
///
/// ```
/// # fn main() -> softswap::Result<()> {
/// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
/// let mut region = pool.map(64 << 20)?;
/// for (number, page) in region.chunks_mut(4096).enumerate() {
///     page[..8].copy_from_slice(&number.to_ne_bytes());
/// }
/// assert_eq!(region[4096 * 9999..][..8], 9999_usize.to_ne_bytes());
/// assert!(pool.stats().used_peak_bytes <= 16 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(crate) running: Arc<Running>,
}

impl Pool {
    pub(crate) fn of(running: Arc<Running>) -> Pool {
        Pool { running }
    }

    /// Maps a zeroed region of `len` bytes. It takes DRAM as it is touched.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// assert_eq!(pool.map(100)?.len(), 100);
    /// assert!(matches!(pool.map(0), Err(softswap::Error::Length { len: 0 })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length), [`Error::WindowFull`](crate::Error::WindowFull),
    /// [`Error::OtherProcess`](crate::Error::OtherProcess).
    pub fn map(&self, len: usize) -> Result<Region> {
        Region::map(Arc::clone(&self.running), len)
    }

    /// Changes the DRAM limit. Raising it takes effect immediately; lowering it waits a short time
    /// for pages to be evicted.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// pool.set_memory("24M")?;
    /// assert_eq!(pool.stats().budget_bytes, 24 << 20);
    /// assert!(matches!(pool.set_memory("1M"), Err(softswap::Error::Limit(_))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Size`](crate::Error::Size), or [`Error::Limit`](crate::Error::Limit) if the size is
    /// less than the pool itself needs. The limit is then unchanged.
    pub fn set_memory(&self, size: &str) -> Result<()> {
        self.set_memory_bytes(bytes_of(size)?)
    }

    /// Changes the DRAM limit to a number of bytes: see [`Pool::set_memory`].
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// pool.set_memory_bytes(20 << 20)?;
    /// assert_eq!(pool.stats().budget_bytes, 20 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit): see [`Pool::set_memory`].
    pub fn set_memory_bytes(&self, bytes: u64) -> Result<()> {
        Ok(self.running.with(|engine| engine.set_memory_limit(bytes))??)
    }

    /// Returns the pool's statistics. In a forked child all fields are zero.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// assert_eq!(pool.stats().faults_disk, 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = self.running.with(|engine| {
            engine.note_peaks();
            Stats::of(engine.stats())
        });
        stats.unwrap_or_default()
    }

    /// Returns the statistics as one JSON object, with the names of the fields of [`Stats`].
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
    /// assert!(pool.snapshot_stats_json().starts_with("{\"budget_bytes\":16777216,"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn snapshot_stats_json(&self) -> String {
        self.stats().json()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("stats", &self.stats()).finish()
    }
}
