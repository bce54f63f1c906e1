//! The protocol of the control socket: a request of one line, and a text as answer.
//!
//! ```text
//!   softswap 1 stat                     ok, then properties, settings and counters
//!   softswap 1 get [KEY]                ok, then KEY VALUE, a line each
//!   softswap 1 set KEY VALUE            ok, then KEY VALUE as it is now
//!   softswap 1 sample EVERY [VERSION RUNTIME]
//!                                       ok, then faults (`fault_samples`)
//!   softswap 1 touch ADDRESS LENGTH [write]
//!                                       ok, then touched BYTES: the part now in DRAM
//!   softswap 1 park                     ok: the tree begins to evict its memory, then stops
//!   softswap 1 unpark                   ok, then continued PROCESSES
//! ```
//!
//! If the request fails, the answer is one line: `error` and the problem with the request, or
//! `denied` and the reason.

use crate::api::engine::Engine;
use crate::api::live_settings;
use crate::base::access::Access;
use crate::base::stats::{STATS_VERSION, STATS_WORDS, Stats};
use crate::core::errors::RAISE_MEMORY;
use softswap_sys::control_socket::Peer;
use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Prefix of every request: the protocol and its version.
const OPENING: &str = "softswap 1 ";
/// For reading a request, and for writing an answer; other clients wait meanwhile.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(250);
const FOR_WRITE: &str = " write";
pub const MAX_REQUEST_BYTES: usize = 256;
pub const MAX_ANSWER_BYTES: usize = 256 << 10;
// Each counter has at most 20 digits and a space. Together they use less than half of an answer.
const _: () = assert!(STATS_WORDS * 21 < MAX_ANSWER_BYTES / 2);

pub const TOUCHED: &str = "touched";

