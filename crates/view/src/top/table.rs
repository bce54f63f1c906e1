//! The table of a tree's processes.

use crate::rates::{Compared, Rates};
use crate::reading::Reading;
use crate::tree::{Process, State};
use crate::units::bytes;
use std::cmp::Ordering;

pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: u16,
    /// Unique, 0 to 11. The highest ranks are omitted if space is short.
    rank: u8,
    content: Content,
}

enum Content {
    Text(fn(&Row<'_>) -> String),
    Number(fn(&Row<'_>) -> Option<f64>, fn(f64) -> String),
}

const fn text(title: &'static str, width: u16, rank: u8, of: fn(&Row<'_>) -> String) -> Column {
    Column { title, width, rank, content: Content::Text(of) }
}

const fn number(
    title: &'static str,
    width: u16,
    rank: u8,
    of: fn(&Row<'_>) -> Option<f64>,
    shown: fn(f64) -> String,
) -> Column {
    Column { title, width, rank, content: Content::Number(of, shown) }
}

fn size(bytes: f64) -> String {
    short_bytes(bytes as u64)
}

/// `None` with userfaultfd.
fn mappings(row: &Row<'_>) -> Option<f64> {
    let reading = row.process.reading().filter(|it| it.mappings_limit > 0)?;
    Some(reading.mappings as f64)
}

fn whole(number: f64) -> String {
    format!("{number:.0}")
}

pub(super) const COLUMNS: [Column; 12] = [
    number("PID", 7, 0, |row| Some(f64::from(row.process.pid)), whole),
    text("NAME", 15, 2, |row| row.process.name.clone()),
    text("STATE", 6, 8, |row| {
        let state = match row.process.state {
            _ if row.has_ended => "ended",
            State::Awake(_) => "awake",
            State::Asleep => "asleep",
            State::Silent(_) => "silent",
        };
        state.into()
    }),
    number("USED", 8, 1, |row| Some(row.process.used_bytes()? as f64), size),
    number("RESIDENT", 8, 6, |row| row.reading(|it| it.resident_bytes), size),
    number("POOL", 7, 7, |row| row.reading(|it| it.pool_bytes), size),
    number("DISK", 7, 4, |row| row.reading(|it| it.disk_bytes), size),
    number("FAULT/S", 7, 5, |row| Some(row.rates?.returns()), short_count),
    number("STALL%", 6, 3, |row| Some(row.rates?.stalled * 100.0), whole),
    number("READ/S", 8, 9, |row| Some(row.rates?.read_bytes), size),
    number("WRITE/S", 8, 10, |row| Some(row.rates?.written_bytes), size),
    number("MAPS", 7, 11, mappings, short_count),
];
/// Sorted at first by this column.
const USED: usize = 3;

/// At least one column, with spaces between them.
pub(super) fn columns(width: u16) -> Vec<&'static Column> {
    let mut by_rank: Vec<&Column> = COLUMNS.iter().collect();
    by_rank.sort_by_key(|column| column.rank);
    let mut used = 0;
    let fits = |column: &&&Column| {
        used += column.width + u16::from(used > 0);
        used <= width
    };
    let shown = by_rank.iter().take_while(fits).count().max(1);
    COLUMNS.iter().filter(|column| usize::from(column.rank) < shown).collect()
}

#[derive(Debug, Clone)]
pub(super) struct Row<'t> {
    pub(super) process: &'t Process,
    pub(super) rates: Option<Rates>,
    /// The tree's figures are then not shown.
    pub(super) has_ended: bool,
}

impl Row<'_> {
    fn reading(&self, field: fn(&Reading) -> u64) -> Option<f64> {
        self.process.reading().map(|reading| field(reading) as f64)
    }
}

impl Column {
    pub(super) fn is_text(&self) -> bool {
        matches!(self.content, Content::Text(_))
    }

    pub(super) fn text(&self, row: &Row<'_>) -> String {
        match self.content {
            Content::Text(of) => of(row),
            // Rank 0 is the PID, shown also after the exit.
            Content::Number(..) if row.has_ended && self.rank > 0 => "-".into(),
            Content::Number(of, shown) => of(row).map_or_else(|| "-".into(), shown),
        }
    }

