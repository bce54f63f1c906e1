//! Latencies of one variant, round by round.

/// What one round says of a variant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Round {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) count: usize,
}

impl Round {
    /// Of latencies in ns, which it sorts.
    pub(crate) fn of(latencies_ns: &mut [u64]) -> Round {
        latencies_ns.sort_unstable();
        let count = latencies_ns.len();
        let at = |share: f64| {
            let rank = (count as f64 * share) as usize;
            latencies_ns.get(rank).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
        };
        let sum_ns: u64 = latencies_ns.iter().sum();
        let mean_us = sum_ns as f64 / count as f64 / 1000.0;
        Round { mean_us, p50_us: at(0.5), p99_us: at(0.99), count }
    }
}

/// Latencies of single operations, grouped by round.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    rounds: Vec<Round>,
}

/// What is reported of them: medians over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Coefficient of variation of the rounds' medians.
    pub(crate) cov: f64,
    pub(crate) count: usize,
}

impl Samples {
    /// Adds a round.
    pub(crate) fn add(&mut self, mut latencies_ns: Vec<u64>) {
        self.rounds.push(Round::of(&mut latencies_ns));
    }

    /// Adds a round whose figures are known already.
    pub(crate) fn add_round(&mut self, round: Round) {
        self.rounds.push(round);
    }

    pub(crate) fn figures(&self) -> Figures {
        let of = |figure: fn(&Round) -> f64| self.rounds.iter().map(figure).collect::<Vec<_>>();
        let medians = of(|round| round.p50_us);
        Figures {
            mean_us: median(of(|round| round.mean_us)),
            p50_us: median(medians.clone()),
            p99_us: median(of(|round| round.p99_us)),
            cov: variation(&medians),
            count: self.rounds.iter().map(|round| round.count).sum(),
        }
    }

    /// Median over the rounds of how much slower this is than `other` was in
    /// the same round, in us.
    pub(crate) fn minus(&self, other: &Samples) -> f64 {
        self.compared(other, |one, other| one.p50_us - other.p50_us)
    }

    /// Median over the rounds of how many times a figure of `other` in the same
    /// round this is.
    pub(crate) fn over(&self, other: &Samples, figure: fn(&Round) -> f64) -> f64 {
        self.compared(other, |one, other| figure(one) / figure(other))
    }

    fn compared(&self, other: &Samples, how: impl Fn(&Round, &Round) -> f64) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(a, b)| how(a, b)).collect())
    }
}

/// The middle value; NaN of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// How many times `other` each round of `one` is: the median over the rounds, so that what slows
/// the machine down slows both.
pub(crate) fn over(one: &[f64], other: &[f64]) -> f64 {
    median(one.iter().zip(other).map(|(one, other)| one / other).collect())
}

/// The geometric mean; NaN of none.
pub(crate) fn geometric_mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    (values.map(f64::ln).sum::<f64>() / count).exp()
}

/// Coefficient of variation.
pub(crate) fn variation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt() / mean
}

/// `0..count`, beginning with another one each round: what a variant leaves
/// behind on the device must not always meet the same successor first.
pub(crate) fn rotated(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
}
