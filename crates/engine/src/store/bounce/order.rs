//! The order in which the areas of all pools are searched: the own area of every pool, then the
//! next area of every pool.
//!
//! ```text
//!            area 0   area 1   area 2   area 3
//!   pool 0     A        B        C        D        searched: A E G  B F  C  D
//!   pool 1     E        F
//!   pool 2     G
//! ```
//!
//! This is the order for CPU 0. For CPU 1 each row begins with its own area, `B`. If all areas of a
//! pool were searched first, each CPU would visit areas that other CPUs use while its own areas in
//! later pools are free. Source: the change "swiotlb: reduce area lock contention for non-primary
//! IO TLB pools" to Linux.

#[inline]
fn pools_in(open: u32) -> impl Iterator<Item = usize> {
    let mut rest = open;
    std::iter::from_fn(move || {
        let next = (rest != 0).then(|| rest.trailing_zeros() as usize);
        rest &= rest.wrapping_sub(1);
        next
    })
}

/// Returns each area of the open pools once, as (pool, area). `areas_of` returns powers of two.
/// Pool 0 is open and has the most areas.
#[inline]
pub(super) fn area_first(
    start: usize,
    open: u32,
    areas_of: impl Fn(usize) -> usize + Copy,
) -> impl Iterator<Item = (usize, usize)> {
    (0..areas_of(0)).flat_map(move |distance| {
        pools_in(open)
            .filter(move |pool| distance < areas_of(*pool))
            .map(move |pool| (pool, start.wrapping_add(distance) & (areas_of(pool) - 1)))
    })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn documented_example_is_correct() {
        let areas_of = |pool: usize| [4, 2, 1][pool];
        let named = |(pool, area): (usize, usize)| ["ABCD", "EF", "G"][pool].as_bytes()[area];
        let text = |order: Vec<(usize, usize)>| {
            String::from_utf8(order.into_iter().map(named).collect()).unwrap()
        };
        assert_eq!(text(area_first(0, 0b111, areas_of).collect()), "AEGBFCD");
        assert_eq!(text(area_first(1, 0b111, areas_of).collect()), "BFGCEDA");
        assert_eq!(text(area_first(1, 0b101, areas_of).collect()), "BGCDA");
    }

    proptest! {
        #[test]
        fn every_area_is_visited_once_in_order(
            start: usize,
            shapes in prop::collection::vec(0..6_u32, 1..8),
            closed: u32,
        ) {
            let most = shapes[0];
            let areas = |pool: usize| 1_usize << shapes[pool].min(most);
            let open = (!closed | 1) & ((1 << shapes.len()) - 1);
            let all = (0..shapes.len())
                .filter(|pool| open >> pool & 1 == 1)
                .flat_map(|pool| (0..areas(pool)).map(move |distance| (distance, pool)));
            let all: BTreeSet<_> = all.collect();
            let area = |(distance, pool)| (pool, start.wrapping_add(distance) % areas(pool));
            let expected: Vec<_> = all.into_iter().map(area).collect();
            prop_assert_eq!(area_first(start, open, areas).collect::<Vec<_>>(), expected);
        }
    }
}