pub fn parse_number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    Stat,
    /// One setting; `None`: all of them.
    Get(Option<&'a str>),
    Set(&'a str, &'a str),
    /// Samples one fault in this many for two seconds (0: none). Returns the samples since the last
    /// request, with Python frames if an interpreter is given.
    Sample(u32, Option<Python>),
    /// Address and length of a range to fault in, for an access by another process.
    Touch(usize, usize, Access),
    Park,
    Unpark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Python {
    /// `Py_Version >> 16`: 0x030b is 3.11.
    pub version: u16,
    /// The address of `_PyRuntime`.
    pub runtime: usize,
}

impl Python {
    fn parse(text: &str) -> Option<Python> {
        let (version, runtime) = text.split_once(' ')?;
        let version = u16::from_str_radix(version, 16).ok()?;
        Some(Python { version, runtime: usize::from_str_radix(runtime, 16).ok()? })
    }

    fn text(self) -> String {
        format!("{:x} {:x}", self.version, self.runtime)
    }
}

impl<'a> Request<'a> {
    /// Parses a line without its newline. Fails with a message for the client.
    pub fn parse(line: &'a [u8]) -> Result<Request<'a>, String> {
        let text = std::str::from_utf8(line).unwrap_or("");
        let Some(request) = text.strip_prefix(OPENING) else {
            return Err(format!(
                "not a request that this program understands: it runs softswap {}, and its \
                 requests begin with {OPENING:?}",
                env!("CARGO_PKG_VERSION")
            ));
        };
        let unknown = || {
            "not a request: send `stat`, `get [KEY]`, `set KEY VALUE`, `sample EVERY`, `touch \
             ADDRESS LENGTH [write]`, `park` or `unpark`"
                .to_string()
        };
        let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
        match (verb, rest.split_once(' ').unwrap_or((rest, ""))) {
            ("stat", ("", "")) => Ok(Request::Stat),
            ("park", ("", "")) => Ok(Request::Park),
            ("unpark", ("", "")) => Ok(Request::Unpark),
            ("get", ("", "")) => Ok(Request::Get(None)),
            ("get", (key, "")) => Ok(Request::Get(Some(key))),
            ("set", (key, value)) if !key.is_empty() => Ok(Request::Set(key, value)),
            ("touch", (address, rest)) => {
                let (len, access) = match rest.strip_suffix(FOR_WRITE) {
                    Some(len) => (len, Access::Write),
                    None => (rest, Access::Read),
                };
                match (parse_number(address), parse_number(len)) {
                    (Some(address), Some(len)) => Ok(Request::Touch(address, len, access)),
                    _ => Err(unknown()),
                }
            }
            ("sample", (every, python)) => {
                let every = every.parse().map_err(|_| unknown())?;
                let python = Some(python).filter(|python| !python.is_empty());
                let python = python.map(|python| Python::parse(python).ok_or_else(unknown));
                Ok(Request::Sample(every, python.transpose()?))
            }
            _ => Err(unknown()),
        }
    }

    /// Returns the line with its newline; `None` if the program would not accept it.
    pub fn line(&self) -> Option<String> {
        let request = match self {
            Request::Stat => "stat".to_string(),
            Request::Park => "park".to_string(),
            Request::Unpark => "unpark".to_string(),
            Request::Get(None) => "get".to_string(),
            Request::Get(Some(key)) => format!("get {key}"),
            Request::Set(key, value) => format!("set {key} {value}"),
            Request::Sample(every, None) => format!("sample {every}"),
            Request::Sample(every, Some(python)) => format!("sample {every} {}", python.text()),
            Request::Touch(address, len, Access::Read) => format!("touch {address:#x} {len}"),
            Request::Touch(address, len, Access::Write) => {
                format!("touch {address:#x} {len}{FOR_WRITE}")
            }
        };
        let line = format!("{OPENING}{request}\n");
        let fits = line.len() <= MAX_REQUEST_BYTES && !request.contains(char::is_control);
        (fits && Request::parse(line.trim_end_matches('\n').as_bytes()) == Ok(*self))
            .then_some(line)
    }
}

/// Answers one client: with the result of `carry_out` for `own_uid` and root, else with a denial.
/// Fails if the client does not send its request or read the answer in time.
pub fn converse(
    client: &Peer,
    own_uid: u32,
    carry_out: impl FnOnce(Request<'_>) -> Result<String, String>,
) -> io::Result<()> {
    let mut buffer = [0; MAX_REQUEST_BYTES];
    let client_uid = client.credentials()?.uid;
    let line = client.read_line(&mut buffer, CLIENT_TIMEOUT)?;
    let answer = if client_uid == 0 || client_uid == own_uid {
        reply_to(line, carry_out)
    } else {
        denied(&format!("it belongs to uid {own_uid}, and the request came from uid {client_uid}"))
    };
    client.write_all(answer.as_bytes(), CLIENT_TIMEOUT)
}

fn denied(why: &str) -> String {
    format!("denied {why}\n")
}

pub fn reply_to(
    line: &[u8],
    carry_out: impl FnOnce(Request<'_>) -> Result<String, String>,
) -> String {
    match Request::parse(line).and_then(carry_out) {
        Ok(body) => format!("ok\n{body}"),
        Err(why) => format!("error {why}\n"),
    }
}

/// Executes a request. Returns the body of the answer, or a message about the request.
pub fn carry_out(
    engine: &Engine,
    uptime: Duration,
    request: Request<'_>,
) -> Result<String, String> {
    match request {
        Request::Stat => Ok(format_snapshot(engine, uptime)),
        Request::Get(None) => Ok(values(live_settings::all(engine))),
        Request::Get(Some(key)) => {
            live_settings::get(engine, key).map(|value| values([(key, value)]))
        }
        Request::Set(key, value) => live_settings::set(engine, key, value)
            .and_then(|()| live_settings::get(engine, key))
            .map(|value| values([(key, value)])),
        Request::Sample(..) => Err("this process does not sample faults".to_string()),
        Request::Park | Request::Unpark => Err(
            "a tree is parked as a whole: give the PID of `softswap run`, and start it without \
             --memory-per-process"
                .to_string(),
        ),
        Request::Touch(address, len, access) => match engine.bring_in(address, len, access) {
            Ok(touched) => Ok(values([(TOUCHED, touched.to_string())])),
            Err(why) => {
                Err(format!("the pages cannot be faulted in: {}", why.message(RAISE_MEMORY)))
            }
        },
    }
}

fn values<'k>(pairs: impl IntoIterator<Item = (&'k str, String)>) -> String {
    pairs.into_iter().map(|(key, value)| format!("{key} {value}\n")).collect()
}

fn format_snapshot(engine: &Engine, uptime: Duration) -> String {
    engine.note_peaks();
    let mut text = format!("uptime_ns {}\n", uptime.as_nanos());
    for (key, value) in live_settings::all(engine) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "setting {key} {value}");
    }
    let _ = write!(text, "counters {STATS_VERSION}");
    for word in engine.stats().words() {
        let _ = write!(text, " {}", word.load(Relaxed));
    }
    text.push('\n');
    text
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Ok(String),
    /// The request was wrong; nothing was changed.
    Error(String),
    Denied(String),
    /// Truncated, or not an answer of softswap.
    Garbled,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Answer {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.ends_with('\n'));
        let Some((first, body)) = text.and_then(|text| text.split_once('\n')) else {
            return Answer::Garbled;
        };
        match first.split_once(' ').unwrap_or((first, "")) {
            ("ok", "") => Answer::Ok(body.to_string()),
            ("error", why) => Answer::Error(why.to_string()),
            ("denied", why) => Answer::Denied(why.to_string()),
            _ => Answer::Garbled,
        }
    }
}

