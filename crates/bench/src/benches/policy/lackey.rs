//! Traces of real programs, as `valgrind --tool=lackey --trace-mem=yes` prints them.

use super::trace::Trace;
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::PAGE_SIZE;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;

/// 1 GiB of memory for a trace.
const MOST_TOUCHES: usize = 1 << 28;
/// One instruction moves less.
const LARGEST_BYTES: u64 = PAGE_SIZE as u64;
/// What is shown of a line that is not understood.
const SHOWN_BYTES: usize = 40;

/// Why a trace cannot be had.
#[derive(Debug)]
pub(crate) enum Bad {
    Unreadable(io::Error),
    /// Number of the line, and how it begins.
    Line(usize, String),
    TooLong(usize),
    Empty,
}

/// Reads a trace from a file, line by line.
pub(super) fn read(path: &Path) -> Result<Trace, Refusal> {
    let file = File::open(path).map_err(Bad::Unreadable);
    let touches = file.and_then(|file| touches(BufReader::with_capacity(1 << 20, file)));
    let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
    touches.map(|touches| Trace::new(&name, touches)).map_err(|bad| refusal(path, &bad))
}

fn refusal(path: &Path, bad: &Bad) -> Refusal {
    let what = match bad {
        Bad::Unreadable(error) => format!("it cannot be read: {}", plain(error)),
        Bad::Line(number, text) => format!(
            "line {number} ({text:?}) is not one of lackey's; record it with `valgrind \
             --tool=lackey --trace-mem=yes --log-file={} PROGRAM`",
            path.display()
        ),
        Bad::TooLong(number) => format!(
            "more than {MOST_TOUCHES} touches of pages up to line {number}; cut it short with \
             `head -n {number}`, or record less of the program"
        ),
        Bad::Empty => "it has no touch of memory; was it recorded with --trace-mem=yes?".into(),
    };
    Refusal::usage(format!("--trace {}: {what}", path.display()))
}

/// The pages that loads and stores touch, numbered in the order of addresses.
/// Instructions are left out: softswap does not manage code.
pub(crate) fn touches(mut lines: impl BufRead) -> Result<Vec<u32>, Bad> {
    let mut numbers = HashMap::new();
    let mut touches: Vec<u32> = Vec::new();
    let (mut line, mut count, mut last) = (Vec::new(), 0, None);
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).map_err(Bad::Unreadable)? == 0 {
            break;
        }
        count += 1;
        let pages = match parse(line.trim_ascii_end()) {
            Line::Touch(pages) => pages,
            Line::NoTouch => continue,
            Line::Strange => {
                let shown = line.trim_ascii_end();
                let shown = String::from_utf8_lossy(&shown[..shown.len().min(SHOWN_BYTES)]);
                return Err(Bad::Line(count, shown.into_owned()));
            }
        };
        for page in pages {
            if last == Some(page) {
                continue;
            }
            if touches.len() == MOST_TOUCHES {
                return Err(Bad::TooLong(count));
            }
            let next = numbers.len() as u32;
            touches.push(*numbers.entry(page).or_insert(next));
            last = Some(page);
        }
    }
    if touches.is_empty() {
        return Err(Bad::Empty);
    }
    let mut in_order: Vec<(u64, u32)> = numbers.into_iter().collect();
    in_order.sort_unstable();
    let mut ranks = vec![0; in_order.len()];
    for (rank, (_, number)) in (0..).zip(in_order) {
        ranks[number as usize] = rank;
    }
    touches.iter_mut().for_each(|page| *page = ranks[*page as usize]);
    Ok(touches)
}

/// What a line says.
enum Line {
    /// Data in these pages was touched.
    Touch(RangeInclusive<u64>),
    /// Code was, or it is something that valgrind itself has to say.
    NoTouch,
    /// It is not a trace's.
    Strange,
}

fn parse(line: &[u8]) -> Line {
    let (is_code, rest) = match line {
        [] | [b'=', b'=', ..] | [b'-', b'-', ..] => return Line::NoTouch,
        [b'I', b' ', b' ', rest @ ..] => (true, rest),
        [b' ', b'L' | b'S' | b'M', b' ', rest @ ..] => (false, rest),
        _ => return Line::Strange,
    };
    match pages(rest) {
        Some(_) if is_code => Line::NoTouch,
        Some(pages) => Line::Touch(pages),
        None => Line::Strange,
    }
}

/// The pages of `ADDRESS,BYTES`.
fn pages(text: &[u8]) -> Option<RangeInclusive<u64>> {
    let (address, bytes) = std::str::from_utf8(text).ok()?.split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let bytes: u64 = bytes.parse().ok().filter(|bytes| (1..=LARGEST_BYTES).contains(bytes))?;
    let last = address.checked_add(bytes - 1)?;
    Some(address / PAGE_SIZE as u64..=last / PAGE_SIZE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores_are_touches_and_code_is_not() {
        let text = "==7== Lackey, an example Valgrind tool\n\nI  04001000,3\n S 1ffeffe7e,8\n \
                    L 04222fff,2\nI  04001003,5\n M 04223abc,4\n L 04224000,4\r\n S 04222abc,16";
        assert_eq!(touches(text.as_bytes()).unwrap(), [3, 0, 1, 2, 0]);
    }

    #[test]
    fn what_is_no_trace_is_told_with_the_line() {
        for bad in ["hello", " L 12", " L xyz,4", " S 10,0", " S 10,9999", " X 10,4", "L 10,4"] {
            let text = format!(" L 1000,4\n{bad}\n");
            let Err(Bad::Line(2, shown)) = touches(text.as_bytes()) else { panic!("{bad}") };
            assert!(shown.starts_with(bad), "{shown}");
        }
        assert!(matches!(touches(&b"==1== nothing\n"[..]), Err(Bad::Empty)));
        let refusal = refusal(Path::new("x.trace"), &Bad::Line(2, "hello".into())).to_string();
        assert!(refusal.contains("--trace x.trace: line 2 (\"hello\")"), "{refusal}");
    }
}
