//! Recorded traces of real programs, in the format of `crates/bench/traces/README.md`.

pub(crate) mod convert;

use serde::{Deserialize, Serialize};
use std::io::{self, Read};

const MAGIC: &[u8; 8] = b"touches2";
pub(crate) const UNIT_BYTES: usize = 64;
/// Size of an incompressible page in units.
pub(crate) const WHOLE: u8 = 64;
/// Limits on parsed files, larger than any trace.
const MAX_BYTES: u64 = 1 << 30;
const MAX_EVENTS: usize = 1 << 26;
const MAX_PAGES: u32 = 1 << 24;
/// Small files are more important than the time to write them.
const ZSTD_LEVEL: i32 = 22;
const WRITES: u8 = 1;
const HAS_CONTENT: u8 = 2;
const FREED: u8 = 4;

/// Compressed sizes in units of [`UNIT_BYTES`]; zero if all words of the page are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Content {
    pub(crate) lz4: u8,
    pub(crate) zstd: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// `content` is that at the eviction, if it has changed.
    Touch {
        page: u32,
        is_write: bool,
        content: Option<Content>,
    },
    Freed {
        page: u32,
        pages: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Recorded {
    pub(crate) pages: u32,
    /// Initial events, which describe the pages at the start.
    pub(crate) before: u32,
    /// CPU time after the initial events, without faults.
    pub(crate) cpu_us: u32,
    pub(crate) events: Vec<Event>,
}

impl Recorded {
    pub(crate) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let columns = postcard::to_stdvec(&Columns::from(self)).map_err(io::Error::other)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(zstd::bulk::compress(&columns, ZSTD_LEVEL)?);
        Ok(bytes)
    }

    pub(crate) fn touches(&self) -> Vec<u32> {
        let touched = |event: &Event| match *event {
            Event::Touch { page, .. } => Some(page),
            Event::Freed { .. } => None,
        };
        self.events.iter().filter_map(touched).collect()
    }

    /// Fails if the file is damaged or larger than any trace.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Recorded> {
        let bad = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("it is not a recorded trace"))?;
        let mut columns = Vec::new();
        zstd::Decoder::new(rest)
            .and_then(|frame| frame.take(MAX_BYTES).read_to_end(&mut columns))
            .map_err(|_| bad("its frame is damaged or cut off"))?;
        let columns: Columns =
            postcard::from_bytes(&columns).map_err(|_| bad("its columns are damaged"))?;
        columns.to_recorded().ok_or_else(|| bad("its events are damaged"))
    }
}

/// Columns compress better than rows.
#[derive(Default, Serialize, Deserialize)]
struct Columns {
    pages: u32,
    before: u32,
    cpu_us: u32,
    kinds: Vec<u8>,
    /// Differences of successive page numbers.
    steps: Vec<i64>,
    lz4: Vec<u8>,
    zstd: Vec<u8>,
    freed: Vec<u32>,
}

impl From<&Recorded> for Columns {
    fn from(recorded: &Recorded) -> Columns {
        let Recorded { pages, before, cpu_us, ref events } = *recorded;
        let mut columns = Columns { pages, before, cpu_us, ..Columns::default() };
        let mut last = 0;
        for event in events {
            let (kind, page) = match *event {
                Event::Touch { page, is_write, content } => {
                    columns.lz4.extend(content.map(|content| content.lz4));
                    columns.zstd.extend(content.map(|content| content.zstd));
                    (
                        (u8::from(is_write) * WRITES) | (u8::from(content.is_some()) * HAS_CONTENT),
                        page,
                    )
                }
                Event::Freed { page, pages } => {
                    columns.freed.push(pages);
                    (FREED, page)
                }
            };
            columns.kinds.push(kind);
            columns.steps.push(i64::from(page) - i64::from(last));
            last = page;
        }
        columns
    }
}

impl Columns {
    /// Returns `None` if the columns are inconsistent or a page is out of range.
    fn to_recorded(&self) -> Option<Recorded> {
        let Columns { pages, before, cpu_us, .. } = *self;
        let count = self.kinds.len();
        let is_too_large = pages > MAX_PAGES || count > MAX_EVENTS;
        if is_too_large || before as usize > count || self.steps.len() != count {
            return None;
        }
        let (mut lz4, mut zstd, mut freed) =
            (self.lz4.iter(), self.zstd.iter(), self.freed.iter().copied());
        let mut last = 0_i64;
        let mut event = |kind: u8, step: i64| {
            last = last.checked_add(step)?;
            let page = u32::try_from(last).ok().filter(|page| *page < pages)?;
            if kind & FREED != 0 {
                let pages_freed = freed.next()?;
                let end = page.checked_add(pages_freed)?;
                return (end <= pages).then_some(Event::Freed { page, pages: pages_freed });
            }
            let content = match kind & HAS_CONTENT {
                0 => None,
                _ => Some(Content { lz4: *lz4.next()?, zstd: *zstd.next()? }),
            };
            Some(Event::Touch { page, is_write: kind & WRITES != 0, content })
        };
        let rows = self.kinds.iter().zip(&self.steps);
        let events = rows.map(|(kind, step)| event(*kind, *step)).collect::<Option<Vec<_>>>()?;
        Some(Recorded { pages, before, cpu_us, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let content =
            prop::option::of((0..=WHOLE, 0..=WHOLE).prop_map(|(lz4, zstd)| Content { lz4, zstd }));
        let touch = (0..1000u32, any::<bool>(), content)
            .prop_map(|(page, is_write, content)| Event::Touch { page, is_write, content });
        let freed = (0..500u32, 0..500u32).prop_map(|(page, pages)| Event::Freed { page, pages });
        prop::collection::vec(prop_oneof![9 => touch, 1 => freed], 0..300)
    }

    proptest! {
        #[test]
        fn written_trace_is_read_back(events in events(), cpu_us: u32) {
            let recorded = Recorded { pages: 1000, before: 0, cpu_us, events };
            prop_assert_eq!(Recorded::from_bytes(&recorded.to_bytes().unwrap()).unwrap(), recorded);
        }

        #[test]
        fn damaged_files_are_rejected_or_decoded_differently(
            events in events(), at: prop::sample::Index, byte: u8
        ) {
            let recorded = Recorded { pages: 1000, before: 0, cpu_us: 0, events };
            let mut bytes = recorded.to_bytes().unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = Recorded::from_bytes(&bytes) {
                let is_known = |event: &Event| match *event {
                    Event::Touch { page, .. } => page < other.pages,
                    Event::Freed { page, pages } => page + pages <= other.pages,
                };
                prop_assert!(other.events.iter().all(is_known));
            }
            bytes.truncate(at);
            prop_assert!(Recorded::from_bytes(&bytes).is_err());
        }
    }

    #[test]
    fn sequential_pages_compress_well() {
        let touch = |page| Event::Touch { page, is_write: false, content: None };
        let events: Vec<_> = (0..100_000).map(|at| touch(at % 1000)).collect();
        let recorded = Recorded { pages: 1000, before: 0, cpu_us: 0, events };
        assert!(recorded.to_bytes().unwrap().len() < 3000);
    }
}
