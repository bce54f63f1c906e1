//! SVG plots for a page.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;

const WIDTH: u32 = 720;
const HEIGHT: u32 = 260;
const FONT: (&str, u32) = ("sans-serif", 14);

/// Distinguishable by colour-blind people (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 158, 115),
    RGBColor(86, 180, 233),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    BytesPerSecond,
    PerSecond,
    Share,
    Seconds,
    LogNanoseconds,
}

#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    pub(crate) x: Unit,
    pub(crate) y: Unit,
    pub(crate) is_stacked: bool,
    pub(crate) series: Vec<Series>,
    pub(crate) bound: Option<Series>,
}

impl Unit {
    fn text(self, value: f64) -> String {
        use crate::units::nanoseconds;
        match self {
            Unit::Bytes | Unit::BytesPerSecond => format!("{value:.1}"),
            Unit::PerSecond => match value {
                1e6.. => format!("{:.1}M/s", value / 1e6),
                1e3.. => format!("{:.1}k/s", value / 1e3),
                _ => format!("{value:.0}/s"),
            },
            Unit::Share => format!("{:.0} %", value * 100.0),
            Unit::Seconds => match value {
                7200.0.. => format!("{:.1} h", value / 3600.0),
                120.0.. => format!("{:.1} min", value / 60.0),
                10.0.. => format!("{value:.0} s"),
                _ => format!("{value:.1} s"),
            },
            Unit::LogNanoseconds => nanoseconds(10f64.powf(value) as u64),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Axis {
    unit: Unit,
    one: f64,
    name: &'static str,
}

impl Axis {
    /// Chooses a readable unit for values up to `most`.
    fn of(unit: Unit, most: f64) -> Axis {
        if !matches!(unit, Unit::Bytes | Unit::BytesPerSecond) {
            return Axis { unit, one: 1.0, name: "" };
        }
        let names = ["B", "KiB", "MiB", "GiB", "TiB"];
        let at = (most.max(1.0).log2() / 10.0) as usize;
        let at = at.min(names.len() - 1);
        Axis { unit, one: 1024f64.powi(at as i32), name: names[at] }
    }

    fn text(self, value: f64) -> String {
        let end = if self.unit == Unit::BytesPerSecond { "/s" } else { "" };
        match self.unit {
            Unit::Bytes | Unit::BytesPerSecond => {
                format!("{} {}{end}", (value * 10.0).round() / 10.0, self.name)
            }
            unit => unit.text(value),
        }
    }
}

impl Plot {
    /// On an error returns an HTML paragraph.
    pub(crate) fn svg(&self) -> String {
        let mut text = String::new();
        let drawn = {
            let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
            self.draw(&area).and_then(|()| area.present().map_err(Into::into))
        };
        match drawn {
            Ok(()) => text,
            Err(error) => format!("<p>{} could not be drawn: {error}</p>", self.title),
        }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let mut series = if self.is_stacked { stacked(&self.series) } else { self.series.clone() };
        let mut bound = self.bound.clone();
        let ends = |series: &[Series], bound: &Option<Series>| {
            let all = || series.iter().chain(bound).flat_map(|series| &series.points);
            (extent(all().map(|(x, _)| *x)), extent(all().map(|(_, y)| *y)))
        };
        let ((_, high), (_, top)) = ends(&series, &bound);
        let (x, y) = (Axis::of(self.x, high), Axis::of(self.y, top));
        for series in series.iter_mut().chain(&mut bound) {
            let scale =
                |(at, value): &mut (f64, f64)| (*at, *value) = (*at / x.one, *value / y.one);
            series.points.iter_mut().for_each(scale);
        }
        let ((low, high), (_, top)) = ends(&series, &bound);
        let top = if self.y == Unit::Share { 1.0 } else { top.max(1e-9) * 1.05 };
        let high = if high > low { high } else { low + 1.0 };
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(86)
            .build_cartesian_2d(low..high, 0.0..top)?;
        chart
            .configure_mesh()
            .x_labels(9)
            .y_labels(5)
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|value| x.text(*value))
            .y_label_formatter(&|value| y.text(*value))
            .label_style(FONT)
            .draw()?;
        // Later areas cover the lower part of earlier ones.
        let order: Vec<usize> = match self.is_stacked {
            true => (0..series.len()).rev().collect(),
            false => (0..series.len()).collect(),
        };
        for at in order {
            let color = color_of(at);
            let points = series[at].points.iter().copied();
            if self.is_stacked {
                chart.draw_series(AreaSeries::new(points, 0.0, color.filled()))?;
            } else {
                chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
            }
        }
        if let Some(bound) = &bound {
            let line = LineSeries::new(bound.points.iter().copied(), RED.stroke_width(1));
            chart.draw_series(line)?;
        }
        Ok(())
    }

    /// Empty for a single series.
    pub(crate) fn legend(&self) -> Vec<Key<'_>> {
        let of = |name, RGBColor(r, g, b), is_line| Key {
            name,
            color: format!("#{r:02x}{g:02x}{b:02x}"),
            is_line,
        };
        let series = self.series.iter().enumerate();
        let mut keys: Vec<Key<'_>> =
            series.map(|(at, it)| of(&it.name, color_of(at), !self.is_stacked)).collect();
        keys.extend(self.bound.iter().map(|bound| of(&bound.name, RED, true)));
        if keys.len() > 1 { keys } else { Vec::new() }
    }
}

pub(crate) struct Key<'a> {
    pub(crate) name: &'a str,
    pub(crate) color: String,
    pub(crate) is_line: bool,
}

