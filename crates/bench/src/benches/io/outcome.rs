//! The result of `bench io`: rows, ratios, and what each way of waiting did.

use super::args::IoArgs;
use super::meter::{Meter, Way};
use super::target::Target;
use super::variants::{FioFor, Variant, What};
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::poll_counts::PollCounts;
use crate::measure::report::{Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{Round, median};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_engine::store::io::Device;
use softswap_engine::store::io::poll::mode::Mode;
use std::collections::BTreeMap;

/// Everything that was found.
pub(super) struct Found {
    pub(super) variants: Vec<Variant>,
    pub(super) fio_version: Option<String>,
    pub(super) timer_overshoot_ns: Vec<f64>,
    pub(super) disturbance: Disturbance,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct IoOutcome {
    schema: u32,
    bench: &'static str,
    target: String,
    bytes: u64,
    rounds: u32,
    seconds: f64,
    machine: Machine,
    /// `null`: left out.
    fio: Option<String>,
    io_uring: bool,
    direct: bool,
    /// Polled reads asked the device itself (IOPOLL).
    device_polling: bool,
    timer_overshoot_us: f64,
    /// What hybrid came to believe of it.
    hybrid_overshoot_us: f64,
    #[serde(flatten)]
    disturbance: Disturbance,
    ratios: Map<String, Value>,
    rows: Vec<IoRow>,
    modes: BTreeMap<&'static str, PollCounts>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct IoRow {
    variant: String,
    by: &'static str,
    depth: usize,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    mb_per_s: f64,
    cpu_us: f64,
    cov: f64,
    count: usize,
}

impl IoOutcome {
    pub(super) fn new(
        found: Found,
        meter: &Meter<'_>,
        target: &Target,
        args: &IoArgs,
    ) -> IoOutcome {
        let facts = target.device.describe();
        let ratios = ratios(&found.variants);
        let mut notes = target.notes.clone();
        notes.extend(found.notes);
        if !facts.direct {
            notes.push("no O_DIRECT here: reads come from the page cache".into());
        }
        if !facts.io_uring {
            notes.push("no io_uring here: every read waits by interrupt".into());
        }
        for kind in [FioFor::Interrupt, FioFor::Poll] {
            if let Some(best) = best_fio(&found.variants, kind)
                && let What::Fio(_, job) = &best.what
            {
                let kind = format!("{kind:?}").to_lowercase();
                let options = job.options.join(" ");
                notes.push(format!("fio's fastest for {kind}: {} ({options})", best.name));
            }
        }
        IoOutcome {
            schema: SCHEMA,
            bench: "io",
            target: target.name.clone(),
            bytes: target.bytes,
            rounds: args.rounds,
            seconds: args.seconds.as_secs_f64(),
            machine: target.machine.clone(),
            fio: found.fio_version,
            io_uring: facts.io_uring,
            direct: facts.direct,
            device_polling: facts.device_polling,
            timer_overshoot_us: median(found.timer_overshoot_ns) / 1000.0,
            hybrid_overshoot_us: meter.ways[Mode::Hybrid as usize].polling.overshoot_ns() as f64
                / 1000.0,
            disturbance: found.disturbance,
            ratios,
            rows: found.variants.iter().map(row).collect(),
            modes: meter
                .ways
                .iter()
                .map(|Way { mode, stats, .. }| (mode.name(), PollCounts::of(stats)))
                .collect(),
            notes,
        }
    }
}

fn row(variant: &Variant) -> IoRow {
    let figures = variant.samples.figures();
    IoRow {
        variant: variant.name.clone(),
        by: if matches!(variant.what, What::Fio(..)) { "fio" } else { "softswap" },
        depth: variant.depth(),
        mean_us: figures.mean_us,
        p50_us: figures.p50_us,
        p99_us: figures.p99_us,
        mb_per_s: median(variant.mb_per_s.clone()),
        cpu_us: median(variant.cpu_us.clone()),
        cov: figures.cov,
        count: figures.count,
    }
}

fn best_fio(variants: &[Variant], kind: FioFor) -> Option<&Variant> {
    let of_kind = |variant: &&Variant| matches!(variant.what, What::Fio(of, _) if of == kind);
    variants.iter().filter(of_kind).min_by(|one, other| {
        let p50 = |variant: &Variant| variant.samples.figures().p50_us;
        p50(one).total_cmp(&p50(other))
    })
}

fn ratios(variants: &[Variant]) -> Map<String, Value> {
    let ours = |wanted: Mode| {
        variants.iter().find(|variant| matches!(variant.what, What::Read(mode) if mode == wanted))
    };
    let pread = variants.iter().find(|variant| matches!(variant.what, What::Pread));
    let (interrupt, poll) = (ours(Mode::Interrupt), ours(Mode::Poll));
    let (hybrid, auto) = (ours(Mode::Hybrid), ours(Mode::Auto));
    let latencies = [
        ("latency_interrupt_vs_poll", interrupt, poll),
        ("latency_hybrid_vs_poll", hybrid, poll),
        ("latency_auto_vs_poll", auto, poll),
        ("latency_interrupt_vs_pread", interrupt, pread),
        ("latency_softswap_vs_fio_interrupt", interrupt, best_fio(variants, FioFor::Interrupt)),
        ("latency_softswap_vs_fio_poll", poll, best_fio(variants, FioFor::Poll)),
    ];
    let mut ratios = Map::new();
    for (key, one, other) in latencies {
        let ratio = |figure: fn(&Round) -> f64| {
            one.zip(other).map(|(one, other)| one.samples.over(&other.samples, figure))
        };
        ratios.insert(key.into(), ratio(|round| round.p50_us).into());
        ratios.insert(format!("{key}_mean"), ratio(|round| round.mean_us).into());
    }
    let cpu_us = |of: Option<&Variant>| of.map_or(f64::NAN, |v| median(v.cpu_us.clone()));
    let extra = |of| cpu_us(of) - cpu_us(interrupt);
    ratios.insert("extra_cpu_hybrid_vs_poll".into(), share(extra(hybrid), extra(poll)).into());
    ratios
}

/// Of something; nothing can be said where there is none of it.
fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

impl Report for IoOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n{}\n\n", self.machine.line(), self.target);
        text += &format!(
            "{:<20}{:>10}{:>10}{:>10}{:>9}{:>9}{:>8}{:>9}\n",
            "variant", "mean us", "p50 us", "p99 us", "MB/s", "CPU us", "CoV", "count"
        );
        for row in &self.rows {
            text += &format!(
                "{:<20}{:>10.2}{:>10.2}{:>10.2}{:>9.1}{:>9.2}{:>6.1} %{:>9}\n",
                row.variant,
                row.mean_us,
                row.p50_us,
                row.p99_us,
                row.mb_per_s,
                row.cpu_us,
                row.cov * 100.0,
                row.count
            );
        }
        text.push('\n');
        for (mode, counts) in &self.modes {
            let PollCounts { considered, polled, hit, slept, overslept } = counts;
            text += &format!(
                "{mode}: {considered} reads, {polled} polled for, {hit} found so, {slept} slept on, \
                 {overslept} overslept\n"
            );
        }
        text += &format!(
            "timers overshoot by {:.1} us; the device itself is {}asked\n{}\n\n",
            self.timer_overshoot_us,
            if self.device_polling { "" } else { "not " },
            self.disturbance
        );
        text + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fio::Job;
    use super::super::meter::Slice;
    use super::*;

    fn variant(name: &str, what: What, p50_us: f64, cpu_us: f64) -> Variant {
        let mut variant = Variant::new(name, what);
        let round = Round { mean_us: p50_us + 1.0, p50_us, p99_us: 2.0 * p50_us, count: 10 };
        variant.add(Slice { round, mb_per_s: 1.0, cpu_us });
        variant
    }

    fn read(mode: Mode, p50_us: f64, cpu_us: f64) -> Variant {
        variant(mode.name(), What::Read(mode), p50_us, cpu_us)
    }

    fn fio(kind: FioFor, p50_us: f64) -> Variant {
        let job = Job { options: &[], depth: 1, writes: false };
        variant("fio", What::Fio(kind, job), p50_us, 1.0)
    }

    #[test]
    fn ratios_are_to_the_fastest_of_fio() {
        let all = [
            read(Mode::Interrupt, 60.0, 20.0),
            read(Mode::Poll, 40.0, 40.0),
            read(Mode::Hybrid, 42.0, 30.0),
            read(Mode::Auto, 40.0, 40.0),
            fio(FioFor::Interrupt, 80.0),
            fio(FioFor::Interrupt, 50.0),
            fio(FioFor::Poll, 80.0),
        ];
        let ratios = ratios(&all);
        let get = |key: &str| ratios[key].as_f64().unwrap();
        assert_eq!(get("latency_interrupt_vs_poll"), 1.5);
        assert_eq!(get("latency_interrupt_vs_poll_mean"), 61.0 / 41.0);
        assert_eq!(get("latency_softswap_vs_fio_interrupt"), 1.2);
        assert_eq!(get("latency_softswap_vs_fio_poll"), 0.5);
        assert_eq!(get("latency_hybrid_vs_poll"), 1.05);
        assert_eq!(get("extra_cpu_hybrid_vs_poll"), 0.5);
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let all = [read(Mode::Interrupt, 60.0, 20.0), read(Mode::Poll, 40.0, 10.0)];
        let ratios = ratios(&all);
        for key in ["latency_softswap_vs_fio_poll", "latency_hybrid_vs_poll"] {
            assert!(ratios[key].is_null(), "{key}");
        }
        assert!(ratios["extra_cpu_hybrid_vs_poll"].is_null(), "poll took no more than interrupt");
    }
}
