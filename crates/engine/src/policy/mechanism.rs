//! Mechanisms that can be disabled separately, to measure their benefit (`softswap bench
//! ablation`). For developers: `SOFTSWAP_WITHOUT=standby,strides softswap run ...`.

use std::fmt;
use std::str::FromStr;

/// Table of mechanisms: a variant of [`Mechanism`], its name, and the behaviour without it.
macro_rules! mechanisms {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// A mechanism that can be disabled.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mechanism {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Mechanism {
            pub const ALL: &[Mechanism] = &[$(Mechanism::$variant),+];

            /// Returns the name used in `SOFTSWAP_WITHOUT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mechanism::$variant => $name,)+
                }
            }
        }
    };
}

mechanisms! {
    /// Without it all refaulting pages have the age of a new page.
    RefaultDistance = "refault_distance";
    /// Without it all pages are offered to the pool.
    Admission = "admission";
    /// Without it the pool keeps its initial limit.
    Partition = "partition";
    /// Without it `auto` means LZ4.
    DenseTier = "dense_tier";
    /// Without it pages written to a slot are not kept in DRAM.
    Standby = "standby";
    /// Without it the marker page of a window is read when it is touched.
    MarkerCache = "marker_cache";
    /// Without it no window is read before it is touched.
    Readahead = "readahead";
    /// Without it a fault reads a single page.
    FaultReadahead = "fault_readahead";
    /// Without it only streams of adjacent pages are detected.
    Strides = "strides";
    /// Without it pages at learnt offsets are not read with a faulting page.
    OffsetPrefetch = "offset_prefetch";
    /// Without it pages read from a slot keep no copy there.
    SwapCache = "swap_cache";
    /// Without it pages read from the pool keep no copy there.
    PoolCopies = "pool_copies";
    /// Without it only background reclaim keeps free memory at its watermark.
    KeepRoom = "keep_room";
    /// Without it a first touch installs a single page.
    FaultAround = "fault_around";
    /// Without it scattered pages are unmapped one by one.
    BatchUnmap = "batch_unmap";
    /// Without it sparse slabs of the pool are not compacted.
    Compaction = "compaction";
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Without(u32);

const _: () = assert!(Mechanism::ALL.len() <= u32::BITS as usize);

impl Without {
    pub fn has(self, mechanism: Mechanism) -> bool {
        self.0 >> mechanism as u32 & 1 == 1
    }

    #[must_use]
    pub fn and(self, mechanism: Mechanism) -> Without {
        Without(self.0 | 1 << mechanism as u32)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no mechanism {0:?}; the mechanisms are {names}", names = names())]
pub struct UnknownMechanism(String);

fn names() -> String {
    Mechanism::ALL.iter().map(|it| it.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Without {
    type Err = UnknownMechanism;

    /// Parses names separated by commas; an empty text is the empty set.
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
    fn disabled_mechanisms_round_trip() {
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
