//! Recorded traces: which pages a real program touched, what for, and how these pages pack.
//! The format is described in `crates/bench/traces/README.md`.

mod range_coder;
pub(crate) mod convert;

use range_coder::{Chance, Coder, Decoder, Encoder, Number};
use std::io;

/// How a file of this kind begins.
const MAGIC: &[u8; 8] = b"touches1";
/// Sizes are noted in so many bytes.
pub(crate) const UNIT_BYTES: usize = 64;
/// What a page takes that does not pack, in units.
pub(crate) const WHOLE: u8 = 64;
/// More than any trace has.
const MOST_EVENTS: u32 = 1 << 26;
const MOST_PAGES: u32 = 1 << 24;

/// How a page packs, in units of [`UNIT_BYTES`]: nothing where all its words are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Content {
    pub(crate) lz4: u8,
    pub(crate) zstd: u8,
}

/// What happened next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A page was touched, and will hold this when it leaves, if that is another than before.
    Touch { page: u32, is_write: bool, content: Option<Content> },
    /// Pages were given up.
    Gone { page: u32, pages: u32 },
}

/// A program's touches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Recorded {
    /// Page numbers are below this.
    pub(crate) pages: u32,
    /// How many of the first events only tell what there was at the beginning.
    pub(crate) before: u32,
    /// Processor time that the program used, without faults, after these.
    pub(crate) cpu_us: u32,
    pub(crate) events: Vec<Event>,
}

impl Recorded {
    /// As it lies in a file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let header = [self.pages, self.before, self.cpu_us, self.events.len() as u32];
        header.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let (mut encoder, mut model) = (Encoder::default(), Model::new(self.pages));
        self.events.iter().for_each(|event| {
            model.code(&mut encoder, *event);
        });
        bytes.extend(encoder.finish());
        bytes
    }

    /// The pages that were touched.
    pub(crate) fn touches(&self) -> Vec<u32> {
        let touched = |event: &Event| match *event {
            Event::Touch { page, .. } => Some(page),
            Event::Gone { .. } => None,
        };
        self.events.iter().filter_map(touched).collect()
    }

    /// Whether this is how such a file begins.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads what [`Recorded::to_bytes`] made.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Recorded> {
        let bad = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("it is no recorded trace"))?;
        let (header, rest) = rest.split_at_checked(16).ok_or_else(|| bad("it is cut off"))?;
        let word = |at: usize| {
            let word = &header[4 * at..4 * at + 4];
            u32::from_le_bytes([word[0], word[1], word[2], word[3]])
        };
        let (pages, before, cpu_us, count) = (word(0), word(1), word(2), word(3));
        if pages > MOST_PAGES || count > MOST_EVENTS || before > count {
            return Err(bad("its header is damaged"));
        }
        let (mut decoder, mut model) = (Decoder::new(rest), Model::new(pages));
        let any = Event::Gone { page: 0, pages: 0 };
        let events = (0..count).map(|_| model.code(&mut decoder, any)).collect::<Vec<_>>();
        let is_known = |event: &Event| match *event {
            Event::Touch { page, .. } => page < pages,
            Event::Gone { page, pages: count } => {
                u64::from(page) + u64::from(count) <= pages.into()
            }
        };
        if decoder.is_damaged() || !events.iter().all(is_known) {
            return Err(bad("its events are damaged"));
        }
        Ok(Recorded { pages, before, cpu_us, events })
    }
}

/// What is known of the next event by those before it.
struct Model {
    last: u32,
    /// Whether the last two touches went one page on.
    onward: usize,
    was_write: usize,
    contents: Vec<Content>,
    touch: [Chance; 2],
    next: [Chance; 4],
    back: [Chance; 4],
    distance: Number,
    write: [Chance; 8],
    changed: [Chance; 4],
    lz4: Vec<[Chance; 128]>,
    zstd: Vec<[Chance; 128]>,
    gone: Number,
}

impl Model {
    fn new(pages: u32) -> Model {
        let by_size = || vec![[Chance::default(); 128]; 18];
        Model {
            last: 0,
            onward: 0,
            was_write: 0,
            contents: vec![Content::default(); pages as usize],
            touch: Default::default(),
            next: Default::default(),
            back: Default::default(),
            distance: Number::default(),
            write: Default::default(),
            changed: Default::default(),
            lz4: by_size(),
            zstd: by_size(),
            gone: Number::default(),
        }
    }

