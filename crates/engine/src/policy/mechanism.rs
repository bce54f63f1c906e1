//! What can be switched off, each by itself, to see what it is worth (`softswap bench
//! ablation`). For developers: `SOFTSWAP_WITHOUT=standby,strides softswap run ...`.

use std::fmt;
use std::str::FromStr;

/// The table of mechanisms. A line is a variant of [`Mechanism`], its name, and what there is
/// without it.
macro_rules! mechanisms {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// A mechanism that can be switched off.
        ///
        /// ```
        /// use softswap_engine::policy::mechanism::Mechanism;
        /// assert!(Mechanism::ALL.iter().any(|it| it.name() == "standby"));
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mechanism {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Mechanism {
            /// All of them.
            pub const ALL: &[Mechanism] = &[$(Mechanism::$variant),+];

            /// As `SOFTSWAP_WITHOUT` has it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Mechanism::$variant => $name,)+
                }
            }
        }
    };
}

mechanisms! {
    /// Without it all pages that come back have the grace of a fresh one.
    RefaultDistance = "refault_distance";
    /// Without it the clock does not pass over pages that do not pack.
    PassingOver = "passing_over";
    /// Without it all pages are offered to the pool.
    Admission = "admission";
    /// Without it the pool's limit stays as it is at first.
    Partition = "partition";
    /// Without it LZ4 alone packs where no codec was asked for.
    DenseTier = "dense_tier";
    /// Without it nothing is kept of what has just left for a slot.
    Standby = "standby";
    /// Without it the marker of a window is read when it is touched.
    MarkerCache = "marker_cache";
    /// Without it no window is read before it is touched.
    Readahead = "readahead";
    /// Without it a fault reads one page.
    FaultReadahead = "fault_readahead";
    /// Without it only streams from page to page are followed.
    Strides = "strides";
    /// Without it windows are as long as they may be.
    Accuracy = "accuracy";
    /// Without it pages at a distance seen before do not come along.
    OffsetPrefetch = "offset_prefetch";
    /// Without it pages that come from a slot keep no copy there.
    SwapCache = "swap_cache";
    /// Without it pages that come from the pool keep no copy there.
    PoolCopies = "pool_copies";
    /// Without it only background reclaim keeps free memory at its watermark.
    KeepRoom = "keep_room";
    /// Without it a first touch brings one page.
    FaultAround = "fault_around";
    /// Without it scattered pages leave one by one.
    BatchUnmap = "batch_unmap";
    /// Without it sparse slabs of the pool stay as they are.
    Compaction = "compaction";
}

/// Mechanisms that are switched off.
///
/// ```
/// use softswap_engine::policy::mechanism::{Mechanism, Without};
/// let without: Without = "standby,strides".parse().unwrap();
/// assert!(without.has(Mechanism::Strides) && !without.has(Mechanism::Readahead));
/// assert!("steam".parse::<Without>().is_err());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without(u32);

const _: () = assert!(Mechanism::ALL.len() <= u32::BITS as usize);

impl Without {
    /// Whether this one is off.
    #[must_use]
    pub fn has(self, mechanism: Mechanism) -> bool {
        self.0 >> mechanism as u32 & 1 == 1
    }

    /// All but these, and this one.
    #[must_use]
    pub fn and(self, mechanism: Mechanism) -> Without {
        Without(self.0 | 1 << mechanism as u32)
    }
}

/// A name that no mechanism has.
///
/// ```
/// use softswap_engine::policy::mechanism::Without;
/// let error = "steam".parse::<Without>().unwrap_err();
/// assert!(error.to_string().starts_with("no mechanism is called \"steam\"; there are "));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no mechanism is called {0:?}; there are {names}", names = names())]
pub struct UnknownMechanism(String);

fn names() -> String {
    Mechanism::ALL.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Without {
    type Err = UnknownMechanism;

    /// Reads names with commas between; none of them is none.
    fn from_str(text: &str) -> Result<Without, UnknownMechanism> {
        let named = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        named.into_iter().try_fold(Without::default(), |all, name| {
            let found = Mechanism::ALL.iter().find(|it| it.name() == name);
            found.map(|it| all.and(*it)).ok_or_else(|| UnknownMechanism(name.to_string()))
        })
    }
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = Mechanism::ALL.iter().filter(|it| self.has(**it)).map(|it| it.name());
        f.write_str(&off.collect::<Vec<_>>().join(","))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_off_is_read_as_it_is_shown() {
        for mechanism in Mechanism::ALL {
            let without = Without::default().and(*mechanism);
            assert_eq!(without.to_string().parse(), Ok(without));
            let others = Mechanism::ALL.iter().filter(|other| without.has(**other));
            assert_eq!(others.count(), 1);
        }
        assert_eq!("".parse(), Ok(Without::default()));
        let all = names().replace(", ", ",");
        assert_eq!(all.parse::<Without>().unwrap().to_string(), all);
    }
}
