//! What the compressed pool costs: pages stored, loaded and invalidated a
//! second, and how much of its memory it cannot use; beside zram.
//!
//! Both get the same pages from as many threads on the same processors, and
//! take turns in every round. softswap is called as the walks call it; zram is
//! asked through its block device, one page at a time.

mod args;
mod stores;
pub(super) mod page_kinds;
mod zram;
mod operations;
mod waste;
mod found;
mod outcome;

pub(crate) use args::PoolArgs;

use crate::measure::machine::Usage;
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use found::{Cell, Content, Found, SOFTSWAP, ZRAM};
use page_kinds::KINDS;
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::memory::Page;
use std::process::ExitCode;
use stores::{Damaged, Softswap, Store};
use waste::WasteRow;
use zram::Zram;

pub(super) fn run(args: &PoolArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args).map(|found| outcome::PoolOutcome::new(found, args)))
}

fn measure(args: &PoolArgs) -> Result<Found, Refusal> {
    let usage = Usage::now();
    let mut notes = Vec::new();
    let contents = contents(args.pages as usize, &mut notes)?;
    let room = args.pages.max(args.objects) as usize;
    let softswap = Softswap::new(room).map_err(|error| no_memory(&error))?;
    let zram = if args.no_zram { Err("--no-zram".into()) } else { Zram::new(room) };
    if let Err(why) = &zram {
        notes.push(format!("zram was left out: {why}"));
    }
    let mut stores: Vec<(&str, &dyn Store)> = vec![(SOFTSWAP, &softswap)];
    stores.extend(zram.iter().map(|zram| (ZRAM, zram as &dyn Store)));
    let damaged = Damaged(stores[stores.len() - 1].1);
    if let (true, Some((_, last))) = (args.damage, stores.last_mut()) {
        *last = &damaged;
    }
    let mut cells = cells(args, &contents, &stores);
    for round in 0..=args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let Cell { variant, content, threads, rounds } = &mut cells[index];
            let pages = contents[*content].pages;
            let took = stores
                .iter()
                .find(|(name, _)| name == variant)
                .ok_or_else(|| "is missing".to_string())
                .and_then(|(_, store)| {
                    operations::run(*store, pages, *threads, round as u64 * 1000, round == 0)
                })
                .map_err(|why| failed(variant, contents[*content].name, &why))?;
            if round > 0 {
                rounds.push(took);
            }
        }
    }
    let waste = waste(&contents, &stores, args.pages as usize, args.objects as usize)?;
    Ok(Found { contents, cells, waste, disturbance: usage.since(), notes })
}

fn no_memory(error: &std::io::Error) -> Refusal {
    Refusal::own(format!("no memory: {}", plain(error)))
}

fn failed(variant: &str, content: &str, why: &str) -> Refusal {
    Refusal::own(format!("{variant}, {content}: {why}"))
}

fn contents(count: usize, notes: &mut Vec<String>) -> Result<Vec<Content>, Refusal> {
    let mut all = Vec::new();
    let mut add = |name, pages: &'static [Page]| {
        let mean_packed_bytes = page_kinds::mean_packed_bytes(pages)
            .ok_or_else(|| Refusal::own(format!("{name}: a page is not one for the pool")))?;
        all.push(Content { name, pages, mean_packed_bytes });
        Ok::<(), Refusal>(())
    };
    for kind in KINDS {
        add(kind.name(), page_kinds::generated(kind, count).map_err(|error| no_memory(&error))?)?;
    }
    match page_kinds::of_python(count) {
        Ok((pages, others)) => {
            add("python", pages)?;
            notes.push(format!(
                "python: {others} of its pages were passed over, same-filled or incompressible"
            ));
        }
        Err(why) => notes.push(format!("python was left out: {why}")),
    }
    Ok(all)
}

fn cells(
    args: &PoolArgs,
    contents: &[Content],
    stores: &[(&'static str, &dyn Store)],
) -> Vec<Cell> {
    let mut cells = Vec::new();
    for content in 0..contents.len() {
        for threads in &args.threads {
            cells.extend(stores.iter().map(|(variant, _)| Cell {
                variant,
                content,
                threads: *threads as usize,
                rounds: Vec::new(),
            }));
        }
    }
    cells
}

fn waste(
    contents: &[Content],
    stores: &[(&'static str, &dyn Store)],
    pages: usize,
    objects: usize,
) -> Result<Vec<WasteRow>, Refusal> {
    let sizes: &[Page] = page_kinds::of_every_size(pages).map_err(|error| no_memory(&error))?;
    let mut groups: Vec<(&str, Vec<&[Page]>)> =
        contents.iter().map(|content| (content.name, vec![content.pages])).collect();
    groups.push(("mixed", contents.iter().map(|content| content.pages).collect()));
    groups.push(("sizes", vec![sizes]));
    let mut rows = Vec::new();
    for (name, pages) in &groups {
        for (variant, store) in stores {
            let row = waste::measure(*store, variant, name, pages, objects);
            rows.push(row.map_err(|why| failed(variant, name, &why))?);
        }
    }
    Ok(rows)
}
