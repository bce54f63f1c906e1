use super::*;
use proptest::prelude::*;

const PAGES: u64 = 4096;

/// Invariant: growth gaps are free, and each follows a mapping.
fn check_growth_gaps(layout: &Layout) -> Result<(), TestCaseError> {
    for gap in layout.growth_gaps.iter() {
        prop_assert!(!layout.taken.overlaps(gap), "{gap:?} is not free");
        prop_assert!(gap.start > 0 && layout.taken.contains(&(gap.start - 1)), "{gap:?}");
    }
    Ok(())
}

fn max_free(model: &[bool]) -> usize {
    model.split(|taken| *taken).map(<[bool]>::len).max().unwrap_or(0)
}

#[derive(Debug, Clone)]
enum Step {
    Map(u64, u64),
    MapGrowable(u64),
    Grow(u64, u64),
    MapAt(u64, u64),
    Unmap(u64, u64),
}

fn steps() -> impl Strategy<Value = Step> {
    let range = || (0..PAGES, 1..300u64);
    prop_oneof![
        range().prop_map(|(align, count)| Step::Map(1 + align % 7, count)),
        (1..300u64).prop_map(Step::MapGrowable),
        range().prop_map(|(at, count)| Step::Grow(at, count)),
        range().prop_map(|(at, count)| Step::MapAt(at, count)),
        range().prop_map(|(at, count)| Step::Unmap(at, 8 * count)),
    ]
}

fn place_of(
    step: &Step,
    space: &AddressSpace,
    layout: &Layout,
    model: &[bool],
) -> Option<(Range<PageNo>, Range<PageNo>)> {
    match *step {
        Step::Map(align, count) => {
            let found = space.find(layout, count, align)?;
            let outside_gaps = layout.find_outside_growth_gaps(&(0..PAGES), count, align).is_some();
            assert!(
                found.start % align == 0 && !(outside_gaps && layout.growth_gaps.overlaps(&found))
            );
            Some((found, 0..0))
        }
        Step::MapGrowable(count) => {
            let (found, gap) = space.find_growable(layout, count)?;
            assert!(found.start % CHUNK_PAGES == 0 && found.start >= PAGES / 2);
            assert!(found.end == gap.start && !layout.taken.overlaps(&gap));
            Some((found, gap))
        }
        Step::Grow(at, count) => {
            let end = (at..PAGES).find(|page| !model[*page as usize])?;
            let more = end..end + count;
            (end > 0 && space.is_free(layout, &more)).then_some((more, 0..0))
        }
        Step::MapAt(at, count) => Some((at..(at + count).min(PAGES), 0..0)),
        Step::Unmap(..) => None,
    }
}

proptest! {
    #[test]
    fn space_matches_model(steps in prop::collection::vec(steps(), 1..80)) {
        let space = AddressSpace::new(PAGES).unwrap();
        let mut model = vec![false; PAGES as usize];
        let mut layout = space.lock();
        for step in steps {
            if let Step::Unmap(at, count) = step {
                let range = at..(at + count).min(PAGES);
                model[range.start as usize..range.end as usize].fill(false);
                space.close(&range);
                space.remove(&mut layout, range);
            } else if let Some((range, gap)) = place_of(&step, &space, &layout, &model) {
                let slice = &mut model[range.start as usize..range.end as usize];
                prop_assert!(matches!(step, Step::MapAt(..)) || slice.iter().all(|taken| !taken));
                slice.fill(true);
                space.add(&mut layout, range);
                layout.set_growth_gap(gap);
            } else if let Step::Map(1, count) = step {
                prop_assert!(max_free(&model) < count as usize, "{step:?}: a gap is large enough");
            }
            check_growth_gaps(&layout)?;
        }
        for page in 0..PAGES {
            prop_assert_eq!(space.is_mapped(page), model[page as usize]);
        }
        let count = model.iter().filter(|taken| **taken).count();
        prop_assert_eq!(space.mapped_bytes(), count * softswap_sys::PAGE_SIZE);
        space.remove(&mut layout, 0..PAGES);
        prop_assert!(layout.growth_gaps.is_empty());
    }

    #[test]
    fn used_chunks_are_found(
        touched in prop::collection::vec((0..3000u64, any::<bool>()), 0..12),
        from in 0..3000 * CHUNK_PAGES,
        len in 0..3000 * CHUNK_PAGES,
    ) {
        let space = AddressSpace::new(3000 * CHUNK_PAGES).unwrap();
        let mut model = vec![0; 3000];
        for (chunk, resident) in touched {
            space.touch(chunk * CHUNK_PAGES + 7);
            space.add_resident(chunk * CHUNK_PAGES + 7, resident.into());
            model[chunk as usize] = model[chunk as usize].max(1 + i32::from(resident));
        }
        let pages = from..(from + len).min(3000 * CHUNK_PAGES);
        let expected = |least: i32| {
            let mut chunks = from / CHUNK_PAGES..3000;
            let found = chunks.find(|chunk| model[*chunk as usize] >= least);
            found.map_or(pages.end, |chunk| (chunk * CHUNK_PAGES).clamp(from, pages.end))
        };
        prop_assert_eq!(space.next_touched(pages.clone()), expected(1));
        prop_assert_eq!(space.next_resident(pages.clone()), expected(2));
    }
}

