//! Figures of variants by round, and JSON objects of them.

use serde_json::{Map, Value};
use softswap_cli::refusal::Refusal;

/// Keeps the order of keys in JSON and tables.
pub(crate) type Object = Map<String, Value>;

/// Builds a JSON object with the syntax of struct fields: `object! { variant, us: figure / 1e3 }`.
macro_rules! object {
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($($name:ident $(: $value:expr)?),* $(,)?) => {
        $crate::measure::sample::Object::from_iter([
            $((stringify!($name).to_string(), serde_json::json!(object!(@value $name $($value)?)))),*
        ])
    };
}
pub(crate) use object;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Round {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) count: usize,
}

impl Round {
    /// Sorts the latencies in place.
    pub(crate) fn of(latencies_ns: &mut [u64]) -> Round {
        latencies_ns.sort_unstable();
        let count = latencies_ns.len();
        let at = |share: f64| {
            let rank = (count as f64 * share) as usize;
            latencies_ns.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
        };
        Round { p50_us: at(0.5), p99_us: at(0.99), count }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cell<K, R> {
    pub(crate) key: K,
    pub(crate) rounds: Vec<R>,
}

impl<K, R> Cell<K, R> {
    pub(crate) fn new(key: K) -> Cell<K, R> {
        Cell { key, rounds: Vec::new() }
    }

    pub(crate) fn of(&self, figure: impl Fn(&R) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    pub(crate) fn median(&self, figure: impl Fn(&R) -> f64) -> f64 {
        median(self.of(figure))
    }

    pub(crate) fn cov(&self, figure: impl Fn(&R) -> f64) -> f64 {
        variation(&self.of(figure))
    }

    pub(crate) fn ratio_to(&self, other: &Cell<K, R>, figure: impl Fn(&R) -> f64) -> f64 {
        ratio_to(&self.of(&figure), &other.of(&figure))
    }
}

/// Runs all variants in each round.
pub(crate) fn take_turns<K, R>(
    keys: impl IntoIterator<Item = K>,
    rounds: u32,
    mut run: impl FnMut(&K, usize) -> Result<R, Refusal>,
) -> Result<Vec<Cell<K, R>>, Refusal> {
    let mut cells: Vec<_> = keys.into_iter().map(Cell::new).collect();
    for round in 0..rounds as usize {
        for at in rotated(cells.len(), round) {
            let cell = &mut cells[at];
            cell.rounds.push(run(&cell.key, round)?);
        }
    }
    Ok(cells)
}

/// NaN for no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Returns the median of ratios within a round: disturbances of whole rounds cancel out.
pub(crate) fn ratio_to(one: &[f64], other: &[f64]) -> f64 {
    median(one.iter().zip(other).map(|(one, other)| one / other).collect())
}

pub(crate) fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

pub(crate) fn variation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt() / mean
}

/// Rotates `0..count`, so that the first variant changes from round to round.
pub(crate) fn rotated(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
}
