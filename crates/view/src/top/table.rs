//! The table of a tree's processes: columns and sorting.

use crate::rates::{Compared, Rates};
use crate::tree::{Process, State};
use crate::units::bytes;
use std::cmp::Ordering;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Pid,
    Name,
    State,
    Used,
    Resident,
    Pool,
    Disk,
    Faults,
    Stalled,
    Read,
    Written,
    Mappings,
}

/// All columns, from the left.
pub(super) const COLUMNS: [Column; 12] = [
    Column::Pid,
    Column::Name,
    Column::State,
    Column::Used,
    Column::Resident,
    Column::Pool,
    Column::Disk,
    Column::Faults,
    Column::Stalled,
    Column::Read,
    Column::Written,
    Column::Mappings,
];
/// All columns by usefulness: if space is short, the last ones are omitted.
const BY_USE: [Column; 12] = [
    Column::Pid,
    Column::Used,
    Column::Name,
    Column::Stalled,
    Column::Disk,
    Column::Faults,
    Column::Resident,
    Column::Pool,
    Column::State,
    Column::Read,
    Column::Written,
    Column::Mappings,
];

/// Returns the columns that fit, each with its width and a space in between; at least the first
/// one.
pub(super) fn columns(width: u16) -> Vec<Column> {
    let mut used = 0;
    let fits = |column: &&Column| {
        used += column.width() + u16::from(used > 0);
        used <= width
    };
    let shown = BY_USE.iter().take_while(fits).count().max(1);
    COLUMNS.into_iter().filter(|column| BY_USE[..shown].contains(column)).collect()
}

/// A process with its displayed data.
#[derive(Debug, Clone)]
pub(super) struct Row<'t> {
    pub(super) process: &'t Process,
    pub(super) rates: Option<Rates>,
    /// True if it has exited with its tree; then its figures are not shown.
    pub(super) has_ended: bool,
}

impl Column {
    pub(super) fn title(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::Name => "NAME",
            Column::State => "STATE",
            Column::Used => "USED",
            Column::Resident => "RESIDENT",
            Column::Pool => "POOL",
            Column::Disk => "DISK",
            Column::Faults => "FAULT/S",
            Column::Stalled => "STALL%",
            Column::Read => "READ/S",
            Column::Written => "WRITE/S",
            Column::Mappings => "MAPS",
        }
    }

    pub(super) fn width(self) -> u16 {
        match self {
            Column::Name => 15,
            Column::State | Column::Stalled => 6,
            Column::Used | Column::Resident | Column::Read | Column::Written => 8,
            Column::Pid | Column::Pool | Column::Disk | Column::Faults | Column::Mappings => 7,
        }
    }

    pub(super) fn is_text(self) -> bool {
        matches!(self, Column::Name | Column::State)
    }

    /// Returns the column's text for a process.
    pub(super) fn text(self, row: &Row<'_>) -> String {
        let reading = row.process.reading();
        let size = |value: Option<u64>| value.map_or_else(|| "-".to_string(), short_bytes);
        let rate = |value: Option<f64>| value.map_or_else(|| "-".to_string(), short_count);
        match self {
            Column::Pid => row.process.pid.to_string(),
            Column::Name => row.process.name.clone(),
            Column::State if row.has_ended => "ended".into(),
            _ if row.has_ended => "-".into(),
            Column::State => match row.process.state {
                State::Awake(_) => "awake".into(),
                State::Asleep => "asleep".into(),
                State::Silent(_) => "silent".into(),
            },
            Column::Used => match row.process.state {
                State::Silent(_) => "-".into(),
                _ => short_bytes(row.process.used_bytes()),
            },
            Column::Resident => size(reading.map(|it| it.resident_bytes)),
            Column::Pool => size(reading.map(|it| it.pool_bytes)),
            Column::Disk => size(reading.map(|it| it.disk_bytes)),
            Column::Faults => rate(row.rates.map(|it| it.returns())),
            Column::Stalled => {
                row.rates.map_or_else(|| "-".into(), |it| format!("{:.0}", it.stalled * 100.0))
            }
            Column::Read => size(row.rates.map(|it| it.read_bytes as u64)),
            Column::Written => size(row.rates.map(|it| it.written_bytes as u64)),
            Column::Mappings => {
                let mappings = reading.filter(|it| it.mappings_limit > 0);
                rate(mappings.map(|it| it.mappings as f64))
            }
        }
    }

    /// Returns the column's sort value, if it is numeric.
    fn value(self, row: &Row<'_>) -> f64 {
        let reading = row.process.reading();
        let of = |field: fn(&crate::reading::Reading) -> u64| reading.map_or(0, field) as f64;
        match self {
            Column::Pid => f64::from(row.process.pid),
            Column::Name | Column::State => 0.0,
            Column::Used => row.process.used_bytes() as f64,
            Column::Resident => of(|it| it.resident_bytes),
            Column::Pool => of(|it| it.pool_bytes),
            Column::Disk => of(|it| it.disk_bytes),
            Column::Faults => row.rates.map_or(0.0, |it| it.returns()),
            Column::Stalled => row.rates.map_or(0.0, |it| it.stalled),
            Column::Read => row.rates.map_or(0.0, |it| it.read_bytes),
            Column::Written => row.rates.map_or(0.0, |it| it.written_bytes),
            Column::Mappings => of(|it| it.mappings),
        }
    }

    /// Compares numbers in descending order, names in ascending order, and equal ones by PID.
    fn compare(self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        let first = if self.is_text() {
            self.text(one).cmp(&self.text(other))
        } else {
            self.value(other).total_cmp(&self.value(one))
        };
        first.then(one.process.pid.cmp(&other.process.pid))
    }
}

