//! Rates of the last two minutes.

use crate::rates::Rates;
use std::collections::VecDeque;

/// One sample per second.
const KEPT: usize = 120;

/// The newest last.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Rates>);

impl History {
    pub(super) fn push(&mut self, rates: Rates) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(rates);
    }

    /// The newest is at the right. The highest sign is the maximum, or `full` if that is larger.
    pub(super) fn sparkline(
        &self,
        width: usize,
        full: f64,
        signs: &[&str],
        value: impl Fn(&Rates) -> f64,
    ) -> String {
        let shown = self.0.iter().skip(self.0.len().saturating_sub(width));
        let values: Vec<f64> = shown.map(value).collect();
        let most = values.iter().copied().fold(full, f64::max);
        let last = signs.len() - 1;
        let sign = |value: &f64| {
            let step = if most > 0.0 { (value / most * last as f64).ceil() } else { 0.0 };
            signs[(step as usize).min(last)]
        };
        let line: String = values.iter().map(sign).collect();
        format!("{}{line}", " ".repeat(width.saturating_sub(values.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparkline_has_newest_right_and_maximum_full() {
        let mut history = History::default();
        let signs = ["0", "1", "2", "3", "4"];
        let stalled = |rates: &Rates| rates.stalled;
        assert_eq!(history.sparkline(3, 1.0, &signs, stalled), "   ");
        for share in [0.0, 0.25, 0.5, 0.01, 1.0] {
            history.push(Rates { stalled: share, ..Rates::default() });
        }
        assert_eq!(history.sparkline(6, 1.0, &signs, stalled), " 01214");
        assert_eq!(history.sparkline(3, 1.0, &signs, stalled), "214");
        assert_eq!(history.sparkline(3, 2.0, &signs, stalled), "112");
        for _ in 0..2 * KEPT {
            history.push(Rates::default());
        }
        assert_eq!(history.sparkline(200, 0.0, &signs, stalled).trim_start().len(), KEPT);
    }
}