/// 1 TiB.
const WINDOW: u64 = 1 << 28;
const GIB: u64 = 1 << 18;

fn map_growable(space: &AddressSpace, count: u64) -> (Range<PageNo>, Range<PageNo>) {
    let mut layout = space.lock();
    let (range, gap) = space.find_growable(&layout, count).unwrap();
    space.add(&mut layout, range.clone());
    layout.set_growth_gap(gap.clone());
    (range, gap)
}

fn unmap(space: &AddressSpace, range: Range<PageNo>) {
    space.close(&range);
    space.remove(&mut space.lock(), range);
}

#[test]
fn growable_range_is_reused_after_unmap() {
    let space = AddressSpace::new(WINDOW).unwrap();
    let (first, gap) = map_growable(&space, 300);
    let (second, _) = map_growable(&space, GIB);
    assert!(gap.end - gap.start >= GIB && second.start >= gap.end);
    assert_eq!(map_growable(&space, 10).0.start, second.end + 7 * GIB);
    unmap(&space, first.clone());
    assert_eq!(map_growable(&space, 20).0, first.start..first.start + 20);
}

#[test]
fn shrunk_mapping_keeps_growth_gap() {
    let space = AddressSpace::new(WINDOW).unwrap();
    let (range, gap) = map_growable(&space, 600);
    unmap(&space, range.start + 100..range.end);
    let (next, _) = map_growable(&space, 100);
    assert_eq!(next.start, gap.end);
    unmap(&space, range.start..range.start + 100);
    assert_eq!(map_growable(&space, 100).0.start, range.start);
}

#[test]
fn growth_gaps_are_used_when_space_is_exhausted() {
    let space = AddressSpace::new(WINDOW).unwrap();
    let mut growth_gaps: Vec<_> = (0..2000).map(|_| map_growable(&space, 512).1).collect();
    assert!(growth_gaps.split_off(512).iter().all(|gap| gap.end - gap.start > GIB / 10));
    let layout = space.lock();
    assert!(
        space.find(&layout, WINDOW / 2, 1).unwrap().start == 0,
        "the lower half has no growth gaps"
    );
    assert!(space.find(&layout, WINDOW / 2 + 1, 1).is_none());
}

#[test]
fn protection_is_recorded_until_range_is_mapped_again() {
    let space = AddressSpace::new(PAGES).unwrap();
    let mut layout = space.lock();
    space.add(&mut layout, 0..10);
    layout.set_protection(2..4, 0);
    assert_eq!(layout.protection(3), 0);
    assert_eq!(layout.protection(4), READ_WRITE);
    assert!(layout.has_protection(&(0..3)));
    space.remove(&mut layout, 0..10);
    assert!(layout.has_protection(&(0..10)));
    space.add(&mut layout, 0..10);
    assert!(!layout.has_protection(&(0..10)));
}

#[test]
fn groups_are_mapped_and_unmapped_in_parts() {
    let space = AddressSpace::new(8 * GROUP_PAGES).unwrap();
    let mut layout = space.lock();
    let bytes = |pages: u64| pages as usize * softswap_sys::PAGE_SIZE;
    let (start, end) = (GROUP_PAGES - 3, 5 * GROUP_PAGES + 7);
    space.add(&mut layout, 2 * GROUP_PAGES + 5..2 * GROUP_PAGES + 9);
    space.add(&mut layout, start..end);
    assert_eq!(space.mapped_bytes(), bytes(end - start));
    assert!(space.is_range_mapped(&(start..end)) && !space.is_range_mapped(&(start - 1..end)));
    assert!(!space.is_mapped(start - 1) && !space.is_mapped(end) && space.is_mapped(end - 1));
    let all = space.segments(&layout, &(0..8 * GROUP_PAGES));
    let kinds = [Kind::Hole, Kind::Managed, Kind::Hole];
    assert_eq!(
        all,
        [0..start, start..end, end..8 * GROUP_PAGES].into_iter().zip(kinds).collect::<Vec<_>>()
    );
    // A hole in the middle of a whole group, then the rest of it, then a whole group.
    let hole = 3 * GROUP_PAGES + 70..3 * GROUP_PAGES + 131;
    space.close(&hole);
    for page in [hole.start - 1, hole.end, 3 * GROUP_PAGES, 4 * GROUP_PAGES - 1] {
        assert!(space.is_mapped(page), "{page}");
    }
    assert!(!space.is_any_mapped(&hole));
    assert_eq!(space.mapped_bytes(), bytes(end - start - 61));
    space.close(&(3 * GROUP_PAGES..5 * GROUP_PAGES));
    assert!(!space.is_any_mapped(&(3 * GROUP_PAGES..5 * GROUP_PAGES)));
    assert_eq!(space.mapped_bytes(), bytes(end - start - 2 * GROUP_PAGES));
    // Pages mapped before a group became whole are not mapped again.
    space.close(&(0..8 * GROUP_PAGES));
    assert!(!space.is_any_mapped(&(0..8 * GROUP_PAGES)));
    assert_eq!(space.mapped_bytes(), 0);
    // A touched group stays touched.
    space.touch(2 * GROUP_PAGES + 1);
    space.add(&mut layout, 2 * GROUP_PAGES..3 * GROUP_PAGES);
    assert_eq!(space.next_touched(0..8 * GROUP_PAGES), 2 * GROUP_PAGES);
}