fn color_of(at: usize) -> RGBColor {
    COLORS[at % COLORS.len()]
}

/// Adds to each series those before it.
fn stacked(series: &[Series]) -> Vec<Series> {
    let mut below: Vec<f64> = Vec::new();
    let mut lifted = Vec::with_capacity(series.len());
    for Series { name, points } in series {
        below.resize(points.len(), 0.0);
        let points = points.iter().zip(&mut below).map(|((x, y), sum)| {
            *sum += y;
            (*x, *sum)
        });
        lifted.push(Series { name: name.clone(), points: points.collect() });
    }
    lifted
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let sound = values.filter(|value| value.is_finite());
    let (low, high) =
        sound.fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(it), high.max(it)));
    if low > high { (0.0, 0.0) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>, is_stacked: bool) -> Plot {
        let series = |name: &str| Series { name: name.into(), points: points.clone() };
        Plot {
            title: "a plot",
            x: Unit::Seconds,
            y: Unit::Bytes,
            is_stacked,
            series: vec![series("one"), series("other")],
            bound: Some(series("bound")),
        }
    }

    #[test]
    fn plots_contain_only_finite_numbers() {
        let many = (0..512).map(|at| (f64::from(at), f64::from(at % 7) * 1e9)).collect();
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5.0), (1.0, 6.0)], many] {
            for is_stacked in [false, true] {
                let svg = plot(points.clone(), is_stacked).svg();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?}");
            }
        }
    }

    #[test]
    fn legend_lists_each_series() {
        for is_stacked in [false, true] {
            let plot = plot(vec![(0.0, 1.0)], is_stacked);
            let keys: Vec<_> = plot.legend().iter().map(|it| (it.name, it.is_line)).collect();
            assert_eq!(keys, [("one", !is_stacked), ("other", !is_stacked), ("bound", true)]);
        }
        let series = vec![Series { name: "alone".into(), points: Vec::new() }];
        assert!(Plot { series, bound: None, ..plot(Vec::new(), false) }.legend().is_empty());
    }

    #[test]
    fn areas_are_stacked() {
        let of = |points: &[(f64, f64)]| Series { name: String::new(), points: points.to_vec() };
        let lifted = stacked(&[of(&[(0.0, 1.0), (1.0, 2.0)]), of(&[(0.0, 5.0), (1.0, 0.0)])]);
        assert_eq!(lifted[1].points, [(0.0, 6.0), (1.0, 2.0)]);
    }

    #[test]
    fn axis_ticks_are_round() {
        assert_eq!(Unit::Seconds.text(90.0), "90 s");
        assert_eq!(Unit::Seconds.text(7_200.0), "2.0 h");
        assert_eq!(Unit::PerSecond.text(12_345.0), "12.3k/s");
        assert_eq!(Unit::LogNanoseconds.text(6.0), "1.0 ms");
        assert_eq!(Unit::Share.text(0.5), "50 %");
        assert_eq!(Axis::of(Unit::Bytes, 3e8).text(50.0), "50 MiB");
        assert_eq!(Axis::of(Unit::BytesPerSecond, 5e3).text(2.5), "2.5 KiB/s");
        assert_eq!(Axis::of(Unit::Seconds, 3e8).text(30.0), "30 s");
    }
}
