//! What sealing a page costs on its way to the disk, and opening it on its way
//! back: encrypted, and with a checksum only.
//!
//! Pages are sealed a batch at a time, as reclaim does it. The batch is in the
//! processor's cache, because page-out has just copied it there. Of the batches of
//! a round the median counts: it knows nothing of those in which another program
//! had the processor. The mean is told beside it.

use crate::measure::affinity::bind_to_cpu;
use crate::measure::machine::{Disturbance, Machine, Usage};
use crate::measure::report::{Output, Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{Round, median, rotated, variation};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::Refusal;
use softswap_engine::codec::seal::{Seal, Sealer};
use softswap_engine::memory::context::BATCH_PAGES;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::path::PathBuf;
use std::process::ExitCode;

const VARIANTS: [&str; 2] = ["encrypted", "checksum"];
/// Rounds that do not count.
const WARM_UPS: usize = 1;

/// Measure sealing a page and opening it again, with encryption and without.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 2, \"bench\": \"seal\", \"machine\": {...}, figures, \"ratios\": {...}, \"rows\": [{\"step\",
\"variant\", \"ns\", \"cov\", \"mean_ns\", \"count\"}]}. Figures are ns a page of 4 KiB, of the median of
the batches of 32 in a round, and of that the median over the rounds; mean_ns is of the mean in a round:
seal_encrypted_ns, seal_checksum_ns, open_encrypted_ns, open_checksum_ns, and what encryption adds,
by rounds: seal_encryption_adds_ns, open_encryption_adds_ns. seal_encrypted_vs_checksum and
open_encrypted_vs_checksum are these times over each other.")]
pub(crate) struct SealArgs {
    /// Pages sealed and opened in a round, each way
    #[arg(long, value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(32..=16_777_216))]
    pages: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 21,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    step: &'static str,
    variant: &'static str,
    ns: f64,
    cov: f64,
    mean_ns: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct SealOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    #[serde(flatten)]
    figures: Map<String, Value>,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// What each round took to seal and to open.
type Rounds = [Vec<Round>; 2];

pub(super) fn run(args: &SealArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    let key = Sealer::encrypting().map_err(|error| Refusal::own(error.to_string()))?;
    let sealers = [key, Sealer::checking()];
    let machine = Machine::without_device();
    bind_to_cpu(0);
    let usage = Usage::now();
    let mut rounds: [Rounds; VARIANTS.len()] = Default::default();
    let mut bench = Bench::new();
    for round in 0..WARM_UPS + args.rounds as usize {
        for index in rotated(VARIANTS.len(), round) {
            let took = bench.round(&sealers[index], args.pages as usize)?;
            if round >= WARM_UPS {
                rounds[index].iter_mut().zip(took).for_each(|(rounds, took)| rounds.push(took));
            }
        }
    }
    output.finish(Ok(outcome(machine, &rounds, usage.since())))
}

/// A batch of pages, and how often its slots were handed out.
struct Bench {
    pages: Vec<[u8; PAGE_SIZE]>,
    generation: u32,
}

impl Bench {
    fn new() -> Bench {
        let byte = |page: usize, at: usize| (page * 31 + at * at / 7) as u8;
        let page = |page| std::array::from_fn(|at| byte(page, at));
        Bench { pages: (0..BATCH_PAGES).map(page).collect(), generation: 0 }
    }

    /// Seals and opens at least so many pages, and says what batches took.
    fn round(&mut self, sealer: &Sealer, pages: usize) -> Result<[Round; 2], Refusal> {
        let [mut seal_ns, mut open_ns] = [(); 2].map(|()| Vec::new());
        for _ in 0..pages.div_ceil(BATCH_PAGES) {
            self.generation += 1;
            let mut seals = [None; BATCH_PAGES];
            let start = now_ns();
            for (slot, (page, seal)) in (1..).zip(self.pages.iter_mut().zip(&mut seals)) {
                *seal = sealer.seal(slot, self.generation, page);
            }
            let sealed = now_ns();
            let open = |(slot, (page, seal)): (u64, (&mut [u8; PAGE_SIZE], &Option<Seal>))| {
                seal.is_some_and(|seal| sealer.open(slot, self.generation, page, seal))
            };
            let good = (1..).zip(self.pages.iter_mut().zip(&seals)).map(open).filter(|good| *good);
            if good.count() != BATCH_PAGES {
                return Err(Refusal::own("a page that was sealed did not open"));
            }
            seal_ns.push(sealed - start);
            open_ns.push(now_ns() - sealed);
        }
        Ok([Round::of(&mut seal_ns), Round::of(&mut open_ns)])
    }
}

fn outcome(
    machine: Machine,
    rounds: &[Rounds; VARIANTS.len()],
    disturbance: Disturbance,
) -> SealOutcome {
    let a_page = |batch_us: f64| batch_us * 1000.0 / BATCH_PAGES as f64;
    let (mut figures, mut ratios) = (Map::new(), Map::new());
    let mut rows = Vec::new();
    for (at, step) in ["seal", "open"].into_iter().enumerate() {
        for (variant, rounds) in VARIANTS.into_iter().zip(rounds) {
            let p50s: Vec<_> = rounds[at].iter().map(|round| a_page(round.p50_us)).collect();
            let means = rounds[at].iter().map(|round| a_page(round.mean_us)).collect();
            let (cov, mean_ns) = (variation(&p50s), median(means));
            let ns = median(p50s);
            figures.insert(format!("{step}_{variant}_ns"), ns.into());
            rows.push(Row { step, variant, ns, cov, mean_ns, count: rounds[at].len() });
        }
        // By rounds: what slows the machine down then slows both.
        let pairs = rounds[0][at].iter().zip(&rounds[1][at]);
        let added = pairs.map(|(with, without)| a_page(with.p50_us - without.p50_us));
        let added = median(added.collect());
        let pairs = rounds[0][at].iter().zip(&rounds[1][at]);
        let times = pairs.map(|(with, without)| with.p50_us / without.p50_us);
        ratios.insert(format!("{step}_encrypted_vs_checksum"), median(times.collect()).into());
        figures.insert(format!("{step}_encryption_adds_ns"), added.into());
    }
    let notes = vec!["ns a page of 4 KiB in the cache; AES-256-GCM beside CRC-32".into()];
    SealOutcome {
        schema: SCHEMA,
        bench: "seal",
        machine,
        disturbance,
        figures,
        ratios,
        rows,
        notes,
    }
}

impl Report for SealOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        let head = ["step", "variant", "ns", "CoV", "mean ns"];
        text +=
            &format!("{:<6}{:<12}{:>8}{:>9}{:>10}\n", head[0], head[1], head[2], head[3], head[4]);
        for Row { step, variant, ns, cov, mean_ns, .. } in &self.rows {
            let cov = cov * 100.0;
            text += &format!("{step:<6}{variant:<12}{ns:>8.1}{cov:>7.1} %{mean_ns:>10.1}\n");
        }
        let added = |step: &str| self.figures[&format!("{step}_encryption_adds_ns")].as_f64();
        for step in ["seal", "open"] {
            let ns = added(step).unwrap_or(f64::NAN);
            text += &format!("encryption adds {ns:.0} ns to {step} a page\n");
        }
        format!(
            "{text}\n{}\n\n{}",
            self.disturbance,
            ratios_text(&self.ratios) + &lines(&self.notes)
        )
    }
}
