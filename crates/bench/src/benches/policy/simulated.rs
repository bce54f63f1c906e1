//! All policies together over a recorded trace.

use super::recorded::{Content, Event, Recorded, UNIT_BYTES};
use serde::Serialize;
use serde_json::Value;
use softswap_engine::policy::mechanism::Without;
use softswap_engine::simulator::{self, Costs, Figures, Setup, Simulation};
use softswap_sys::PAGE_SIZE;
use std::io;

/// Shares of a trace's pages that there is memory for.
pub(super) const PERCENTS: [usize; 3] = [75, 50, 25];

/// No memory is smaller.
const LEAST_PAGES: usize = 64;

/// What happened with so much memory.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SimulatedRow {
    pub(super) trace: String,
    pub(super) memory_percent: usize,
    pub(super) memory_pages: usize,
    /// What was switched off.
    pub(super) without: String,
    pub(super) zero_faults: u64,
    pub(super) filled_faults: u64,
    pub(super) pool_faults: u64,
    pub(super) disk_faults: u64,
    pub(super) write_faults: u64,
    pub(super) pages_ahead: u64,
    pub(super) pages_written: u64,
    pub(super) stalled_ms: f64,
    pub(super) pool_bytes: u64,
}

/// The costs that a file of `softswap bench faults --json` has; others are as they are.
pub(super) fn costs(text: &str) -> Result<Costs, String> {
    let found: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rows = found["rows"].as_array().ok_or("it has no rows")?;
    let ns = |variant: &str| {
        let row = rows.iter().find(|row| row["variant"] == variant);
        let us = row.and_then(|row| row["p50_us"].as_f64());
        us.map(|us| (us * 1000.0) as u64).ok_or(format!("it has no row {variant}"))
    };
    Ok(Costs {
        zero_ns: ns("fault_zero_write")?,
        filled_ns: ns("fault_same_filled")?,
        pool_ns: ns("fault_pool")?,
        disk_ns: ns("fault_disk")?,
        ..Costs::default()
    })
}

fn content(content: Content) -> simulator::Content {
    let bytes = |units: u8| u16::from(units) * UNIT_BYTES as u16;
    simulator::Content { lz4_bytes: bytes(content.lz4), zstd_bytes: bytes(content.zstd) }
}

/// Runs the policies over a trace, with memory for so many pages.
pub(super) fn simulate(
    recorded: &Recorded,
    memory_pages: usize,
    (costs, without): (Costs, Without),
) -> io::Result<Figures> {
    let mut simulation = Simulation::new(Setup {
        window_pages: recorded.pages.into(),
        memory_bytes: memory_pages * PAGE_SIZE,
        costs,
        without,
    })?;
    let counted = recorded.events.len().saturating_sub(recorded.before as usize).max(1);
    // Spread evenly: how it was is not told.
    let work_ns = u64::from(recorded.cpu_us) * 1000 / counted as u64;
    for (at, event) in recorded.events.iter().enumerate() {
        if at == recorded.before as usize {
            simulation.forget_figures();
        }
        if at >= recorded.before as usize {
            simulation.work(work_ns);
        }
        match *event {
            Event::Touch { page, is_write, content: of_page } => {
                simulation.touch(page.into(), is_write, of_page.map(content));
            }
            Event::Gone { page, pages } => {
                simulation.gone(page.into()..u64::from(page) + u64::from(pages));
            }
        }
    }
    Ok(simulation.figures())
}

/// Different pages that are touched.
pub(super) fn touched_pages(recorded: &Recorded) -> usize {
    let mut touches = recorded.touches();
    touches.sort_unstable();
    touches.dedup();
    touches.len()
}

/// One row for each share of memory, or for so many pages of it.
pub(super) fn rows(
    name: &str,
    recorded: &Recorded,
    memory: &[usize],
    (costs, without): (Costs, Without),
) -> io::Result<Vec<SimulatedRow>> {
    let all = touched_pages(recorded);
    let row = |percent: usize, memory_pages: usize| {
        let figures = simulate(recorded, memory_pages, (costs, without))?;
        Ok(SimulatedRow {
            trace: name.into(),
            memory_percent: percent,
            memory_pages,
            without: without.to_string(),
            zero_faults: figures.zero_faults,
            filled_faults: figures.filled_faults,
            pool_faults: figures.pool_faults,
            disk_faults: figures.disk_faults,
            write_faults: figures.write_faults,
            pages_ahead: figures.pages_ahead,
            pages_written: figures.pages_written,
            stalled_ms: figures.stalled_ns as f64 / 1e6,
            pool_bytes: figures.pool_bytes,
        })
    };
    if memory.is_empty() {
        let share = |percent: usize| row(percent, (all * percent / 100).max(LEAST_PAGES));
        return PERCENTS.into_iter().map(share).collect();
    }
    memory.iter().map(|pages| row(pages * 100 / all.max(1), (*pages).max(LEAST_PAGES))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Recorded {
        let whole = Content { lz4: 64, zstd: 64 };
        let touch = |page: u32, content| Event::Touch { page, is_write: false, content };
        let first = (0..2000).map(|page| touch(page, Some(whole)));
        let then = (0..20_000u32).map(|at| touch(at.wrapping_mul(7919) % 2000, None));
        Recorded { pages: 2000, before: 2000, cpu_us: 5, events: first.chain(then).collect() }
    }

    #[test]
    fn less_memory_costs_more_and_what_was_before_is_not_counted() {
        let rows = rows("some", &trace(), &[], Default::default()).unwrap();
        let stalls: Vec<_> = rows.iter().map(|row| row.stalled_ms).collect();
        assert!(stalls.is_sorted() && stalls[0] > 0.0, "{stalls:?}");
        assert!(rows.iter().all(|row| row.zero_faults == 0 && row.disk_faults > 0));
        assert_eq!(rows[1].memory_pages, 1000);
        let given = super::rows("some", &trace(), &[1000], Default::default()).unwrap();
        assert_eq!((given.len(), given[0].disk_faults), (1, rows[1].disk_faults));
    }

    #[test]
    fn costs_are_those_of_the_file() {
        let row = |variant: &str, us: f64| format!("{{\"variant\":\"{variant}\",\"p50_us\":{us}}}");
        let rows = ["fault_zero_write", "fault_same_filled", "fault_pool"].map(|it| row(it, 2.0));
        let text = |more: &str| format!("{{\"rows\":[{},{more}]}}", rows.join(","));
        let found = costs(&text(&row("fault_disk", 5.5))).unwrap();
        assert_eq!((found.disk_ns, found.pool_ns), (5500, 2000));
        assert!(costs(&text(&row("else", 1.0))).unwrap_err().contains("fault_disk"));
        assert!(costs("{}").is_err() && costs("hello").is_err());
    }
}
