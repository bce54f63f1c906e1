//! Recording of page events for `softswap bench record`. Touches of resident pages are not seen, so
//! a small budget records most.
//!
//! Events are stored in a file that the process maps, so they survive a crash.

use crate::base::access::Access;
use crate::base::page::PageNo;
use softswap_sys::raw::process_cpu_ns;
use softswap_sys::shared;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub const MAGIC: u64 = u64::from_le_bytes(*b"softrec2");
/// Words before the first event: [`MAGIC`] and the number of events.
pub const HEADER_WORDS: usize = 2;
/// Words of the file: 128 Mi events. Only written pages use space on the disk.
const WORDS: usize = 1 << 27;

/// Fields of a word: kind, page, and further data. Pages 4 TiB apart get the same number.
const KIND_BITS: u32 = 3;
const PAGE_BITS: u32 = 30;
const CPU_BITS: u32 = 30;
const SIZE_BITS: u32 = 13;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// `cpu_ns`: CPU time of the program since the previous touch.
    Touch { page: PageNo, access: Access, cpu_ns: u64 },
    /// If the page is incompressible, both sizes are that of a page.
    Evicted {
        page: PageNo,
        lz4_bytes: u64,
        /// Size with zstd as used for a full pool, in bytes.
        zstd_bytes: u64,
    },
    /// The page was evicted and is same-filled.
    SameFilled { page: PageNo },
    /// Pages were discarded or unmapped.
    Freed { page: PageNo, pages: u64 },
    /// The content was moved to another page.
    Moved { page: PageNo, to: PageNo },
}

impl Event {
    pub fn to_word(self) -> u64 {
        let number = |page: PageNo| page & ((1 << PAGE_BITS) - 1);
        let (kind, page, rest) = match self {
            Event::Touch { page, access, cpu_ns } => {
                let is_write = u64::from(access == Access::Write);
                (1, page, is_write << CPU_BITS | cpu_ns.min((1 << CPU_BITS) - 1))
            }
            Event::Evicted { page, lz4_bytes, zstd_bytes } => {
                (2, page, lz4_bytes << SIZE_BITS | zstd_bytes)
            }
            Event::SameFilled { page } => (3, page, 0),
            Event::Freed { page, pages } => (4, page, pages),
            Event::Moved { page, to } => (5, page, number(to)),
        };
        kind | number(page) << KIND_BITS | rest << (KIND_BITS + PAGE_BITS)
    }