    /// Codes an event, or decodes one and returns it.
    fn code(&mut self, coder: &mut impl Coder, event: Event) -> Event {
        let is_gone = matches!(event, Event::Gone { .. });
        let is_gone = coder.bit(&mut self.touch[0], is_gone);
        let (page, is_write, content, pages) = match event {
            Event::Touch { page, is_write, content } => (page, is_write, content, 0),
            Event::Gone { page, pages } => (page, false, None, pages),
        };
        let page = self.page(coder, page);
        if is_gone {
            return Event::Gone { page, pages: self.gone.code(coder, pages) };
        }
        let context = self.onward | self.was_write << 2;
        let is_write = coder.bit(&mut self.write[context], is_write);
        self.was_write = usize::from(is_write);
        Event::Touch { page, is_write, content: self.content(coder, (page, is_write), content) }
    }

    fn page(&mut self, coder: &mut impl Coder, page: u32) -> u32 {
        let next = self.last.wrapping_add(1);
        let is_next = coder.bit(&mut self.next[self.onward], page == next);
        self.onward = (self.onward << 1 | usize::from(is_next)) & 3;
        self.last = if is_next {
            next
        } else {
            let is_back = coder.bit(&mut self.back[self.onward], page < self.last);
            let distance = self.distance.code(coder, page.abs_diff(self.last));
            match is_back {
                true => self.last.wrapping_sub(distance),
                false => self.last.wrapping_add(distance),
            }
        };
        self.last
    }

    fn content(
        &mut self,
        coder: &mut impl Coder,
        (page, is_write): (u32, bool),
        content: Option<Content>,
    ) -> Option<Content> {
        // A damaged file may name any page.
        let before = self.contents.get(page as usize).copied().unwrap_or_default();
        let context = usize::from(is_write) << 1 | usize::from(before == Content::default());
        let is_changed = coder.bit(&mut self.changed[context], content.is_some());
        if !is_changed {
            return None;
        }
        let Content { lz4, zstd } = content.unwrap_or_default();
        let by = usize::from(before.lz4 / 4).min(17);
        let lz4 = coder.tree(&mut self.lz4[by], 7, lz4.into()) as u8;
        let by = usize::from(lz4 / 4).min(17);
        let zstd = coder.tree(&mut self.zstd[by], 7, zstd.into()) as u8;
        let now = Content { lz4, zstd };
        self.contents.get_mut(page as usize).into_iter().for_each(|of_page| *of_page = now);
        Some(now)
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
        let gone = (0..500u32, 0..500u32).prop_map(|(page, pages)| Event::Gone { page, pages });
        prop::collection::vec(prop_oneof![9 => touch, 1 => gone], 0..300)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(events in events(), cpu_us: u32) {
            let recorded = Recorded { pages: 1000, before: 0, cpu_us, events };
            prop_assert_eq!(Recorded::from_bytes(&recorded.to_bytes()).unwrap(), recorded);
        }

        #[test]
        fn damaged_files_are_refused_or_read_as_another(
            events in events(), at: prop::sample::Index, byte: u8
        ) {
            let recorded = Recorded { pages: 1000, before: 0, cpu_us: 0, events };
            let mut bytes = recorded.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = Recorded::from_bytes(&bytes) {
                let is_known = |event: &Event| match *event {
                    Event::Touch { page, .. } => page < other.pages,
                    Event::Gone { page, pages } => page + pages <= other.pages,
                };
                prop_assert!(other.events.iter().all(is_known));
            }
            bytes.truncate(at);
            prop_assert!(Recorded::from_bytes(&bytes).is_err());
        }
    }

    #[test]
    fn pages_in_order_take_hardly_any_room() {
        let touch = |page| Event::Touch { page, is_write: false, content: None };
        let events: Vec<_> = (0..100_000).map(|at| touch(at % 1000)).collect();
        let recorded = Recorded { pages: 1000, before: 0, cpu_us: 0, events };
        assert!(recorded.to_bytes().len() < 3000);
    }
}
