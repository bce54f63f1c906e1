//! What many cells say together, and how sure that is.

use crate::measure::noise::{below, noise};
use crate::measure::sample::{geometric_mean, median};

/// Of so many drawings the interval is taken.
const DRAWINGS: usize = 2000;
/// Of the drawings, those below the interval, and those above it.
const TAIL: f64 = 0.025;
/// The same figures have the same interval.
const SEED: u64 = 17;

/// Geometric mean, over the cells, of the medians of each one's pairs.
pub(super) fn mean_of_medians(cells: &[Vec<f64>]) -> f64 {
    geometric_mean(cells.iter().map(|pairs| median(pairs.clone())))
}

/// The bootstrap's 95 % interval of that: as many pairs of each cell are drawn as there
/// are, with replacement.
pub(super) fn interval(cells: &[Vec<f64>]) -> [f64; 2] {
    let mut numbers = noise(SEED);
    let mut draw = |pairs: &Vec<f64>| -> Vec<f64> {
        let drawn = numbers.by_ref().take(pairs.len());
        drawn.map(|number| pairs[below(number, pairs.len() as u64) as usize]).collect()
    };
    let means =
        (0..DRAWINGS).map(|_| mean_of_medians(&cells.iter().map(&mut draw).collect::<Vec<_>>()));
    let mut means: Vec<f64> = means.collect();
    means.sort_by(f64::total_cmp);
    [TAIL, 1.0 - TAIL].map(|share| means[(DRAWINGS as f64 * share) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_weighs_twice_and_half_alike() {
        let cells = [vec![2.0, 2.0, 9.0], vec![0.5, 0.1, 0.5]];
        assert!((mean_of_medians(&cells) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn pairs_that_all_say_the_same_leave_no_doubt() {
        assert_eq!(interval(&[vec![1.25; 9]]).map(|end| (end * 1e9).round()), [1.25e9; 2]);
    }

    #[test]
    fn an_interval_holds_the_mean_and_is_the_same_each_time() {
        let cell = |seed| -> Vec<f64> {
            noise(seed).take(9).map(|number| 1.0 + below(number, 1000) as f64 / 1e4).collect()
        };
        let cells: Vec<_> = (1..6).map(cell).collect();
        let ([low, high], mean) = (interval(&cells), mean_of_medians(&cells));
        assert!(1.0 < low && low < mean && mean < high && high < 1.1, "{low} {mean} {high}");
        assert_eq!(interval(&cells), [low, high]);
        let wide = interval(&cells[..1]);
        assert!(wide[1] - wide[0] > high - low, "more cells are no surer: {wide:?}");
    }

    #[test]
    fn the_interval_leaves_out_the_drawings_at_both_ends() {
        // The median of one pair of two is either, or half-way: a quarter, a quarter, a half.
        assert_eq!(interval(&[vec![1.0, 3.0]]).map(f64::round), [1.0, 3.0]);
        // One of 21 pairs is far out; the median does not follow it.
        let mut pairs = vec![1.0; 20];
        pairs.push(100.0);
        assert_eq!(interval(&[pairs]).map(f64::round), [1.0, 1.0]);
    }
}