    /// Returns `None` if the word is empty or invalid.
    pub fn from_word(word: u64) -> Option<Event> {
        let low = |bits: u64, count: u32| bits & ((1 << count) - 1);
        let page = low(word >> KIND_BITS, PAGE_BITS);
        let rest = word >> (KIND_BITS + PAGE_BITS);
        Some(match low(word, KIND_BITS) {
            1 => {
                let access = if rest >> CPU_BITS == 1 { Access::Write } else { Access::Read };
                Event::Touch { page, access, cpu_ns: low(rest, CPU_BITS) }
            }
            2 => {
                let (lz4_bytes, zstd_bytes) = (rest >> SIZE_BITS, low(rest, SIZE_BITS));
                Event::Evicted { page, lz4_bytes, zstd_bytes }
            }
            3 => Event::SameFilled { page },
            4 => Event::Freed { page, pages: rest },
            5 => Event::Moved { page, to: rest },
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    words: &'static [AtomicU64],
    /// Cleared in a forked child, which shares the file.
    is_on: AtomicBool,
    /// CPU time of the process at the end of the last fault.
    cpu_ns: AtomicU64,
}

impl Recorder {
    /// Creates a new file, or replaces an earlier recording. Fails if the file has other content.
    pub(crate) fn create(path: &Path) -> io::Result<Recorder> {
        let words = shared::map_new_file(path, WORDS, MAGIC)?;
        words[0].store(MAGIC, Relaxed);
        Ok(Recorder { words, is_on: AtomicBool::new(true), cpu_ns: AtomicU64::new(0) })
    }

    fn note(&self, event: Event) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        let at = self.words[1].fetch_add(1, Relaxed) as usize;
        if let Some(word) = self.words.get(HEADER_WORDS + at) {
            word.store(event.to_word(), Relaxed);
        }
    }

    pub(crate) fn touched(&self, page: PageNo, access: Access) {
        let cpu_ns = process_cpu_ns().saturating_sub(self.cpu_ns.load(Relaxed));
        self.note(Event::Touch { page, access, cpu_ns });
    }

    pub(crate) fn note_fault_end(&self) {
        self.cpu_ns.store(process_cpu_ns(), Relaxed);
    }

    /// Sizes by LZ4 and zstd; `None` if incompressible.
    pub(crate) fn record_evicted(
        &self,
        page: PageNo,
        compressed: [Option<usize>; 2],
        page_bytes: usize,
    ) {
        let [lz4_bytes, zstd_bytes] = compressed.map(|bytes| bytes.unwrap_or(page_bytes) as u64);
        self.note(Event::Evicted { page, lz4_bytes, zstd_bytes });
    }

    pub(crate) fn record_same_filled(&self, page: PageNo) {
        self.note(Event::SameFilled { page });
    }

    pub(crate) fn note_freed(&self, range: &Range<PageNo>) {
        if range.start < range.end {
            self.note(Event::Freed { page: range.start, pages: range.end - range.start });
        }
    }

    pub(crate) fn moved(&self, page: PageNo, to: PageNo) {
        self.note(Event::Moved { page, to });
    }

    pub(crate) fn stop(&self) {
        self.is_on.store(false, Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip() {
        let page = (1 << PAGE_BITS) - 1;
        for event in [
            Event::Touch { page, access: Access::Read, cpu_ns: 0 },
            Event::Touch { page, access: Access::Write, cpu_ns: (1 << CPU_BITS) - 1 },
            Event::Evicted { page: 3, lz4_bytes: 4096, zstd_bytes: 17 },
            Event::SameFilled { page: 0 },
            Event::Freed { page: 5, pages: 1 << PAGE_BITS },
            Event::Moved { page, to: page },
        ] {
            assert_eq!(Event::from_word(event.to_word()), Some(event));
        }
        assert_eq!((Event::from_word(0), Event::from_word(7)), (None, None));
    }

    #[test]
    fn recording_is_in_file_until_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some.rec");
        let recorder = Recorder::create(&path).unwrap();
        recorder.touched(3, Access::Write);
        recorder.record_evicted(3, [Some(100), None], 4096);
        recorder.note_freed(&(5..5));
        recorder.stop();
        recorder.record_same_filled(4);
        let bytes = std::fs::read(&path).unwrap();
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<_> = words.iter().take(5).map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!((words[0], words[1], words[4]), (MAGIC, 2, 0));
        assert!(matches!(Event::from_word(words[2]), Some(Event::Touch { page: 3, .. })));
        let left = Event::Evicted { page: 3, lz4_bytes: 100, zstd_bytes: 4096 };
        assert_eq!(Event::from_word(words[3]), Some(left));
        assert!(Recorder::create(Path::new("/no/such/dir/x")).is_err());
    }

    #[test]
    fn only_recordings_are_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some.rec");
        let earlier = Recorder::create(&path).unwrap();
        Recorder::create(&path).unwrap().stop();
        earlier.record_same_filled(1);
        let words = std::fs::read(&path).unwrap();
        assert!(
            words.starts_with(b"softrec2") && words[8..24] == [0; 16],
            "the new recording is empty"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file remains");
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(Recorder::create(&pipe).is_err(), "fails without waiting for a reader");
        for content in ["", "short", "root:x:0:0:root:/root:/bin/sh\n"] {
            std::fs::write(&path, content).unwrap();
            let refused = Recorder::create(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content, "the file is unchanged");
        }
    }
}
