//! In which order the areas of all pools are searched.
//!
//! ```text
//!            area 0   area 1   area 2   area 3
//!   pool 0     A        B        C        D        pool first: A B C D  E F  G
//!   pool 1     E        F                          area first: A E G  B F  C  D
//!   pool 2     G
//! ```
//!
//! That is for CPU 0; for CPU 1 each row begins with its own area, `B`. Pool
//! first looks into what other CPUs are busy with while its own column still
//! has room further down, so all CPUs meet in the first pool with a gap. The
//! published source of area first is the change "swiotlb: reduce area lock
//! contention for non-primary IO TLB pools" to Linux.

/// The order of a search.
///
/// ```
/// use softswap_engine::store::bounce::{Order, Pools, Shape};
/// let shape = Shape { areas: 2, slots_per_area: 64, reserve_slots: 0, extra_bytes: 0 };
/// assert!(Pools::in_order(shape, Order::AreaFirst).unwrap().take(1, 1).is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The own area of every pool, then the next area of every pool.
    AreaFirst,
    /// All areas of a pool, then the next pool: only for comparison.
    PoolFirst,
}

/// The pools in `open`, a bit each.
#[inline]
fn pools_in(open: u32) -> impl Iterator<Item = usize> {
    let mut rest = open;
    std::iter::from_fn(move || {
        let next = (rest != 0).then(|| rest.trailing_zeros() as usize);
        rest &= rest.wrapping_sub(1);
        next
    })
}

/// Each area of the open pools once, as (pool, area), in order
/// [`Order::AreaFirst`] from that of `start` on. `areas_of` is how many a pool
/// has: a power of two, and in no pool more than in pool 0, which is open.
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

/// As [`area_first`], in order [`Order::PoolFirst`].
#[inline]
pub(super) fn pool_first(
    start: usize,
    open: u32,
    areas_of: impl Fn(usize) -> usize + Copy,
) -> impl Iterator<Item = (usize, usize)> {
    pools_in(open).flat_map(move |pool| {
        let areas = areas_of(pool);
        (0..areas).map(move |distance| (pool, start.wrapping_add(distance) & (areas - 1)))
    })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_picture_is_true() {
        let areas_of = |pool: usize| [4, 2, 1][pool];
        let named = |(pool, area): (usize, usize)| ["ABCD", "EF", "G"][pool].as_bytes()[area];
        let text = |order: Vec<(usize, usize)>| {
            String::from_utf8(order.into_iter().map(named).collect()).unwrap()
        };
        assert_eq!(text(area_first(0, 0b111, areas_of).collect()), "AEGBFCD");
        assert_eq!(text(pool_first(0, 0b111, areas_of).collect()), "ABCDEFG");
        assert_eq!(text(area_first(1, 0b111, areas_of).collect()), "BFGCEDA");
        assert_eq!(text(pool_first(1, 0b111, areas_of).collect()), "BCDAFEG");
        assert_eq!(text(area_first(1, 0b101, areas_of).collect()), "BGCDA");
    }

    proptest! {
        /// The definition: sorted by distance from the start, then by pool, or
        /// the other way round; areas at a distance that a pool has not got
        /// are not there.
        #[test]
        fn every_area_comes_once_and_in_its_turn(
            start: usize,
            shapes in prop::collection::vec(0..6_u32, 1..8),
            closed: u32,
        ) {
            let most = shapes[0];
            let areas = |pool: usize| 1_usize << shapes[pool].min(most);
            let open = (!closed | 1) & ((1 << shapes.len()) - 1);
            let in_turn = |by_area: bool| {
                let all = (0..shapes.len())
                    .filter(|pool| open >> pool & 1 == 1)
                    .flat_map(|pool| (0..areas(pool)).map(move |distance| (distance, pool)));
                let mut all: Vec<_> = all.collect();
                all.sort_by_key(|(distance, pool)| {
                    if by_area { (*distance, *pool) } else { (*pool, *distance) }
                });
                let area = |(distance, pool)| (pool, start.wrapping_add(distance) % areas(pool));
                all.into_iter().map(area).collect::<Vec<_>>()
            };
            let found: Vec<_> = area_first(start, open, areas).collect();
            prop_assert_eq!(&found, &in_turn(true));
            let once: BTreeSet<_> = found.iter().collect();
            prop_assert_eq!(once.len(), found.len());
            prop_assert_eq!(pool_first(start, open, areas).collect::<Vec<_>>(), in_turn(false));
        }
    }
}
