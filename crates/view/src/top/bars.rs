//! Bars of several parts.

use super::theme::{Part, Theme};
use ratatui::text::{Line, Span};

/// A nonzero amount gets at least one character while there is space.
pub(super) fn signs(amounts: &[u64], whole: u64, width: usize) -> Vec<usize> {
    let mut left = width;
    let share = |amount: u64| amount as f64 / whole.max(1) as f64 * width as f64;
    let mut widths = Vec::with_capacity(amounts.len());
    for amount in amounts {
        let wanted = (share(*amount).round() as usize).max(usize::from(*amount > 0));
        widths.push(wanted.min(left));
        left -= wanted.min(left);
    }
    widths
}

pub(super) fn bar(
    theme: Theme,
    parts: &[(Part, u64)],
    whole: u64,
    width: usize,
) -> Vec<Span<'static>> {
    let amounts: Vec<u64> = parts.iter().map(|(_, amount)| *amount).collect();
    let widths = signs(&amounts, whole, width);
    let free = width - widths.iter().sum::<usize>();
    let drawn = parts.iter().map(|(part, _)| *part).zip(widths);
    drawn
        .chain([(Part::Free, free)])
        .map(|(part, width)| Span::styled(theme.sign_of(part).repeat(width), theme.style_of(part)))
        .collect()
}

pub(super) fn legend(theme: Theme, parts: &[(Part, &str, String)], width: usize) -> Line<'static> {
    let (mut spans, mut used) = (Vec::new(), 0);
    for (part, name, amount) in parts {
        let text = format!(" {name} {amount}");
        used += 1 + text.len();
        if used > width {
            break;
        }
        spans.push(Span::styled(theme.sign_of(*part), theme.style_of(*part)));
        spans.push(Span::raw(format!("{text}   ")));
        used += 3;
    }
    Line::from(spans)
}

/// The first text that fits: numbers are never truncated.
pub(super) fn fitting(width: usize, texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().find(|text| text.chars().count() <= width).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::signs;

    #[test]
    fn bar_parts_are_proportional() {
        assert_eq!(signs(&[50, 25], 100, 40), [20, 10]);
        assert_eq!(signs(&[1, 0, 99], 100, 10), [1, 0, 9]);
        // The parts exceed the whole briefly after the budget was lowered.
        assert_eq!(signs(&[150, 80], 100, 10), [10, 0]);
        assert_eq!(signs(&[0, 0], 0, 10), [0, 0]);
    }
}
