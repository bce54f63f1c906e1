//! How a pool is asked for.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::running::Running;
use crate::size::bytes_of;
use softswap_engine::door::settings::{AreaSpec, Config};
use std::path::Path;
use std::sync::Arc;

/// Settings of a pool to be.
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
    is_guarded: bool,
}

impl Pool {
    /// Begins to say what pool is wanted.
    ///
    /// ```
    /// let builder = softswap::Pool::builder();
    /// # drop(builder);
    /// ```
    pub fn builder() -> Builder {
        let config = Config { areas: Vec::new(), ..Config::default() };
        Builder { config, is_guarded: false }
    }
}

impl Builder {
    /// The limit on DRAM, of which `B`, `K`, `M` and `G` are the units (by 1024): all that the
    /// pool keeps there counts. 1G unless it is said; at least 8M.
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

    /// As [`Builder::memory`], in bytes.
    ///
    /// ```
    /// # fn main() -> softswap::Result<()> {
    /// let builder = softswap::Pool::builder().memory_bytes(16 << 20).swap("/var/tmp")?;
    /// assert_eq!(builder.build()?.stats().budget_bytes, 16 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_bytes(mut self, bytes: u64) -> Builder {
        self.config.memory_bytes = bytes;
        self
    }

    /// Where pages go that leave DRAM: a directory, for a file in it without a name, perhaps
    /// with a limit on its size; or a swap file or device. Several may be given: those given
    /// first are filled first. `/var/tmp` unless one is given.
    ///
    /// ```
    /// let builder = softswap::Pool::builder().swap("/var/tmp:50G").unwrap();
    /// assert!(builder.swap("").is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::Swap`]. Whether the area can be used is found out by [`Builder::build`].
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

    /// Whether what is written to the disk is encrypted, as it is unless told otherwise. What
    /// comes back changed is found out in any case.
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

    /// Whether system calls may be given regions as they are, as under `softswap run`: what is out
    /// is brought in before the kernel looks at it. Otherwise, as is the default, it must be
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
    /// The first such pool puts a seccomp filter in force for the whole process, for good, and a
    /// handler of SIGSYS, which passes on what is not its own. Without privileges the process
    /// gives up gaining any (`PR_SET_NO_NEW_PRIVS`): `sudo` and the like gain nothing in what it
    /// starts. A transfer longer than an eighth of the budget is made in pieces. Calls that name
    /// their buffers in a structure (`readv`, `writev`, `sendmsg`, `recvmsg`) are not seen: pin
    /// for those. SIGSYS must not be blocked by a thread that makes calls with regions.
    pub fn guard_calls(mut self, on: bool) -> Builder {
        self.is_guarded = on;
        self
    }

    /// Makes the pool: opens the swap areas, reserves address space, starts four threads.
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
    /// [`Error::Unsupported`] where the kernel or a container has no userfaultfd;
    /// [`Error::NoAddresses`] where there are many pools; [`Error::Kernel`].
    pub fn build(mut self) -> Result<Pool> {
        if self.config.areas.is_empty() {
            self.config.areas.push(AreaSpec::new("/var/tmp"));
        }
        Ok(Pool::of(Arc::new(Running::start(&self.config, self.is_guarded)?)))
    }
}
