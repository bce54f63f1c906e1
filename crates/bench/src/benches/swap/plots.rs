//! The plots of `bench swap`, as SVG.

use super::outcome::{Distribution, PatternRow, ProgramRow, SwapOutcome};
use super::plan::PATTERN_SHARES;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

type Drawn = Result<String, Box<dyn Error>>;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 400;
const FONT: (&str, u32) = ("sans-serif", 14);
const TITLE: (&str, u32) = ("sans-serif", 18);
/// Of the room between two groups of bars, the part that bars take.
const BARS: f64 = 0.8;

/// Told apart by people who do not see all colours, too (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

fn color(at: usize) -> RGBColor {
    COLORS[at % COLORS.len()]
}

/// One plot, under the heading that it belongs to.
pub(super) struct Plot {
    pub(super) heading: &'static str,
    /// Of its file, without the ending.
    pub(super) name: String,
    pub(super) svg: String,
}

const THROUGHPUTS: &str = "Touches a second, by pattern";
const LATENCIES: &str = "Latencies";
const SLOWDOWNS: &str = "Slowdown by share of memory";
pub(super) const HEADINGS: [&str; 3] = [THROUGHPUTS, LATENCIES, SLOWDOWNS];

/// Every plot of what was found.
pub(super) fn all(outcome: &SwapOutcome) -> Result<Vec<Plot>, Box<dyn Error>> {
    let mut all = throughputs(outcome)?;
    all.extend(latencies(outcome)?);
    all.extend(slowdowns(outcome)?);
    Ok(all)
}

fn throughputs(outcome: &SwapOutcome) -> Result<Vec<Plot>, Box<dyn Error>> {
    let mut all = Vec::new();
    for (data, share, threads) in groups(&outcome.rows) {
        let of_group = |row: &&PatternRow| {
            (row.data, row.share_percent, row.threads) == (data, share, threads)
        };
        let rows: Vec<&PatternRow> = outcome.rows.iter().filter(of_group).collect();
        let word = if threads == 1 { "thread" } else { "threads" };
        let title = format!("{data} data, {share} % fit, {threads} {word}");
        let name = format!("throughput_{data}_{share}_t{threads}");
        all.push(Plot { heading: THROUGHPUTS, name, svg: throughput(&title, &rows)? });
    }
    Ok(all)
}

fn groups(rows: &[PatternRow]) -> Vec<(&'static str, u32, u32)> {
    let mut all = Vec::new();
    for row in rows {
        let group = (row.data, row.share_percent, row.threads);
        if !all.contains(&group) {
            all.push(group);
        }
    }
    all
}

fn latencies(outcome: &SwapOutcome) -> Result<Vec<Plot>, Box<dyn Error>> {
    let mut all = Vec::new();
    for (name, title, distributions_of) in [
        ("faults", "faults of softswap, by tier", &outcome.faults),
        ("touches", "touches in the first pattern, by side", &outcome.touches),
    ] {
        for share in PATTERN_SHARES {
            let of_share = |one: &&Distribution| one.share_percent == share;
            let of: Vec<_> = distributions_of.iter().filter(of_share).collect();
            if !of.is_empty() {
                let svg = distributions(&format!("{title}, {share} % fit"), &of)?;
                all.push(Plot { heading: LATENCIES, name: format!("{name}_{share}"), svg });
            }
        }
    }
    Ok(all)
}

fn slowdowns(outcome: &SwapOutcome) -> Result<Vec<Plot>, Box<dyn Error>> {
    let programs = distinct(outcome.programs.iter().map(|row| row.program.to_string()));
    let plot = |program: String| {
        let of_it = |row: &&ProgramRow| row.program == program && row.came_through;
        let rows: Vec<&ProgramRow> = outcome.programs.iter().filter(of_it).collect();
        let svg = slowdown(&program, &rows)?;
        Ok(Plot { heading: SLOWDOWNS, name: format!("slowdown_{program}"), svg })
    };
    programs.into_iter().map(plot).collect()
}

/// Touches a second: a group of bars for each pattern, a bar for each side.
fn throughput(title: &str, rows: &[&PatternRow]) -> Drawn {
    let patterns = distinct(rows.iter().map(|row| row.pattern.to_string()));
    let names = distinct(rows.iter().map(|row| row.side.to_string()));
    let values = || rows.iter().map(|row| row.touches_per_s);
    let y = decades(values());
    svg(WIDTH, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, TITLE)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(Groups(patterns.len()), y.clone().log_scale())?;
        let label = |at: &f64| patterns.get(*at as usize).cloned().unwrap_or_default();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_label_formatter(&label)
            .y_label_formatter(&|value| short(*value))
            .y_desc("touches/s, logarithmic")
            .label_style(FONT)
            .draw()?;
        let width = BARS / names.len().max(1) as f64;
        for (bar, name) in names.iter().enumerate() {
            let of_name = rows.iter().filter(|row| row.side == name);
            let bars = of_name.map(|row| {
                let group = patterns.iter().position(|pattern| pattern == row.pattern).unwrap_or(0);
                let left = group as f64 + (1.0 - BARS) / 2.0 + bar as f64 * width;
                let corners = [(left, y.start), (left + width, row.touches_per_s)];
                Rectangle::new(corners, color(bar).filled())
            });
            let series = chart.draw_series(bars)?.label(name);
            series.legend(move |at| key(at, bar));
        }
        legend(&mut chart)
    })
}

