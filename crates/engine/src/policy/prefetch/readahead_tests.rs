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

fn window(marker: PageNo, pages: usize, stride: Stride) -> Window {
    Window { marker, pages, stride }
}

/// Returns the request that contains the window's marker.
fn nearest(window: Window) -> Option<ReadRequest> {
    window.requests().next()
}

fn all(streams: &Readahead) -> Vec<ReadRequest> {
    std::iter::from_fn(|| streams.take()).collect()
}

#[test]
fn the_window_grows_with_the_stream_and_is_one_for_a_random_touch() {
    let pages = table(&[RESIDENT, Place::Vacant, RESIDENT, RESIDENT, RESIDENT]);
    let few = || (4, 1000);
    assert_eq!(neighbours(&pages, 0, few), 1);
    assert_eq!(neighbours(&pages, 2, few), 1);
    assert_eq!(neighbours(&pages, 5, few), 4);
    let pages = table(&[RESIDENT; 100]);
    assert_eq!(neighbours(&pages, 100, || (100, 1000)), MAX_NEIGHBOURS);
}

#[test]
fn the_more_pages_are_resident_the_longer_a_run_must_be_to_tell_something() {
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
fn only_what_is_in_the_swap_area_and_nobody_has_is_claimed() {
    let pages = table(&[
        RESIDENT,
        Place::Slot { slot: 11, is_incompressible: true },
        Place::Pool { handle: 12 },
        Place::Packed { slot: 13, part: 2 },
    ]);
    let found: Vec<_> = (0..5).map(|page| claim_stored(&pages, page)).collect();
    let stored = |page: usize| found[page].as_ref().map(|(copy, _)| (copy.slot(), copy.part()));
    assert_eq!([0, 1, 2].map(stored), [None, Some((11, None)), None]);
    assert_eq!([3, 4].map(stored), [Some((13, Some(2))), None]);
    assert!(claim_stored(&pages, 1).is_none() && pages.load(1).is_busy());
    drop(found);
    assert!(!pages.load(1).is_busy(), "a dropped claim leaves the page where it was");
}

/// A fault on an absent page that is brought in alone.
fn fault(streams: &Readahead, page: PageNo, end: PageNo) -> Touch {
    fault_among(streams, page, &Ahead { end, is_there: |_| false })
}

fn fault_among(streams: &Readahead, page: PageNo, ahead: &Ahead<impl Fn(PageNo) -> bool>) -> Touch {
    let touch = streams.reach(page);
    if streams.go_on(touch, ahead).is_none() {
        streams.expect(page, touch, ahead);
    }
    touch
}

const NOTHING_THERE: Ahead<fn(PageNo) -> bool> = Ahead { end: END, is_there: |_| false };
const NOTHING_THERE_FAR: Ahead<fn(PageNo) -> bool> = Ahead { end: 1 << 28, is_there: |_| false };

#[test]
fn a_stream_is_followed_over_pages_that_are_there() {
    for step in [UP, DOWN] {
        let streams = served();
        // Every second page is resident, and so are those at which windows would begin.
        let is_there = |page: PageNo| page % 2 == 1 || (513..520).contains(&page);
        let ahead = Ahead { end: END, is_there };
        let touched = (0..100).map(|at| 500_u64.wrapping_add_signed(step * at));
        let mut asked = Vec::new();
        for page in touched.filter(|page| !is_there(*page)) {
            fault_among(&streams, page, &ahead);
            asked.extend(all(&streams).iter().map(|request| request.marker().unwrap_or(0)));
        }
        assert!(asked.len() >= 4 && asked.iter().all(|page| !is_there(*page)), "{asked:?}");
        assert_eq!(asked[0], 500_u64.wrapping_add_signed(6 * step), "{step}");
    }
}

#[test]
fn where_nothing_is_missing_for_long_nothing_is_asked_for() {
    let streams = served();
    let ahead = Ahead { end: END, is_there: |page| page > 502 };
    for page in 500..503 {
        fault_among(&streams, page, &ahead);
    }
    assert_eq!(streams.take(), None);
}

#[test]
fn a_stream_is_followed_up_and_down_and_each_marker_doubles_the_window() {
    for step in [UP, DOWN] {
        let streams = served();
        assert_eq!(fault(&streams, 500, END), Touch::Alone);
        assert_ne!(fault(&streams, 500_u64.wrapping_add_signed(step), END), Touch::Alone);
        assert_eq!(streams.take(), None, "two faults are no stream");
        assert_ne!(fault(&streams, 500_u64.wrapping_add_signed(2 * step), END), Touch::Alone);
        let marker = 500_u64.wrapping_add_signed(3 * step);
        let mut expected = window(marker, FIRST_WINDOW, step);
        for round in 0..4 {
            assert_eq!(all(&streams), expected.requests().collect::<Vec<_>>(), "round {round}");
            assert_eq!(fault(&streams, expected.marker, END), Touch::Marker(expected));
            assert_eq!(streams.reach(expected.marker), Touch::Early, "reached once");
            let marker = expected.onward(expected.pages as u64).unwrap();
            expected = window(marker, 2 * expected.pages, step);
        }
    }
}

#[test]
fn a_stream_whose_pages_lie_apart_is_followed_from_its_fifth_fault_on() {
    for stride in [20, -20, 2, -500] {
        let streams = served();
        let ahead = Ahead { end: 1 << 20, is_there: |_| false };
        let at = |step: i64| 100_000_u64.checked_add_signed(stride * step).unwrap();
        for step in 0..4 {
            assert_eq!(fault_among(&streams, at(step), &ahead), Touch::Alone, "{stride}");
        }
        assert_eq!(streams.take(), None, "four faults are no stream");
        assert_ne!(fault_among(&streams, at(4), &ahead), Touch::Alone, "{stride}");
        let mut expected = window(at(5), FIRST_WINDOW, stride);
        for round in 0..4 {
            assert_eq!(all(&streams), expected.requests().collect::<Vec<_>>(), "round {round}");
            let touch = fault_among(&streams, expected.marker, &ahead);
            assert_eq!(touch, Touch::Marker(expected));
            let marker = expected.onward(expected.pages as u64).unwrap();
            expected = window(marker, 2 * expected.pages, stride);
        }
    }
}

#[test]
fn a_touch_before_its_page_has_come_begins_no_other_stream() {
    let streams = served();
    for page in 500..503 {
        fault(&streams, page, END);
    }
    assert_ne!(fault(&streams, 503, END), Touch::Alone, "the marker of a window of 8");
    let asked = all(&streams);
    // None of the window has arrived yet.
    for page in 504..511 {
        assert_eq!(fault(&streams, page, END), Touch::Early, "{page}");
    }
    assert_eq!(all(&streams), []);
    assert_eq!(streams.reach(511), Touch::Marker(window(511, 16, UP)), "{asked:?}");
    (0..ARRIVAL_FAULTS).for_each(|_| assert_eq!(streams.reach(700), Touch::Alone));
    assert_eq!(streams.reach(505), Touch::Alone, "by now it is on its own");
}

#[test]
fn windows_that_nothing_comes_of_make_the_next_ones_shorter() {
    let streams = served();
    let reach = |index: u64| {
        streams.go_on(Touch::Marker(window(index * 1000, 64, UP)), &NOTHING_THERE_FAR);
        all(&streams).iter().map(|request| request.range().count()).sum::<usize>()
    };
    assert_eq!(reach(1), 128);
    // Each leaves a marker that is never touched and expires.
    let shorter = (2..200).map(|index| {
        (0..LIFE_FAULTS).for_each(|_| assert_eq!(streams.reach(7), Touch::Alone));
        reach(index)
    });
    let shorter: Vec<_> = shorter.collect();
    assert!(shorter.is_sorted_by(|a, b| a >= b), "{shorter:?}");
    assert!(shorter.last().is_some_and(|pages| *pages < 64), "{shorter:?}");
}

#[test]
fn a_stream_ends_with_the_first_page_or_the_last() {
    let streams = served();
    for page in [2, 1, 0] {
        fault(&streams, page, END);
    }
    assert_eq!(streams.take(), None, "nothing lies before the first page");
    for page in [END - 3, END - 2, END - 1] {
        fault(&streams, page, END);
    }
    assert_eq!(streams.take(), None, "nothing lies beyond the end");
}

#[test]
fn a_window_is_never_longer_than_the_budget_allows() {
    let streams = Readahead::new(20 * BUDGET_SHARE, Without::default());
    streams.serve(true);
    let mut touched = window(50, 8, UP);
    let mut lengths = Vec::new();
    for _ in 0..4 {
        streams.go_on(Touch::Marker(touched), &NOTHING_THERE);
        let asked: usize = all(&streams).iter().map(|request| request.range().count()).sum();
        lengths.push(asked);
        touched = window(touched.marker + touched.pages as u64, asked, UP);
        streams.reach(touched.marker);
    }
    assert_eq!(lengths, [16, 20, 20, 20]);
}

#[test]
fn streams_side_by_side_have_shorter_windows() {
    let streams = Readahead::new(64 * ALL_SHARE, Without::default());
    streams.serve(true);
    let mut longest = |index: u64| {
        streams.go_on(Touch::Marker(window(index * 100, 64, UP)), &NOTHING_THERE_FAR);
        all(&streams).iter().map(|request| request.range().count()).sum::<usize>()
    };
    let lengths: Vec<_> = (0..12).map(&mut longest).collect();
    assert_eq!(lengths, [32, 32, 21, 16, 12, 10, 9, 8, 8, 8, 8, 8]);
    (0..LIFE_FAULTS).for_each(|_| assert_eq!(streams.reach(7), Touch::Alone));
    assert_eq!(longest(12), 32, "those that have ended do not count");
}

#[test]
fn a_marker_reached_after_many_other_faults_is_a_page_like_any_other() {
    for (between, is_marker) in [(LIFE_FAULTS - 6, true), (LIFE_FAULTS + 5, false)] {
        let streams = served();
        fault(&streams, 500, END);
        fault(&streams, 501, END);
        fault(&streams, 502, END);
        // These faults set no markers.
        (0..between).for_each(|_| assert_eq!(streams.reach(700), Touch::Alone));
        assert_eq!(streams.reach(503) != Touch::Alone, is_marker, "{between}");
    }
}

#[test]
fn what_is_no_stream_is_not_followed_nor_is_any_when_nobody_serves() {
    let streams = served();
    for page in [10, 60, 30, 32, 900, 61, 31, 33, 62] {
        fault(&streams, page, END);
        let asked = streams.take();
        assert_eq!(asked.is_some(), page == 62, "62 comes after 60 and 61");
    }
    streams.serve(false);
    for page in 100..110 {
        assert_eq!(fault(&streams, page, END), Touch::Alone);
    }
    assert_eq!(streams.take(), None);
}

#[test]
fn no_page_comes_along_that_is_a_marker_yet_to_be_reached() {
    let streams = served();
    for page in 500..503 {
        fault(&streams, page, END);
    }
    assert_eq!(streams.up_to_marker(490, 32), 13);
    assert_eq!(streams.up_to_marker(490, 10), 10);
    assert_eq!(streams.up_to_marker(503, 32), 32, "it is the touched page itself");
    streams.reach(503);
    assert_eq!(streams.up_to_marker(490, 32), 32);
}

#[test]
fn a_full_queue_asks_for_no_more_and_what_is_in_it_comes_in_turn() {
    // The queue holds four requests.
    let streams = Readahead::new(4 * REQUEST_PAGES * QUEUE_SHARE, Without::default());
    streams.serve(true);
    let at = |index: u64| window(index * 8, 8, UP);
    for index in 0..9 {
        streams.go_on(Touch::Marker(at(index)), &NOTHING_THERE);
    }
    let asked = all(&streams);
    let expected = (1..5).map(|index| nearest(window(index * 8, 16, UP)).unwrap());
    assert_eq!(asked, expected.collect::<Vec<_>>());
    assert_ne!(streams.reach(4 * 8), Touch::Alone);
    assert_eq!(streams.reach(5 * 8), Touch::Early, "what was not asked for has no marker");
}
