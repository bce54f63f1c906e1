use super::*;
use crate::base::page::Place;
use softswap_sys::memory::reserve_u64;

fn table(places: &[Place]) -> PageTable<'static> {
    let pages = PageTable::new(reserve_u64(places.len() + 64).unwrap());
    for (page, place) in (0..).zip(places) {
        pages.claim(page).publish(*place);
    }
    pages
}

const RESIDENT: Place = Place::resident(1);
const END: PageNo = 1000;

fn served() -> Readahead {
    let streams = Readahead::new(1 << 20, Without::default());
    streams.serve(true);
    streams
}

fn window(marker: PageNo, pages: usize, stride: Stride) -> ReadaheadWindow {
    ReadaheadWindow { marker, pages, stride }
}

fn nearest(window: ReadaheadWindow) -> Option<ReadRequest> {
    window.requests().next()
}

fn all(streams: &Readahead) -> Vec<ReadRequest> {
    std::iter::from_fn(|| streams.take()).collect()
}

#[test]
fn window_grows_with_stream() {
    let pages = table(&[RESIDENT, Place::Vacant, RESIDENT, RESIDENT, RESIDENT]);
    let few = || (4, 1000);
    assert_eq!(neighbours(&pages, 0, few), 1);
    assert_eq!(neighbours(&pages, 2, few), 1);
    assert_eq!(neighbours(&pages, 5, few), 4);
    let pages = table(&[RESIDENT; 100]);
    assert_eq!(neighbours(&pages, 100, || (100, 1000)), MAX_NEIGHBOURS);
}

#[test]
fn required_run_length_grows_with_resident_share() {
    let pages = table(&[RESIDENT; 100]);
    let least = |resident| {
        let window = |page| neighbours(&pages, page, || (resident, 1000));
        (0..40).find(|page| window(*page) > 1)
    };
    assert_eq!(least(50), Some(1));
    assert_eq!(least(200), Some(2));
    assert_eq!(least(500), Some(4));
    assert_eq!(least(750), Some(10));
    assert_eq!(least(1000), Some(MAX_NEIGHBOURS as u64 - 1));
    assert_eq!(neighbours(&pages, 20, || (10, 0)), 1);
}

#[test]
fn only_unclaimed_slot_pages_are_claimed() {
    let pages = table(&[
        RESIDENT,
        Place::Slot { slot: 11, is_incompressible: true },
        Place::Pool { handle: 12 },
        Place::CompressedSlot { slot: 13, part: 2 },
    ]);
    let found: Vec<_> = (0..5).map(|page| claim_stored(&pages, page)).collect();
    let stored = |page: usize| found[page].as_ref().map(|(copy, _)| (copy.slot(), copy.part()));
    assert_eq!([0, 1, 2].map(stored), [None, Some((11, None)), None]);
    assert_eq!([3, 4].map(stored), [Some((13, Some(2))), None]);
    assert!(claim_stored(&pages, 1).is_none() && pages.load(1).is_busy());
    drop(found);
    assert!(!pages.load(1).is_busy(), "a dropped claim leaves the entry unchanged");
}

fn fault(streams: &Readahead, page: PageNo, end: PageNo) -> Touch {
    fault_among(streams, page, &Ahead { end, is_there: |_| false })
}

fn fault_among(streams: &Readahead, page: PageNo, ahead: &Ahead<impl Fn(PageNo) -> bool>) -> Touch {
    let touch = streams.reach(page);
    if streams.next_window(touch, ahead).is_none() {
        streams.expect(page, touch, ahead);
    }
    touch
}

const NO_RESIDENT_AHEAD: Ahead<fn(PageNo) -> bool> = Ahead { end: END, is_there: |_| false };
const NO_RESIDENT_FAR_AHEAD: Ahead<fn(PageNo) -> bool> =
    Ahead { end: 1 << 28, is_there: |_| false };