/// The share of touches or faults that are over by each time.
fn distributions(title: &str, of: &[&Distribution]) -> Drawn {
    let lines: Vec<_> = of
        .iter()
        .map(|one| {
            (one.name.clone(), one.us.iter().copied().zip(one.share.iter().copied()).collect())
        })
        .collect();
    let x = decades(of.iter().flat_map(|one| one.us.iter().copied()));
    svg(WIDTH, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, TITLE)
            .margin(10)
            .x_label_area_size(45)
            .y_label_area_size(60)
            .build_cartesian_2d(x.log_scale(), 0.0..1.0f64)?;
        chart
            .configure_mesh()
            .x_desc("microseconds")
            .y_desc("share over by then")
            .x_label_formatter(&|value| short(*value))
            .label_style(FONT)
            .draw()?;
        draw_lines(&mut chart, lines)?;
        legend(&mut chart)
    })
}

/// One program's time over its time in memory, by how much of it fits.
fn slowdown(program: &str, rows: &[&ProgramRow]) -> Drawn {
    let sides = distinct(rows.iter().map(|row| row.label()));
    let of_side = |side: &String| {
        let mut points: Vec<_> = rows
            .iter()
            .filter(|row| row.label() == *side)
            .map(|row| (f64::from(row.share_percent), row.slowdown))
            .collect();
        // In memory nobody swaps, so the kernel's sides begin there.
        if !points.iter().any(|(share, _)| *share == 100.0) {
            points.push((100.0, 1.0));
        }
        points.sort_by(|a, b| b.0.total_cmp(&a.0));
        (side.clone(), points)
    };
    let lines: Vec<_> = sides.iter().filter(|side| *side != "in_memory").map(of_side).collect();
    let y = decades(rows.iter().map(|row| row.slowdown).chain([1.0]));
    svg(WIDTH / 2, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(program, TITLE)
            .margin(10)
            .x_label_area_size(45)
            .y_label_area_size(60)
            .build_cartesian_2d(100.0..25.0f64, y.log_scale())?;
        chart
            .configure_mesh()
            .x_labels(4)
            .x_desc("share of its memory in %")
            .y_desc("times as long as in memory")
            .y_label_formatter(&|value| short(*value))
            .label_style(FONT)
            .draw()?;
        draw_lines(&mut chart, lines)?;
        legend(&mut chart)
    })
}

/// So wide a picture of what is drawn.
fn svg(
    width: u32,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>>,
) -> Drawn {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (width, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(text)
}

type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
type Line = (String, Vec<(f64, f64)>);

fn draw_lines<X, Y>(chart: &mut Chart<'_, '_, X, Y>, lines: Vec<Line>) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for (at, (name, points)) in lines.into_iter().enumerate() {
        let style = color(at).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(name)
            .legend(move |to| key(to, at));
    }
    Ok(())
}

fn legend<'a, 'b: 'a, X, Y>(chart: &mut Chart<'a, 'b, X, Y>) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(FONT)
        .draw()?;
    Ok(())
}

/// A patch of colour beside a name.
fn key((x, y): (i32, i32), at: usize) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 14, y + 5)], color(at).filled())
}

/// Whole powers of ten around all of these.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let sound = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = sound.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high {
        return 1.0..10.0;
    }
    let (low, high) = (low.log10().floor(), high.log10().ceil());
    10f64.powf(low)..10f64.powf(high.max(low + 1.0))
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    names.fold(Vec::new(), |mut all, name| {
        if !all.contains(&name) {
            all.push(name);
        }
        all
    })
}

/// `1k`, `20k`, `3M`, `0.5`
fn short(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", value / 1e6),
        1e3.. => format!("{}k", value / 1e3),
        _ => format!("{value}"),
    }
}

/// An axis with a name in the middle of each of so many groups.
struct Groups(usize);

impl Ranged for Groups {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = value / self.0.max(1) as f64;
        limit.0 + (share * f64::from(limit.1 - limit.0)) as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        (0..self.0).map(|group| group as f64 + 0.5).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.0 as f64
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Groups {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_holds_all_values() {
        assert_eq!(decades([3.0, 45_000.0].into_iter()), 1.0..100_000.0);
        assert_eq!(decades([2.0].into_iter()), 1.0..10.0);
        assert_eq!(decades([f64::NAN].into_iter()), 1.0..10.0);
    }

    #[test]
    fn a_plot_names_its_lines_once() {
        let one = |name: &str| Distribution {
            name: name.into(),
            share_percent: 25,
            us: vec![1.0, 2.0, 500.0],
            share: vec![0.0, 0.5, 1.0],
        };
        let (disk, pool) = (one("disk"), one("pool"));
        let svg = distributions("faults", &[&disk, &pool]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!((svg.matches("disk").count(), svg.matches("pool").count()), (1, 1), "{svg}");
    }
}