/// Sort order of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sort {
    pub(super) column: Column,
    pub(super) is_reversed: bool,
}

impl Default for Sort {
    fn default() -> Sort {
        Sort { column: Column::Used, is_reversed: false }
    }
}

impl Sort {
    /// Selects the column to the right, or to the left.
    pub(super) fn step(&mut self, to_the_right: bool) {
        let at = COLUMNS.iter().position(|column| *column == self.column).unwrap_or(0);
        let next = if to_the_right { at + 1 } else { at + COLUMNS.len() - 1 };
        *self = Sort { column: COLUMNS[next % COLUMNS.len()], is_reversed: false };
    }

    /// Returns all processes in this order.
    pub(super) fn rows<'t>(self, processes: &'t [Process], compared: &Compared) -> Vec<Row<'t>> {
        let row = |process: &'t Process| Row {
            process,
            rates: compared.processes.get(&process.pid).copied(),
            has_ended: false,
        };
        let mut rows: Vec<Row<'t>> = processes.iter().map(row).collect();
        rows.sort_by(|one, other| self.column.compare(one, other));
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }
}

/// Formats `12.3 MiB` as `12.3M`.
pub(super) fn short_bytes(count: u64) -> String {
    bytes(count).replace("iB", "").replace(' ', "")
}

/// Formats a count: `950`, `12.3k`, `4.5M`.
pub(super) fn short_count(value: f64) -> String {
    match value {
        _ if value < 999.5 => format!("{value:.0}"),
        _ if value < 999_950.0 => format!("{:.1}k", value / 1e3),
        _ => format!("{:.1}M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Reading;
    use std::time::Duration;

    fn process(pid: u32, name: &str, used_bytes: u64) -> Process {
        Process {
            pid,
            name: name.into(),
            state: State::Awake(Box::new(Reading { used_bytes, ..Reading::default() })),
            budget_bytes: 0,
            anonymous_bytes: 0,
            cpu: Duration::ZERO,
            threads: 1,
            settings: Vec::new(),
            latencies: Vec::new(),
        }
    }

    #[test]
    fn sort_order_defaults_and_reverses() {
        let all = [process(1, "b", 5), process(2, "a", 9), process(3, "c", 5)];
        let order = |column, is_reversed| {
            let rows = Sort { column, is_reversed }.rows(&all, &Compared::default());
            rows.iter().map(|row| row.process.pid).collect::<Vec<_>>()
        };
        assert_eq!(order(Column::Used, false), [2, 1, 3]);
        assert_eq!(order(Column::Used, true), [3, 1, 2]);
        assert_eq!(order(Column::Name, false), [2, 1, 3]);
        assert_eq!(order(Column::Pid, true), [1, 2, 3]);
        let mut sort = Sort::default();
        COLUMNS.iter().for_each(|_| sort.step(true));
        assert_eq!(sort.column, Column::Used);
        sort.step(false);
        assert_eq!(sort.column, Column::State);
    }

    #[test]
    fn narrow_table_drops_columns() {
        let width = |columns: &[Column]| {
            columns.iter().map(|column| column.width()).sum::<u16>() + columns.len() as u16 - 1
        };
        for columns_there in 7..220 {
            let shown = columns(columns_there);
            assert!(width(&shown) <= columns_there, "{columns_there}: {shown:?}");
        }
        assert_eq!(columns(200), COLUMNS);
        assert_eq!(columns(80), COLUMNS[..9]);
        assert_eq!(columns(40), [Column::Pid, Column::Name, Column::Used, Column::Stalled]);
        assert_eq!(columns(20), [Column::Pid, Column::Used]);
        assert_eq!(columns(3), [Column::Pid]);
    }

    #[test]
    fn sizes_and_counts_are_abbreviated() {
        assert_eq!(short_bytes(12_900_000), "12.3M");
        assert_eq!((short_count(999.0), short_count(12_345.0)), ("999".into(), "12.3k".into()));
    }
}
