//! Converts the engine's recording to a trace.

use super::{Content, Event, Recorded, UNIT_BYTES, WHOLE};
use softswap_engine::base::access::Access;
use softswap_engine::core::recorder::{Event as Noted, HEADER_WORDS, MAGIC};
use softswap_sys::PAGE_SIZE;
use std::collections::BTreeMap;

/// Longer gaps between touched pages are shortened.
const MAX_GAP_PAGES: u64 = 16;

/// Converts a recording without its first `skip` touches, up to `most` touches. The trace begins
/// with the pages that then exist. Returns `None` for other words.
pub(crate) fn convert(
    mut words: impl Iterator<Item = u64>,
    skip: usize,
    most: usize,
) -> Option<Recorded> {
    let header = [words.next()?, words.next()?];
    const { assert!(HEADER_WORDS == 2) };
    if header[0] != MAGIC {
        return None;
    }
    let mut script = Script::default();
    words.take(header[1] as usize).filter_map(Noted::from_word).for_each(|it| script.add(it));
    Some(script.finish(skip, most))
}

/// Pages have content numbers, which do not change when a page moves.
#[derive(Default)]
struct Script {
    /// Content number by address, if a page moved from or to it. Otherwise it is the page number.
    owners: BTreeMap<u64, u64>,
    last: BTreeMap<u64, (usize, Content)>,
    events: Vec<(u64, Event)>,
    cpu_ns: Vec<(usize, u64)>,
    /// Moves so far, for new content numbers.
    next: u64,
}

fn units(bytes: u64) -> u8 {
    (bytes.min(PAGE_SIZE as u64) as usize).div_ceil(UNIT_BYTES) as u8
}

impl Script {
    fn number(&self, page: u64) -> u64 {
        self.owners.get(&page).copied().unwrap_or(page)
    }

    fn add(&mut self, noted: Noted) {
        match noted {
            Noted::Touch { page, access, cpu_ns } => {
                let number = self.number(page);
                let at = self.events.len();
                self.last.entry(number).or_insert((at, Content { lz4: u8::MAX, zstd: 0 })).0 = at;
                let is_write = access == Access::Write;
                self.events.push((number, Event::Touch { page: 0, is_write, content: None }));
                self.cpu_ns.push((at, cpu_ns));
            }
            Noted::Evicted { page, lz4_bytes, zstd_bytes } => {
                self.set_content(page, Content { lz4: units(lz4_bytes), zstd: units(zstd_bytes) });
            }
            Noted::SameFilled { page } => self.set_content(page, Content::default()),
            Noted::Freed { page, pages } => {
                let range = page..page.saturating_add(pages);
                let moved: Vec<_> = self.owners.range(range.clone()).map(|(at, _)| *at).collect();
                let numbers: Vec<_> =
                    moved.iter().filter_map(|at| self.owners.remove(at)).collect();
                let existing: Vec<_> = self.last.range(range).map(|(at, _)| *at).collect();
                for number in existing.into_iter().chain(numbers) {
                    self.last.remove(&number);
                    self.events.push((number, Event::Freed { page: 0, pages: 1 }));
                }
            }
            Noted::Moved { page, to } => {
                let number = self.number(page);
                self.owners.insert(to, number);
                self.next += 1;
                // Later content of the old address gets a new number.
                self.owners.insert(page, (1 << 40) + self.next);
            }
        }
    }

    fn set_content(&mut self, page: u64, content: Content) {
        let number = self.number(page);
        let Some((at, before)) = self.last.get_mut(&number) else { return };
        if *before != content {
            *before = content;
            if let (_, Event::Touch { content: of_touch, .. }) = &mut self.events[*at] {
                *of_touch = Some(content);
            }
        }
    }

    fn finish(self, skip: usize, most: usize) -> Recorded {
        let is_touch = |event: &(u64, Event)| matches!(event.1, Event::Touch { .. });
        let touches: Vec<_> =
            self.events.iter().enumerate().filter(|(_, event)| is_touch(event)).collect();
        let from = touches.get(skip).map_or(self.events.len(), |(at, _)| *at);
        let to = touches.get(skip + most).map_or(self.events.len(), |(at, _)| *at);
        let mut events = at_beginning(&self.events[..from]);
        let before = events.len() as u32;
        events.extend(&self.events[from..to]);
        let is_in = |at: &usize| (from..to).contains(at);
        let cpu_ns: u64 = self.cpu_ns.iter().filter(|it| is_in(&it.0)).map(|it| it.1).sum();
        let (numbers, pages) = without_gaps(events.iter().map(|(number, _)| *number));
        let events = events.into_iter().map(|(number, event)| {
            let at = numbers[&number];
            match event {
                Event::Touch { is_write, content, .. } => {
                    Event::Touch { page: at, is_write, content }
                }
                Event::Freed { pages, .. } => Event::Freed { page: at, pages },
            }
        });
        let events = joined(events);
        Recorded { pages, before, cpu_us: (cpu_ns / 1000) as u32, events }
    }
}

