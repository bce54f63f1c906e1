//! Sampled faults of a running program, as sent over the control socket.
//!
//! ```text
//!   missed 64
//!   sample 16 disk w 81000 7f3210456000 55d0c0ffee10 7ffd0e20 7ffd0e90 3:55d0c0ffee99
//!   block 7f3210000000 268435456 55d0c0ffe123
//!   code 7f3210001230 17 look_up (tab) /home/joe/analysis.py
//! ```
//!
//! Only those stack words are sent that are addresses of code or of the stack, because unwinding
//! needs them. The program's data are not sent.

use crate::api::control_protocol::pairs;
use crate::base::stats::{TIERS, Tier};
use std::fmt::Write as _;
use std::ops::Range;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultSample {
    /// Number of faults that the sample represents, including itself.
    pub faults: u64,
    pub tier: Tier,
    pub toucher: Toucher,
    pub waited_ns: u64,
    pub address: u64,
    pub instruction: u64,
    pub stack: u64,
    /// Frame-pointer register, which may hold other data.
    pub frame: u64,
    /// Stack words that are addresses, by their distance from the stack pointer in words.
    pub words: Vec<(u16, u64)>,
    /// Functions of a Python program, from the innermost one.
    pub python: Vec<PythonFrame>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonFrame {
    pub code: u64,
    /// True if C code called the function. Then one C frame of the interpreter's loop stands for
    /// this function and for the Python functions that it calls.
    pub is_entry: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonCode {
    pub address: u64,
    pub line: u32,
    /// Its qualified name.
    pub name: String,
    pub file: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toucher {
    Read,
    Write,
    /// A system call with this address as an argument.
    Call,
}

const TOUCHERS: [(Toucher, &str); 3] =
    [(Toucher::Read, "r"), (Toucher::Write, "w"), (Toucher::Call, "c")];

/// A large memory block allocated by the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub range: Range<u64>,
    /// Return address of the allocating call.
    pub caller: u64,
}

/// Faults sampled since the last request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultSamples {
    /// Number of samples dropped because the buffer was full.
    pub missed: u64,
    pub samples: Vec<FaultSample>,
    pub blocks: Vec<Block>,
    pub codes: Vec<PythonCode>,
}

impl FaultSample {
    pub fn stack_word(&self, address: u64) -> Option<u64> {
        let distance = u16::try_from(address.checked_sub(self.stack)? / 8).ok()?;
        let at = self.words.binary_search_by_key(&distance, |(distance, _)| *distance).ok()?;
        address.is_multiple_of(8).then_some(self.words[at].1)
    }

    pub fn line(&self) -> String {
        let FaultSample { faults, tier, toucher, waited_ns, .. } = self;
        let FaultSample { address, instruction, stack, frame, .. } = self;
        let (_, letter) = TOUCHERS[*toucher as usize];
        let mut line = format!(
            "sample {faults} {} {letter} {waited_ns} {address:x} {instruction:x} {stack:x} \
             {frame:x}",
            tier.name()
        );
        for (distance, word) in &self.words {
            // Writing to a String cannot fail.
            let _ = write!(line, " {distance}:{word:x}");
        }
        for frame in &self.python {
            let _ = write!(line, " {}{:x}", if frame.is_entry { '=' } else { '+' }, frame.code);
        }
        line.push('\n');
        line
    }

    fn parse(text: &str) -> Option<FaultSample> {
        let mut fields = text.split(' ');
        let faults = fields.next()?.parse().ok()?;
        let name = fields.next()?;
        let tier = TIERS.into_iter().find(|tier| tier.name() == name)?;
        let letter = fields.next()?;
        let (toucher, _) = TOUCHERS.into_iter().find(|(_, known)| *known == letter)?;
        let waited_ns = fields.next()?.parse().ok()?;
        let mut address = || hexadecimal(fields.next()?);
        let [address, instruction, stack, frame] = [address()?, address()?, address()?, address()?];
        let (mut words, mut python) = (Vec::<(u16, u64)>::new(), Vec::new());
        for field in fields {
            if let Some((distance, word)) = field.split_once(':') {
                words.push((distance.parse().ok()?, hexadecimal(word)?));
            } else {
                let is_entry = field.starts_with('=');
                let code = hexadecimal(field.strip_prefix(['=', '+'])?)?;
                python.push(PythonFrame { code, is_entry });
            }
        }
        if !words.is_sorted_by(|one, next| one.0 < next.0) {
            return None;
        }
        Some(FaultSample {
            faults,
            tier,
            toucher,
            waited_ns,
            address,
            instruction,
            stack,
            frame,
            words,
            python,
        })
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

impl Block {
    pub fn line(&self) -> String {
        let Range { start, end } = &self.range;
        format!("block {start:x} {} {:x}\n", end - start, self.caller)
    }

    fn parse(text: &str) -> Option<Block> {
        let mut fields = text.split(' ');
        let start = hexadecimal(fields.next()?)?;
        let end = start.checked_add(fields.next()?.parse().ok()?)?;
        let caller = hexadecimal(fields.next()?)?;
        Some(Block { range: start..end, caller })
    }
}

impl PythonCode {
    pub fn line(&self) -> String {
        let PythonCode { address, line, name, file } = self;
        format!("code {address:x} {line} {name}\t{file}\n")
    }

    fn parse(text: &str) -> Option<PythonCode> {
        let mut fields = text.splitn(3, ' ');
        let (address, line) = (hexadecimal(fields.next()?)?, fields.next()?.parse().ok()?);
        let (name, file) = fields.next()?.split_once('\t')?;
        Some(PythonCode { address, line, name: name.to_string(), file: file.to_string() })
    }
}

impl FaultSamples {
    pub fn text(&self) -> String {
        let samples = self.samples.iter().map(FaultSample::line);
        let blocks = self.blocks.iter().map(Block::line);
        let codes = self.codes.iter().map(PythonCode::line);
        let missed = format!("missed {}\n", self.missed);
        [missed].into_iter().chain(samples).chain(blocks).chain(codes).collect()
    }

    /// Ignores unknown lines.
    pub fn parse(body: &str) -> FaultSamples {
        let mut all = FaultSamples::default();
        for (name, rest) in pairs(body) {
            match name {
                "missed" => all.missed = rest.parse().unwrap_or(0),
                "sample" => all.samples.extend(FaultSample::parse(rest)),
                "block" => all.blocks.extend(Block::parse(rest)),
                "code" => all.codes.extend(PythonCode::parse(rest)),
                _ => {}
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_round_trips() {
        let frame = |code, is_entry| PythonFrame { code, is_entry };
        let sample = |tier, toucher, words| FaultSample {
            faults: 16,
            tier,
            toucher,
            waited_ns: 81_000,
            address: 0x7f32_1045_6123,
            instruction: 0x55d0_c0ff_ee10,
            stack: 0x7ffd_0000_0e20,
            frame: 0,
            words,
            python: vec![frame(0x7f20, false), frame(0x7f40, true)],
        };
        let all = FaultSamples {
            missed: 7,
            samples: vec![
                sample(Tier::Disk, Toucher::Write, vec![(0, 1), (9, u64::MAX)]),
                sample(Tier::Zero, Toucher::Read, Vec::new()),
                sample(Tier::Pool, Toucher::Call, vec![(1023, 0x7ffd_0000_0e28)]),
            ],
            blocks: vec![Block { range: 0x7f00..0x8f00, caller: 0x55d0 }],
            codes: vec![PythonCode {
                address: 0x7f20,
                line: 7,
                name: "Table.<locals>.look up".to_string(),
                file: "/a b/t.py".to_string(),
            }],
        };
        assert_eq!(FaultSamples::parse(&all.text()), all);
    }

    #[test]
    fn stack_word_is_found_by_address() {
        let body = "sample 1 pool r 5 7000 5500 8000 0 0:11 2:33\n";
        let sample = &FaultSamples::parse(body).samples[0];
        let found = [0x8000, 0x8008, 0x8010, 0x8014, 0x7ff8, 0x8018, u64::MAX - 7];
        let found = found.map(|address| sample.stack_word(address));
        assert_eq!(found, [Some(0x11), None, Some(0x33), None, None, None, None]);
    }

    #[test]
    fn invalid_samples_are_skipped() {
        for body in [
            "sample",
            "sample 1 pool",
            "sample 1 tape r 5 7000 5500 8000 0\n",
            "sample 1 pool x 5 7000 5500 8000 0\n",
            "sample 1 pool r 5 7000 5500 8000 0 7\n",
            "sample 1 pool r 5 7000 5500 8000 0 2:1 1:1\n",
            "sample 1 pool r 5 7000 5500 8000 0 =x\n",
            "block 7f00\n",
            "code 7f00 7 name\n",
            "block ffffffffffffffff 9 0\n",
            "missed banana\n",
        ] {
            assert_eq!(FaultSamples::parse(body), FaultSamples::default(), "{body}");
        }
    }
}