#[test]
fn stream_skips_resident_pages() {
    for step in [UP, DOWN] {
        let streams = served();
        // Every second page is resident, and so are those at which windows would begin.
        let is_there = |page: PageNo| page % 2 == 1 || (513..520).contains(&page);
        let ahead = Ahead { end: END, is_there };
        let touched = (0..100).map(|at| 500_u64.wrapping_add_signed(step * at));
        let mut request_count = Vec::new();
        for page in touched.filter(|page| !is_there(*page)) {
            fault_among(&streams, page, &ahead);
            request_count.extend(all(&streams).iter().map(|request| request.marker().unwrap_or(0)));
        }
        assert!(
            request_count.len() >= 4 && request_count.iter().all(|page| !is_there(*page)),
            "{request_count:?}"
        );
        assert_eq!(request_count[0], 500_u64.wrapping_add_signed(6 * step), "{step}");
    }
}

#[test]
fn long_resident_run_requests_nothing() {
    let streams = served();
    let ahead = Ahead { end: END, is_there: |page| page > 502 };
    for page in 500..503 {
        fault_among(&streams, page, &ahead);
    }
    assert_eq!(streams.take(), None);
}

#[test]
fn markers_double_window_in_both_directions() {
    for step in [UP, DOWN] {
        let streams = served();
        assert_eq!(fault(&streams, 500, END), Touch::Isolated);
        assert_ne!(fault(&streams, 500_u64.wrapping_add_signed(step), END), Touch::Isolated);
        assert_eq!(streams.take(), None, "two faults are no stream");
        assert_ne!(fault(&streams, 500_u64.wrapping_add_signed(2 * step), END), Touch::Isolated);
        let marker = 500_u64.wrapping_add_signed(3 * step);
        let mut expected = window(marker, FIRST_WINDOW, step);
        for round in 0..4 {
            assert_eq!(all(&streams), expected.requests().collect::<Vec<_>>(), "round {round}");
            assert_eq!(fault(&streams, expected.marker, END), Touch::Marker(expected));
            assert_eq!(streams.reach(expected.marker), Touch::Early, "reached once");
            let marker = expected.page_after(expected.pages as u64).unwrap();
            expected = window(marker, 2 * expected.pages, step);
        }
    }
}

#[test]
fn strided_stream_is_followed_from_fifth_fault() {
    for stride in [20, -20, 2, -500] {
        let streams = served();
        let ahead = Ahead { end: 1 << 20, is_there: |_| false };
        let at = |step: i64| 100_000_u64.checked_add_signed(stride * step).unwrap();
        for step in 0..4 {
            assert_eq!(fault_among(&streams, at(step), &ahead), Touch::Isolated, "{stride}");
        }
        assert_eq!(streams.take(), None, "four faults are no stream");
        assert_ne!(fault_among(&streams, at(4), &ahead), Touch::Isolated, "{stride}");
        let mut expected = window(at(5), FIRST_WINDOW, stride);
        for round in 0..4 {
            assert_eq!(all(&streams), expected.requests().collect::<Vec<_>>(), "round {round}");
            let touch = fault_among(&streams, expected.marker, &ahead);
            assert_eq!(touch, Touch::Marker(expected));
            let marker = expected.page_after(expected.pages as u64).unwrap();
            expected = window(marker, 2 * expected.pages, stride);
        }
    }
}

#[test]
fn touch_of_pending_page_starts_no_stream() {
    let streams = served();
    for page in 500..503 {
        fault(&streams, page, END);
    }
    assert_ne!(fault(&streams, 503, END), Touch::Isolated, "the marker of a window of 8");
    let request_count = all(&streams);
    // None of the window has arrived yet.
    for page in 504..511 {
        assert_eq!(fault(&streams, page, END), Touch::Early, "{page}");
    }
    assert_eq!(all(&streams), []);
    assert_eq!(streams.reach(511), Touch::Marker(window(511, 16, UP)), "{request_count:?}");
    (0..ARRIVAL_FAULTS).for_each(|_| assert_eq!(streams.reach(700), Touch::Isolated));
    assert_eq!(streams.reach(505), Touch::Isolated, "its window is no longer being read");
}