    /// Numbers descend, names ascend, equal ones by PID. Unknown numbers count as 0.
    fn compare(&self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        let first = match self.content {
            Content::Text(of) => of(one).cmp(&of(other)),
            Content::Number(of, _) => of(other).unwrap_or(0.0).total_cmp(&of(one).unwrap_or(0.0)),
        };
        first.then(one.process.pid.cmp(&other.process.pid))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sort {
    column: usize,
    pub(super) is_reversed: bool,
}

impl Default for Sort {
    fn default() -> Sort {
        Sort { column: USED, is_reversed: false }
    }
}

impl Sort {
    pub(super) fn step(&mut self, to_the_right: bool) {
        let next = self.column + if to_the_right { 1 } else { COLUMNS.len() - 1 };
        *self = Sort { column: next % COLUMNS.len(), is_reversed: false };
    }

    pub(super) fn is_by(self, column: &Column) -> bool {
        COLUMNS[self.column].rank == column.rank
    }

    pub(super) fn rows<'t>(self, processes: &'t [Process], compared: &Compared) -> Vec<Row<'t>> {
        let row = |process: &'t Process| Row {
            process,
            rates: compared.processes.get(&process.pid).copied(),
            has_ended: false,
        };
        let mut rows: Vec<Row<'t>> = processes.iter().map(row).collect();
        rows.sort_by(|one, other| COLUMNS[self.column].compare(one, other));
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }
}

/// `12.3 MiB` as `12.3M`.
pub(super) fn short_bytes(count: u64) -> String {
    bytes(count).replace("iB", "").replace(' ', "")
}

/// `950`, `12.3k`, `4.5M`.
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

    fn process(pid: u32, name: &str, used_bytes: u64) -> Process {
        Process {
            pid,
            name: name.into(),
            state: State::Awake(Box::new(Reading { used_bytes, ..Reading::default() })),
            ..Process::default()
        }
    }

    #[test]
    fn sort_order_defaults_and_reverses() {
        let all = [process(1, "b", 5), process(2, "a", 9), process(3, "c", 5)];
        let order = |title: &str, is_reversed| {
            let column = COLUMNS.iter().position(|column| column.title == title).unwrap();
            let rows = Sort { column, is_reversed }.rows(&all, &Compared::default());
            rows.iter().map(|row| row.process.pid).collect::<Vec<_>>()
        };
        assert_eq!(order("USED", false), [2, 1, 3]);
        assert_eq!(order("USED", true), [3, 1, 2]);
        assert_eq!(order("NAME", false), [2, 1, 3]);
        assert_eq!(order("PID", true), [1, 2, 3]);
        let mut sort = Sort::default();
        COLUMNS.iter().for_each(|_| sort.step(true));
        assert_eq!(COLUMNS[sort.column].title, "USED");
        sort.step(false);
        assert_eq!(COLUMNS[sort.column].title, "STATE");
    }

    #[test]
    fn narrow_table_drops_columns() {
        let width = |columns: &[&Column]| {
            columns.iter().map(|column| column.width).sum::<u16>() + columns.len() as u16 - 1
        };
        for columns_there in 7..220 {
            let shown = columns(columns_there);
            assert!(width(&shown) <= columns_there, "{columns_there}: {} columns", shown.len());
        }
        let titles = |width| columns(width).iter().map(|column| column.title).collect::<Vec<_>>();
        let all = COLUMNS.map(|column| column.title);
        assert_eq!((titles(200), titles(80)), (all.to_vec(), all[..9].to_vec()));
        assert_eq!(titles(40), ["PID", "NAME", "USED", "STALL%"]);
        assert_eq!((titles(20), titles(3)), (vec!["PID", "USED"], vec!["PID"]));
    }

    #[test]
    fn sizes_and_counts_are_abbreviated() {
        assert_eq!(short_bytes(12_900_000), "12.3M");
        assert_eq!((short_count(999.0), short_count(12_345.0)), ("999".into(), "12.3k".into()));
    }
}