/// Returns a touch of each page that exists after these events, ordered by last touch.
fn at_beginning(events: &[(u64, Event)]) -> Vec<(u64, Event)> {
    let mut existing: BTreeMap<u64, (usize, Content)> = BTreeMap::new();
    for (at, (number, event)) in events.iter().enumerate() {
        match event {
            Event::Freed { .. } => drop(existing.remove(number)),
            Event::Touch { content, .. } => {
                let page = existing.entry(*number).or_default();
                *page = (at, content.unwrap_or(page.1));
            }
        }
    }
    let mut in_order: Vec<_> = existing.into_iter().collect();
    in_order.sort_unstable_by_key(|(_, (at, _))| *at);
    let touch = |content| Event::Touch { page: 0, is_write: true, content: Some(content) };
    in_order.into_iter().map(|(number, (_, content))| (number, touch(content))).collect()
}

/// Keeps the order. Returns the new numbers and their count.
fn without_gaps(numbers: impl Iterator<Item = u64>) -> (BTreeMap<u64, u32>, u32) {
    let mut all: BTreeMap<u64, u32> = numbers.map(|number| (number, 0)).collect();
    let (mut next, mut last) = (0, None);
    for (number, new) in &mut all {
        let gap = last.map_or(0, |last: u64| (number - last - 1).min(MAX_GAP_PAGES));
        *new = next + gap as u32;
        (next, last) = (*new + 1, Some(*number));
    }
    (all, next)
}

fn joined(events: impl Iterator<Item = Event>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        if let (Some(Event::Freed { page: first, pages }), Event::Freed { page, .. }) =
            (all.last_mut(), event)
            && *first + *pages == page
        {
            *pages += 1;
            continue;
        }
        all.push(event);
    }
    all
}

const _: () = assert!(UNIT_BYTES * WHOLE as usize == PAGE_SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (usize, usize) = (0, usize::MAX - 1);

    fn of(events: &[Noted], (skip, most): (usize, usize)) -> Recorded {
        let words = events.iter().map(|event| event.to_word());
        let header = [MAGIC, events.len() as u64];
        convert(header.into_iter().chain(words), skip, most).unwrap()
    }

    fn touch(page: u64) -> Noted {
        Noted::Touch { page, access: Access::Write, cpu_ns: 1000 }
    }

    fn touched(page: u32, content: Option<(u8, u8)>) -> Event {
        let content = content.map(|(lz4, zstd)| Content { lz4, zstd });
        Event::Touch { page, is_write: true, content }
    }

    #[test]
    fn touch_records_page_content_at_eviction() {
        let left = Noted::Evicted { page: 900, lz4_bytes: 100, zstd_bytes: 4096 };
        let found = of(&[touch(900), touch(7), left, touch(900), left], ALL);
        let expected = [touched(17, Some((2, 64))), touched(0, None), touched(17, None)];
        assert_eq!((&found.events[..], found.pages, found.cpu_us), (&expected[..], 18, 3));
    }

    #[test]
    fn freed_page_gets_new_number() {
        let freed = Noted::Freed { page: 0, pages: 1000 };
        let filled = Noted::SameFilled { page: 7 };
        let found = of(&[touch(7), touch(8), filled, freed, freed, touch(7)], ALL);
        let expected = [
            touched(0, Some((0, 0))),
            touched(1, None),
            Event::Freed { page: 0, pages: 2 },
            touched(0, None),
        ];
        assert_eq!(found.events, expected);
    }

    #[test]
    fn moved_page_keeps_its_number() {
        let moved = Noted::Moved { page: 7, to: 20 };
        let found = of(&[touch(7), touch(8), moved, touch(20), touch(7)], ALL);
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| match found.events[at] {
            Event::Touch { page, .. } => page,
            Event::Freed { .. } => u32::MAX,
        });
        assert_eq!((a, b, c), (0, 1, 0));
        assert!(d > 1);
    }

    #[test]
    fn part_begins_with_existing_pages() {
        let events = [touch(3), touch(4), touch(5), touch(3), touch(9), touch(4), touch(3)];
        let found = of(&events, (4, 2));
        let none = Some((0, 0));
        let expected = [
            touched(1, none),
            touched(2, none),
            touched(0, none),
            touched(6, None),
            touched(1, None),
        ];
        assert_eq!((found.before, &found.events[..]), (3, &expected[..]));
    }

    #[test]
    fn unknown_magic_is_rejected() {
        assert_eq!(convert([1, 2, 3].into_iter(), 0, 1), None);
        assert_eq!(convert([MAGIC].into_iter(), 0, 1), None);
    }
}