#[test]
fn stream_ends_at_address_bounds() {
    let streams = served();
    for page in [2, 1, 0] {
        fault(&streams, page, END);
    }
    assert_eq!(streams.take(), None, "no page precedes the first one");
    for page in [END - 3, END - 2, END - 1] {
        fault(&streams, page, END);
    }
    assert_eq!(streams.take(), None, "no page follows the last one");
}

#[test]
fn window_size_is_bounded_by_budget() {
    let streams = Readahead::new(20 * BUDGET_SHARE, Without::default());
    streams.serve(true);
    let mut touched = window(50, 8, UP);
    let mut lengths = Vec::new();
    for _ in 0..4 {
        streams.next_window(Touch::Marker(touched), &NO_RESIDENT_AHEAD);
        let request_count: usize =
            all(&streams).iter().map(|request| request.range().count()).sum();
        lengths.push(request_count);
        touched = window(touched.marker + touched.pages as u64, request_count, UP);
        streams.reach(touched.marker);
    }
    assert_eq!(lengths, [16, 20, 20, 20]);
}

#[test]
fn concurrent_streams_have_smaller_windows() {
    let streams = Readahead::new(64 * ALL_SHARE, Without::default());
    streams.serve(true);
    let mut longest = |index: u64| {
        streams.next_window(Touch::Marker(window(index * 100, 64, UP)), &NO_RESIDENT_FAR_AHEAD);
        all(&streams).iter().map(|request| request.range().count()).sum::<usize>()
    };
    let lengths: Vec<_> = (0..12).map(&mut longest).collect();
    assert_eq!(lengths, [32, 32, 21, 16, 12, 10, 9, 8, 8, 8, 8, 8]);
    (0..LIFE_FAULTS).for_each(|_| assert_eq!(streams.reach(7), Touch::Isolated));
    assert_eq!(longest(12), 32, "expired streams do not count");
}

#[test]
fn stale_marker_is_ignored() {
    for (between, is_marker) in [(LIFE_FAULTS - 6, true), (LIFE_FAULTS + 5, false)] {
        let streams = served();
        fault(&streams, 500, END);
        fault(&streams, 501, END);
        fault(&streams, 502, END);
        (0..between).for_each(|_| assert_eq!(streams.reach(700), Touch::Isolated));
        assert_eq!(streams.reach(503) != Touch::Isolated, is_marker, "{between}");
    }
}

#[test]
fn random_touches_and_unserved_streams_are_not_followed() {
    let streams = served();
    for page in [10, 60, 30, 32, 900, 61, 31, 33, 62] {
        fault(&streams, page, END);
        let request_count = streams.take();
        assert_eq!(request_count.is_some(), page == 62, "62 comes after 60 and 61");
    }
    streams.serve(false);
    for page in 100..110 {
        assert_eq!(fault(&streams, page, END), Touch::Isolated);
    }
    assert_eq!(streams.take(), None);
}

#[test]
fn pending_markers_are_not_prefetched() {
    let streams = served();
    for page in 500..503 {
        fault(&streams, page, END);
    }
    assert_eq!(streams.up_to_marker(490, 32), 13);
    assert_eq!(streams.up_to_marker(490, 10), 10);
    assert_eq!(streams.up_to_marker(503, 32), 32, "the touched page itself is no limit");
    streams.reach(503);
    assert_eq!(streams.up_to_marker(490, 32), 32);
}

#[test]
fn full_queue_rejects_and_serves_in_order() {
    // The queue holds four requests.
    let streams = Readahead::new(4 * REQUEST_PAGES * QUEUE_SHARE, Without::default());
    streams.serve(true);
    let at = |index: u64| window(index * 8, 8, UP);
    for index in 0..9 {
        streams.next_window(Touch::Marker(at(index)), &NO_RESIDENT_AHEAD);
    }
    let request_count = all(&streams);
    let expected = (1..5).map(|index| nearest(window(index * 8, 16, UP)).unwrap());
    assert_eq!(request_count, expected.collect::<Vec<_>>());
    assert_ne!(streams.reach(4 * 8), Touch::Isolated);
    assert_eq!(streams.reach(5 * 8), Touch::Early, "a dropped request sets no marker");
}
