//! Latencies of one variant, round by round.

/// Latencies of single operations, in ns, grouped by round.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Median and 99th percentile of each round.
    rounds: Vec<(f64, f64)>,
    count: usize,
}

/// What is reported of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figures {
    /// Median over the rounds of each round's median.
    pub(super) p50_us: f64,
    /// Median over the rounds of each round's 99th percentile.
    pub(super) p99_us: f64,
    /// Coefficient of variation of the rounds' medians.
    pub(super) cov: f64,
    pub(super) count: usize,
}

impl Samples {
    /// Adds a round.
    pub(super) fn add(&mut self, mut latencies_ns: Vec<u64>) {
        latencies_ns.sort_unstable();
        let at = |share: f64| {
            let rank = (latencies_ns.len() as f64 * share) as usize;
            latencies_ns.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
        };
        self.rounds.push((at(0.5), at(0.99)));
        self.count += latencies_ns.len();
    }

    pub(super) fn figures(&self) -> Figures {
        let medians: Vec<f64> = self.rounds.iter().map(|(p50, _)| *p50).collect();
        Figures {
            p50_us: median(medians.clone()),
            p99_us: median(self.rounds.iter().map(|(_, p99)| *p99).collect()),
            cov: variation(&medians),
            count: self.count,
        }
    }

    /// Median over the rounds of how much slower this is than `other` was in
    /// the same round, in us.
    pub(super) fn minus(&self, other: &Samples) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(a, b)| a.0 - b.0).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

fn variation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_over_rounds() {
        let mut samples = Samples::default();
        samples.add((1..=100).map(|us| us * 1000).collect());
        samples.add((101..=200).map(|us| us * 1000).collect());
        samples.add(vec![9_000_000; 100]);
        let figures = samples.figures();
        assert_eq!((figures.p50_us, figures.p99_us, figures.count), (151.0, 200.0, 300));
    }

    #[test]
    fn equal_rounds_do_not_vary() {
        assert_eq!(variation(&[3.0, 3.0, 3.0]), 0.0);
        assert!((variation(&[1.0, 3.0]) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn differences_are_taken_within_each_round() {
        let (mut slow, mut fast) = (Samples::default(), Samples::default());
        for base in [10, 1000, 5000] {
            slow.add(vec![(base + 7) * 1000]);
            fast.add(vec![base * 1000]);
        }
        assert_eq!(slow.minus(&fast), 7.0);
    }
}
