//! The result of `analyze pages`.

use super::advice::Advice;
use super::measured::Measured;
use crate::measure::machine::Machine;
use crate::measure::report::{Report, lines};
use crate::measure::sample::{median, variation};
use crate::pages::checks::{Check, CheckRow, check_head, check_line, mbps};
use crate::pages::packing::{CODECS, Packing};
use crate::pages::source::{Source, SourceKind};
use serde::Serialize;
use softswap_cli::units;
use softswap_engine::codec::MAX_PACKED_BYTES;
use softswap_sys::PAGE_SIZE;

/// Columns of the longest bar.
const BAR: u64 = 40;

#[derive(Debug, Serialize)]
pub(super) struct PagesOutcome {
    schema: u32,
    analysis: &'static str,
    subject: String,
    kind: &'static str,
    machine: Machine,
    available_pages: u64,
    pages: u64,
    zero_pages: u64,
    other_pages: u64,
    same_filled_share: f64,
    zero_share: f64,
    other_share: f64,
    checks: Vec<CheckRow>,
    codecs: Vec<CodecRow>,
    advice: Advice,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct CodecRow {
    codec: &'static str,
    tried_pages: u64,
    packed_pages: u64,
    packed_share: f64,
    packed_bytes: u64,
    ratio: Option<f64>,
    pack_mbps: Option<f64>,
    unpack_mbps: Option<f64>,
    histogram: Vec<Size>,
    incompressible_pages: u64,
}

/// Pages that packed to this size, or down to that of the line before.
#[derive(Debug, Serialize)]
struct Size {
    to_bytes: u64,
    pages: u64,
}

impl PagesOutcome {
    pub(super) fn new(
        source: &Source,
        measured: &Measured,
        machine: Machine,
        notes: Vec<String>,
    ) -> PagesOutcome {
        let verdicts = &measured.verdicts;
        let packings = || CODECS.iter().map(|codec| codec.name).zip(&measured.packings);
        let found: Vec<_> = packings().map(|(name, packing)| (name, packing.clone())).collect();
        PagesOutcome {
            schema: 1,
            analysis: "pages",
            subject: source.name.clone(),
            kind: match source.kind {
                SourceKind::Process { .. } => "process",
                SourceKind::Core => "core",
                SourceKind::Dump => "dump",
            },
            machine,
            available_pages: source.pages(),
            pages: verdicts.pages,
            zero_pages: verdicts.zero,
            other_pages: verdicts.other,
            same_filled_share: verdicts.share(verdicts.same_filled()),
            zero_share: verdicts.share(verdicts.zero),
            other_share: verdicts.share(verdicts.other),
            checks: Check::ALL.into_iter().map(|check| check_row(check, measured)).collect(),
            codecs: packings().map(codec_row).collect(),
            advice: Advice::of(&found),
            notes,
        }
    }
}

fn check_row(check: Check, measured: &Measured) -> CheckRow {
    let pages = measured.verdicts.pages;
    let passes = measured.check_ns[check as usize].map(|ns| mbps(pages, ns));
    CheckRow {
        variant: check.name(),
        iterations: measured.verdicts.iterations(check),
        mbps: median(passes.to_vec()),
        cov: variation(&passes),
    }
}

fn codec_row((codec, packing): (&'static str, &Packing)) -> CodecRow {
    CodecRow {
        codec,
        tried_pages: packing.tried,
        packed_pages: packing.packed,
        packed_share: packing.packed_share(),
        packed_bytes: packing.packed_bytes,
        ratio: packing.ratio(),
        pack_mbps: packing.pack_mbps(),
        unpack_mbps: packing.unpack_mbps(),
        histogram: packing.lines().map(|(to_bytes, pages)| Size { to_bytes, pages }).collect(),
        incompressible_pages: packing.incompressible(),
    }
}

impl Report for PagesOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n{}\n", self.subject, self.machine.line());
        text += &format!(
            "  pages        {} ({}) of {}\n",
            units::count(self.pages),
            units::bytes(self.pages * PAGE_SIZE as u64),
            units::count(self.available_pages)
        );
        text += &format!(
            "  same-filled  {:.1} %: {:.1} % zeroes, {:.1} % another word\n\n",
            self.same_filled_share * 100.0,
            self.zero_share * 100.0,
            self.other_share * 100.0
        );
        text += &check_head();
        text += &self.checks.iter().map(|row| check_line(row) + "\n").collect::<String>();
        text += &codec_table(&self.codecs);
        text += &self.codecs.iter().map(histogram_text).collect::<String>();
        let Advice { codec, pool_percent, reason } = &self.advice;
        text += &format!("\nadvice: --codec {codec} --pool {pool_percent}%\n  {reason}\n");
        text + &lines(&self.notes)
    }
}

fn codec_table(rows: &[CodecRow]) -> String {
    let mut text = format!(
        "\n{:<8}{:>10}{:>8}{:>12}{:>14}\n",
        "codec", "packed", "ratio", "pack MB/s", "unpack MB/s"
    );
    let shown = |figure: Option<f64>, digits: usize| {
        figure.map_or("-".to_string(), |figure| format!("{figure:.digits$}"))
    };
    for row in rows {
        text += &format!(
            "{:<8}{:>8.1} %{:>8}{:>12}{:>14}\n",
            row.codec,
            row.packed_share * 100.0,
            shown(row.ratio, 2),
            shown(row.pack_mbps, 0),
            shown(row.unpack_mbps, 0)
        );
    }
    text
}

fn histogram_text(row: &CodecRow) -> String {
    if row.tried_pages == 0 {
        return String::new();
    }
    let sizes = row.histogram.iter().map(|size| (format!("{}", size.to_bytes), size.pages));
    let over = (format!("over {MAX_PACKED_BYTES}"), row.incompressible_pages);
    let all: Vec<_> = sizes.chain([over]).collect();
    let most = all.iter().map(|(_, pages)| *pages).max().unwrap_or(1).max(1);
    let mut text = format!("\n{:>12}{:>10}   {}\n", "to bytes", "pages", row.codec);
    for (size, pages) in all {
        let bar = "#".repeat((pages * BAR).div_ceil(most) as usize);
        text += format!("{size:>12}{:>10}   {bar}", units::count(pages)).trim_end();
        text += "\n";
    }
    text
}
