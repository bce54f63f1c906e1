//! A flame graph (Gregg, 2011) as SVG, without scripts. Tooltips show full names.

use crate::page::escaped;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 17.0;
const HEAD: f64 = 44.0;
const FOOT: f64 = 24.0;
const LETTER: f64 = 7.0;
/// Narrower frames are omitted.
const MIN: f64 = 0.4;
const MAX_ROWS: usize = 120;

#[derive(Default)]
struct Frame {
    took: u64,
    calls: BTreeMap<String, Frame>,
}

/// Draws stacks with their costs, outermost function first.
#[must_use]
pub fn svg(
    title: &str,
    note: &str,
    stacks: impl IntoIterator<Item = (Vec<String>, u64)>,
    unit: fn(u64) -> String,
) -> String {
    let mut root = Frame::default();
    for (stack, took) in stacks {
        root.add(stack.into_iter().take(MAX_ROWS), took);
    }
    let rows = root.rows();
    let height = HEAD + rows as f64 * ROW + FOOT;
    let (title, note) = (escaped(title), escaped(note));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fffdf7\"/>\n\
         <text x=\"{}\" y=\"20\" text-anchor=\"middle\" font-size=\"16\">{title}</text>\n\
         <text x=\"{}\" y=\"37\" text-anchor=\"middle\" fill=\"#555\">{note}</text>\n",
        WIDTH / 2.0,
        WIDTH / 2.0
    );
    let width = WIDTH - 2.0 * MARGIN;
    let mut drawing = Drawing {
        text: &mut text,
        all: root.took.max(1),
        scale: width / root.took.max(1) as f64,
        bottom: height - FOOT,
        unit,
    };
    drawing.draw("all", &root, MARGIN, 0);
    text.push_str("</svg>\n");
    text
}

impl Frame {
    fn add(&mut self, mut stack: impl Iterator<Item = String>, took: u64) {
        self.took += took;
        if let Some(name) = stack.next() {
            self.calls.entry(name).or_default().add(stack, took);
        }
    }

    fn rows(&self) -> usize {
        1 + self.calls.values().map(Frame::rows).max().unwrap_or(0)
    }
}

struct Drawing<'t> {
    text: &'t mut String,
    all: u64,
    scale: f64,
    bottom: f64,
    unit: fn(u64) -> String,
}

impl Drawing<'_> {
    fn draw(&mut self, name: &str, frame: &Frame, left: f64, row: usize) {
        let width = frame.took as f64 * self.scale;
        if width < MIN {
            return;
        }
        let top = self.bottom - (row + 1) as f64 * ROW;
        let share = 100.0 * frame.took as f64 / self.all as f64;
        let shown = name.chars().count() as f64 * LETTER <= width - 6.0;
        let room = ((width - 6.0) / LETTER) as usize;
        let label = match shown {
            true => name.to_string(),
            false if room > 3 => name.chars().take(room - 2).chain("..".chars()).collect(),
            false => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.text,
            "<g><title>{} ({}, {share:.1} %)</title><rect x=\"{left:.1}\" y=\"{top:.1}\" \
             width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            escaped(name),
            escaped(&(self.unit)(frame.took)),
            ROW - 1.0,
            color(name),
            left + 3.0,
            top + 12.5,
            escaped(&label)
        );
        let mut left = left;
        for (name, called) in &frame.calls {
            self.draw(name, called, left, row + 1);
            left += called.took as f64 * self.scale;
        }
    }
}

/// Warm, and depends only on the name.
fn color(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
    format!("hsl({},{}%,{}%)", 15 + hash % 40, 75 + hash / 40 % 20, 62 + hash / 800 % 12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::nanoseconds;

    fn stack(names: &[&str], took: u64) -> (Vec<String>, u64) {
        (names.iter().map(ToString::to_string).collect(), took)
    }

    fn place(svg: &str, name: &str) -> (f64, f64) {
        let line = svg.lines().find(|line| line.contains(&format!("<title>{name} (")));
        let line = line.unwrap_or_else(|| panic!("{name}: {svg}"));
        let number = |attribute: &str| {
            let (_, rest) = line.split_once(&format!("{attribute}=\"")).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        (number("rect x"), number("width"))
    }

    #[test]
    fn frame_width_is_inclusive_time() {
        let stacks = [
            stack(&["main", "hot"], 1_000),
            stack(&["main", "cold<int>"], 2_000),
            stack(&["main"], 1_000),
            stack(&["main", "tiny"], 1),
        ];
        let svg = svg("a & b", "", stacks, nanoseconds);
        assert!(svg.starts_with("<?xml") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &amp; b") && svg.contains("4.0 us"));
        let (main, cold) = (place(&svg, "main"), place(&svg, "cold&lt;int&gt;"));
        assert!((main.1 - 1180.0).abs() < 1.0 && (cold.1 - 590.0).abs() < 1.0);
        let hot = place(&svg, "hot");
        assert!((hot.0 - (cold.0 + cold.1)).abs() < 1.0, "the frames are adjacent");
        assert!(!svg.contains("tiny"), "too narrow to see");
    }

    #[test]
    fn empty_profile_is_rendered() {
        let svg = svg("t", "n", [], nanoseconds);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