pub fn pairs(body: &str) -> impl Iterator<Item = (&str, &str)> {
    body.lines().filter_map(|line| line.split_once(' '))
}

/// Answer to [`Request::Stat`].
#[derive(Debug)]
pub struct Snapshot {
    pub uptime: Duration,
    pub settings: Vec<(String, String)>,
    pub stats: Stats,
}

impl Snapshot {
    /// Parses the body of an answer. Leaks the memory of the counters.
    pub fn parse(body: &str) -> Result<Snapshot, OtherVersion> {
        let words: Vec<AtomicU64> = (0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect();
        Snapshot::parse_into(body, words.leak())
    }

    /// As [`Snapshot::parse`], with the counters in `words`, which can be reused. Panics with fewer
    /// words than [`STATS_WORDS`].
    pub fn parse_into(body: &str, words: &'static [AtomicU64]) -> Result<Snapshot, OtherVersion> {
        let (mut uptime, mut settings, mut counters) = (None, Vec::new(), None);
        for (name, rest) in pairs(body) {
            match name {
                "uptime_ns" => uptime = rest.parse().ok().map(Duration::from_nanos),
                "setting" => settings.extend(rest.split_once(' ').map(owned)),
                "counters" => counters = read_counters(rest, words),
                // Unknown lines of newer versions are ignored.
                _ => {}
            }
        }
        match (uptime, counters) {
            (Some(uptime), Some(stats)) => Ok(Snapshot { uptime, settings, stats }),
            _ => Err(OtherVersion),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the program runs another version of softswap; use the `softswap` command of that version")]
pub struct OtherVersion;

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_string(), value.to_string())
}

fn read_counters(text: &str, words: &'static [AtomicU64]) -> Option<Stats> {
    let mut values = text.split(' ').map(|word| word.parse::<u64>().ok());
    if values.next()?? != STATS_VERSION {
        return None;
    }
    for word in &words[..STATS_WORDS] {
        word.store(values.next()??, Relaxed);
    }
    values.next().is_none().then(|| Stats::new(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::stats::Counter;

    #[test]
    fn requests_round_trip() {
        for request in [
            Request::Stat,
            Request::Get(None),
            Request::Get(Some("io.poll")),
            Request::Set("io.poll", "hybrid"),
            Request::Set("io.poll", "two words"),
            Request::Set("io.poll", ""),
            Request::Sample(0, None),
            Request::Sample(u32::MAX, Some(Python { version: 0x030b, runtime: 0x7f00_0000_1000 })),
            Request::Touch(0x7000_0000_1000, 1 << 20, Access::Read),
            Request::Touch(0x7000_0000_1000, 1 << 20, Access::Write),
        ] {
            let line = request.line().unwrap();
            assert_eq!(Request::parse(line.strip_suffix('\n').unwrap().as_bytes()), Ok(request));
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(["0x1000", "4096", "-1"].map(parse_number), [Some(4096), Some(4096), None]);
    }

    #[test]
    fn values_with_newlines_are_rejected() {
        let long = "x".repeat(MAX_REQUEST_BYTES);
        for request in [
            Request::Set("io.poll", "auto\nset io.poll poll"),
            Request::Set("io.poll", &long),
            Request::Set("", "auto"),
            Request::Get(Some("two words")),
            Request::Get(Some("")),
            Request::Get(Some("\0")),
        ] {
            assert_eq!(request.line(), None, "{request:?}");
        }
    }

    #[test]
    fn garbage_gets_usage_answer() {
        for line in ["", "stat", "GET / HTTP/1.1", "softswap 2 stat", "softswap 1", "\0\0\0"] {
            let why = Request::parse(line.as_bytes()).unwrap_err();
            assert!(why.contains("softswap 1 ") && !why.contains('\n'), "{line:?}: {why}");
        }
        assert!(Request::parse(b"softswap 1 \xff").is_err());
        for line in [
            "",
            " ",
            "stat all",
            "get a b",
            "set",
            "set ",
            "drop io.poll",
            "sample",
            "sample x",
            "sample 1 x",
        ] {
            let line = format!("softswap 1 {line}");
            assert!(Request::parse(line.as_bytes()).unwrap_err().contains("set KEY VALUE"));
        }
    }

    #[test]
    fn truncated_answers_are_detected() {
        assert_eq!(Answer::parse(b"ok\n"), Answer::Ok(String::new()));
        assert_eq!(Answer::parse(b"ok\na b\n"), Answer::Ok("a b\n".into()));
        assert_eq!(Answer::parse(b"error no such\n"), Answer::Error("no such".into()));
        assert_eq!(Answer::parse(denied("not you").as_bytes()), Answer::Denied("not you".into()));
        for cut in [&b""[..], b"o", b"ok", b"ok\na", b"\n", b"okay\n", b"ok\n\xff\n"] {
            assert_eq!(Answer::parse(cut), Answer::Garbled, "{cut:?}");
        }
    }

    fn body(version: u64, words: usize) -> String {
        let counters: String = (0..words).map(|word| format!(" {word}")).collect();
        format!("uptime_ns 1500\nsetting a.b c d\nnews 7\ncounters {version}{counters}\n")
    }

    #[test]
    fn a_snapshot_has_uptime_settings_and_every_counter() {
        let snapshot = Snapshot::parse(&body(STATS_VERSION, STATS_WORDS)).unwrap();
        assert_eq!(snapshot.uptime, Duration::from_nanos(1500));
        assert_eq!(snapshot.settings, [("a.b".to_string(), "c d".to_string())]);
        let budget = snapshot.stats.get(Counter::BudgetBytes);
        assert_eq!(budget, Counter::BudgetBytes as u64);
        assert_eq!(snapshot.stats.words().len(), STATS_WORDS);
    }

    #[test]
    fn counters_of_another_version_are_refused() {
        for (version, words) in
            [(STATS_VERSION + 1, STATS_WORDS), (STATS_VERSION, STATS_WORDS - 1), (STATS_VERSION, 0)]
        {
            assert!(Snapshot::parse(&body(version, words)).is_err());
        }
        assert!(Snapshot::parse("").is_err());
        assert!(Snapshot::parse("uptime_ns 1\ncounters banana\n").is_err());
    }
}
