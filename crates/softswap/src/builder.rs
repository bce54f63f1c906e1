//! Settings of a pool.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::running::Running;
use crate::size::bytes_of;
use softswap_engine::api::settings::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_sys::memory::dram_bytes;
use softswap_sys::memory_limits;
use std::path::Path;
use std::sync::Arc;

/// Settings of a new pool.
///
/// ```
/// # fn main() -> softswap::Result<()> {
/// let pool = softswap::Pool::builder()
///     .memory("32M")?
///     .swap("/var/tmp:1G")?
///     .encrypt(false)
///     .build()?;
/// assert_eq!(pool.stats().budget_bytes, 32 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    config: Config,
    has_memory: bool,
    is_guarded: bool,
}

/// Returns the budget of a pool without one. The other half is for the rest of the program.
fn default_memory_bytes(available_bytes: u64) -> u64 {
    (available_bytes / 2).clamp(MIN_MEMORY_BYTES, 1 << 30)
}

impl Pool {
    /// Returns a builder with the default settings.
    ///
    /// ```
    /// let builder = softswap::Pool::builder();
    /// # drop(builder);
    /// ```
    pub fn builder() -> Builder {
        let config = Config { areas: Vec::new(), ..Config::default() };
        Builder { config, has_memory: false, is_guarded: false }
    }
}

impl Builder {
    /// Sets the DRAM limit, which covers all DRAM that the pool uses. Units are `B`,
    /// `K`, `M` and `G` (by 1024). At least 8M; more than the machine's DRAM counts as its DRAM.
    /// Default: 1G, or half of the memory that the machine and its control groups make available if
    /// that is less.
    ///
    /// ```
    /// assert!(softswap::Pool::builder().memory("1.5 lots").is_err());
    /// assert!(softswap::Pool::builder().memory("512MiB").is_ok());
    /// ```
    ///
    /// # Errors
    /// [`Error::Size`].
    pub fn memory(self, size: &str) -> Result<Builder> {
        Ok(self.memory_bytes(bytes_of(size)?))
    }

    /// Sets the DRAM limit in bytes: see [`Builder::memory`].
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let builder = softswap::Pool::builder().memory_bytes(16 << 20).swap("/var/tmp")?;
    /// assert_eq!(builder.build()?.stats().budget_bytes, 16 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_bytes(mut self, bytes: u64) -> Builder {
        // Tables are sized for the resident memory.
        self.config.memory_bytes = bytes.min(dram_bytes());
        self.has_memory = true;
        self
    }

    /// Adds a swap area: a directory, optionally with a size limit, in which the pool creates an
    /// unlinked file; or a swap file or device. Of several areas the first ones are filled first.
    /// Default: `/var/tmp`.
    ///
    /// ```
    /// let builder = softswap::Pool::builder().swap("/var/tmp:50G").unwrap();
    /// assert!(builder.swap("").is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::Swap`]. [`Builder::build`] checks that the area is usable.
    pub fn swap(mut self, area: &str) -> Result<Builder> {
        let (path, limit_bytes) = match area.rsplit_once(':') {
            Some((path, size)) if !Path::new(area).exists() => match bytes_of(size) {
                Ok(bytes) if bytes > 0 => (path, Some(bytes)),
                _ => return Err(Error::Swap { text: area.into() }),
            },
            _ => (area, None),
        };
        if path.is_empty() || path.contains('\0') {
            return Err(Error::Swap { text: area.into() });
        }
        self.config.areas.push(AreaSpec { limit_bytes, ..AreaSpec::new(path) });
        Ok(self)
    }

    /// Sets whether data written to the disk are encrypted (the default). Modified data are
    /// detected in either case.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.encrypt(false).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn encrypt(mut self, on: bool) -> Builder {
        self.config.encrypt = on;
        self
    }

    /// Sets whether system calls may receive regions directly, as under `softswap run`: absent
    /// pages are faulted in before the kernel accesses them. By default they must be
    /// [pinned](crate::Region::pin).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::{Read, Seek, Write};
    /// # let mut file = tempfile::tempfile()?;
    /// let builder = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?;
    /// let pool = builder.guard_calls(true).build()?;
    /// let (mut region, mut copy) = (pool.map(48 << 20)?, pool.map(48 << 20)?);
    /// region.fill(7);
    /// file.write_all(&region)?;
    /// file.rewind()?;
    /// file.read_exact(&mut copy)?;
    /// assert!(region[..] == copy[..]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The first such pool permanently installs a seccomp filter for the whole process, and a
    /// SIGSYS handler, which passes other SIGSYS to the previous handler. In an unprivileged
    /// process it sets `PR_SET_NO_NEW_PRIVS`, so `sudo` no longer works in its children. A
    /// transfer longer than an eighth of the budget is made in pieces. Calls with buffers in a
    /// structure (`readv`, `writev`, `sendmsg`, `recvmsg`) are not intercepted: pin their buffers.
    /// A thread that passes regions to system calls must not block SIGSYS.
    pub fn guard_calls(mut self, on: bool) -> Builder {
        self.is_guarded = on;
        self
    }

    /// Creates the pool: opens the swap areas, reserves address space, starts four threads.
    ///
    /// ```
    /// let builder = softswap::Pool::builder().memory("1M").unwrap().swap("/var/tmp").unwrap();
    /// assert!(matches!(builder.build(), Err(softswap::Error::TooLittleMemory { .. })));
    /// let builder = softswap::Pool::builder().swap("/nowhere").unwrap();
    /// assert!(matches!(builder.build(), Err(softswap::Error::Area { .. })));
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLittleMemory`]; [`Error::Area`], also for a directory on a tmpfs, which is DRAM;
    /// [`Error::Unsupported`] if the kernel or a container refuses what a pool needs;
    /// [`Error::NoAddresses`] with too many pools; [`Error::Kernel`].
    pub fn build(mut self) -> Result<Pool> {
        if !self.has_memory {
            self.config.memory_bytes = default_memory_bytes(memory_limits::available().bytes);
        }
        if self.config.areas.is_empty() {
            self.config.areas.push(AreaSpec::new("/var/tmp"));
        }
        Ok(Pool::of(Arc::new(Running::start(&self.config, self.is_guarded)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_budget_is_half_of_the_available_memory_at_most() {
        let mib = [0, 100, 256, 2048, 100_000].map(|mib| default_memory_bytes(mib << 20) >> 20);
        assert_eq!(mib, [8, 50, 128, 1024, 1024]);
    }
}
