//! URLs of clusters: `rediss://USER@HOST:PORT,HOST:PORT?OPTIONS`.

use crate::refusal::Refusal;
use crate::secret::{Password, VARIABLE};
use crate::size::parse_size;
use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// One day: a program may be stopped for long, and its pages must survive.
const DEFAULT_LEASE: Duration = Duration::from_secs(24 * 3600);

/// Limit on the lease, because pages of abandoned runs stay stored until it expires.
const MAX_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Schemes, compared without case; true for those with TLS.
const SCHEMES: [(&str, bool); 4] =
    [("rediss", true), ("redis", false), ("valkeys", true), ("valkey", false)];

/// Options after the `?`. `pri` is for callers with several areas.
pub const OPTIONS: [&str; 11] = [
    "pri",
    "size",
    "copies",
    "single",
    "wait",
    "deadline",
    "lease",
    "ca",
    "cert",
    "key",
    "password-file",
];

/// Returns true if the text starts like a URL of a cluster, even if the rest is wrong.
#[must_use]
pub fn is_url(text: &str) -> bool {
    let scheme = text.split([':', '+']).next().unwrap_or_default();
    let is_scheme = SCHEMES.iter().any(|(known, _)| known.eq_ignore_ascii_case(scheme));
    is_scheme && scheme.len() < text.len()
}

/// Returns true if an option other than a file contains `@`: the URL may have a password with `?`.
#[must_use]
pub fn has_user_in_options(options: &str) -> bool {
    const FILES: [&str; 4] = ["ca", "cert", "key", "password-file"];
    let is_file = |option: &str| FILES.contains(&option.split('=').next().unwrap_or_default());
    options.split('&').any(|option| option.contains('@') && !is_file(option))
}

fn after_scheme(text: &str) -> Option<(bool, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let known = SCHEMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(scheme))?;
    Some((known.1, rest))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    Two,
    /// One: the caller has another copy on its own disk.
    Local,
}

impl Copies {
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Copies::Two => 2,
            Copies::Local => 1,
        }
    }
}

/// Certificate files in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A cluster and its settings. Its text form has no password.
#[derive(Clone, Debug)]
pub struct Url {
    pub tls: Option<TlsFiles>,
    pub user: Option<String>,
    pub password: Password,
    /// Servers to ask first; they report the others.
    pub seeds: Vec<Address>,
    pub priority: Option<i16>,
    /// Bytes of pages, without copies and headers.
    pub size_bytes: Option<u64>,
    pub copies: Copies,
    /// A single server without cluster mode.
    pub single: bool,
    pub wait_for_replica: bool,
    pub deadline: Duration,
    pub lease: Duration,
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "rediss://" } else { "redis://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let seeds: Vec<String> = self.seeds.iter().map(Address::to_string).collect();
        f.write_str(&seeds.join(","))
    }
}

impl Url {
    /// Adds `copies=local` for use with a copy on disk, unless the URL has `copies=`.
    #[must_use]
    pub fn with_local_disk(text: &str) -> String {
        let options = text.split_once('?').map_or("", |(_, options)| options);
        if options.split('&').any(|option| option.starts_with("copies=")) {
            return text.into();
        }
        let separator = if text.contains('?') { '&' } else { '?' };
        format!("{text}{separator}copies=local")
    }

    /// Parses a URL. The password comes from the environment unless the URL names a file.
    ///
    /// # Errors
    /// If a part is invalid; the error names the part and a valid form.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let Some((is_secure, rest)) = after_scheme(text) else {
            return Err(Refusal::new(
                "not the URL of a cluster: use rediss://HOST:PORT,HOST:PORT (with TLS) or \
                 redis://HOST:PORT (without)",
            ));
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, hosts) = match place.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, place),
        };
        if user.is_some_and(|user| user.contains(':')) || has_user_in_options(options) {
            // The error repeats no part of the URL, because the password would be in logs.
            return Err(Refusal::new(format!(
                "the URL contains a password, which every user who lists processes could read: \
                 remove it and set {VARIABLE}, or name a file with password-file="
            )));
        }
        if user.is_some_and(|user| user.contains('%')) {
            return Err(Refusal::new(
                "the user's name contains a %, and escapes are not decoded: write the name as the \
                 servers do",
            ));
        }
        let seeds: Result<Vec<Address>, Refusal> =
            hosts.trim_end_matches('/').split(',').map(parse_address).collect();
        let mut url = Self {
            tls: is_secure.then(TlsFiles::default),
            user: user.filter(|user| !user.is_empty()).map(str::to_string),
            password: Password::from_environment(),
            seeds: seeds?,
            priority: None,
            size_bytes: None,
            copies: Copies::Two,
            single: false,
            wait_for_replica: false,
            deadline: DEFAULT_DEADLINE,
            lease: DEFAULT_LEASE,
        };
        let mut files = ClientFiles::default();
        let mut names = HashSet::new();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if !names.insert(name) {
                return Err(Refusal::new(format!("{name}= is given twice: keep one")));
            }
            url.set(name, value, &mut files)?;
        }
        url.finish(files)
    }

    fn set(&mut self, name: &str, value: &str, files: &mut ClientFiles) -> Result<(), Refusal> {
        let wrong = |what: &str| Refusal::new(format!("{name}={value}: {what}"));
        let switch = || parse_switch(value).ok_or_else(|| wrong("must be 0 or 1"));
        match name {
            "pri" => {
                let priority = value.parse().ok().filter(|priority| (0..=32767).contains(priority));
                let priority = priority.ok_or_else(|| wrong("must be a number from 0 to 32767"))?;
                self.priority = Some(priority);
            }
            "size" => self.size_bytes = Some(parse_size(value).map_err(|why| wrong(&why))?),
            "copies" => {
                let expected = "must be 2 (each page on two primaries) or local (one copy on the \
                                cluster, one in the swap directory)";
                self.copies = match value {
                    "2" => Copies::Two,
                    "local" => Copies::Local,
                    _ => return Err(wrong(expected)),
                }
            }
            "single" => self.single = switch()?,
            "wait" => self.wait_for_replica = switch()?,
            "deadline" => {
                let within = Duration::from_millis(100)..=Duration::from_secs(600);
                let time = parse_time(value).filter(|time| within.contains(time));
                self.deadline = time.ok_or_else(|| wrong("must be a time from 100ms to 600s"))?;
            }
            "lease" => {
                let within = Duration::from_secs(60)..=MAX_LEASE;
                let time = parse_time(value).filter(|time| within.contains(time));
                let expected = "must be a time from 60s to 720h, such as 10m or 24h";
                self.lease = time.ok_or_else(|| wrong(expected))?;
            }
            "ca" => files.ca = Some(path(value, name)?),
            "cert" => files.cert = Some(path(value, name)?),
            "key" => files.key = Some(path(value, name)?),
            "password-file" => self.password = Password::File(path(value, name)?),
            "password" => {
                return Err(Refusal::new(format!(
                    "password= could be read by every user who lists processes: set {VARIABLE}, \
                     or name a file with password-file="
                )));
            }
            _ => {
                let options = OPTIONS.join(", ");
                let why = format!("there is no option {name}=; the options are {options}");
                return Err(Refusal::new(why));
            }
        }
        Ok(())
    }

    fn finish(mut self, files: ClientFiles) -> Result<Self, Refusal> {
        if self.single && self.copies != Copies::Local {
            return Err(Refusal::new(
                "single=1 stores each page on one server, which may lose it: use it only with \
                 copies=local, which also stores a copy on the local disk",
            ));
        }
        let client = match (files.cert, files.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(Refusal::new("cert= and key= belong together: set both")),
        };
        match &mut self.tls {
            Some(tls) => *tls = TlsFiles { ca: files.ca, client },
            None if files.ca.is_some() || client.is_some() => {
                return Err(Refusal::new("redis:// uses no certificates: write rediss:// for TLS"));
            }
            None => {}
        }
        Ok(self)
    }
}

#[derive(Default)]
struct ClientFiles {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

fn path(value: &str, name: &str) -> Result<PathBuf, Refusal> {
    match value {
        "" => Err(Refusal::new(format!("{name}= needs the path of a file"))),
        path => Ok(path.into()),
    }
}

fn parse_switch(value: &str) -> Option<bool> {
    match value {
        "" | "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

/// Parses `500ms`, `10s`, `10m`, `24h`; a number without unit is seconds.
fn parse_time(value: &str) -> Option<Duration> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let milliseconds = match &value[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(milliseconds).map(Duration::from_millis)
}

fn parse_address(text: &str) -> Result<Address, Refusal> {
    let wrong =
        || Refusal::new(format!("{text:?} is not a server: write HOST:PORT or [IPV6]:PORT"));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => return Err(wrong()),
            found => found.unwrap_or((text, "")),
        },
    };
    let port = match port {
        "" => DEFAULT_PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
    };
    let is_invalid = |c: char| c.is_whitespace() || c.is_control() || "/@?#\\".contains(c);
    if host.is_empty() || host.contains(is_invalid) {
        return Err(wrong());
    }
    Ok(Address { host: host.to_string(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parts_are_parsed() {
        let url = Url::parse(
            "rediss://job@a.example:7000,[::1]:7001,b/?pri=5&size=2G&copies=local&wait=1\
             &deadline=500ms&lease=10m&ca=/etc/ca.pem&cert=/c&key=/k&password-file=/p",
        )
        .unwrap();
        let seeds: Vec<String> = url.seeds.iter().map(Address::to_string).collect();
        assert_eq!(seeds, ["a.example:7000", "[::1]:7001", "b:6379"]);
        assert_eq!(url.user.as_deref(), Some("job"));
        assert_eq!((url.priority, url.size_bytes), (Some(5), Some(2 << 30)));
        assert_eq!((url.copies, url.single, url.wait_for_replica), (Copies::Local, false, true));
        assert_eq!(url.deadline, Duration::from_millis(500));
        assert_eq!(url.lease, Duration::from_secs(600));
        let tls = url.tls.as_ref().unwrap();
        assert_eq!(tls.client, Some(("/c".into(), "/k".into())));
        assert!(matches!(&url.password, Password::File(path) if path.ends_with("p")));
        assert_eq!(url.to_string(), "rediss://job@a.example:7000,[::1]:7001,b:6379");
    }

    #[test]
    fn url_like_text_is_not_a_directory() {
        for text in ["redis://h", "REDISS:h", "valkey+cluster://h", "redis:"] {
            assert!(is_url(text), "{text}");
        }
        for text in ["redis", "/redis:x", "rediska:h", "./redis:1G", ""] {
            assert!(!is_url(text), "{text}");
        }
    }

    #[test]
    fn one_copy_is_default_with_local_disk() {
        for (text, copies) in [
            ("redis://h", Copies::Local),
            ("redis://h?single=1", Copies::Local),
            ("redis://h?size=1G&copies=2", Copies::Two),
            ("redis://h?copies=local", Copies::Local),
        ] {
            let url = Url::parse(&Url::with_local_disk(text)).unwrap();
            assert_eq!(url.copies, copies, "{text}");
        }
    }

    #[test]
    fn url_password_is_rejected_and_hidden() {
        for text in
            ["redis://user:hunter2@host:1", "redis://:hunter2@host", "redis://h?password=hunter2"]
                .into_iter()
                .chain(["redis://user:hun?hunter2@h", "redis://user:12?hunter2@h"])
        {
            let refusal = Url::parse(text).unwrap_err().to_string();
            assert!(refusal.contains("SOFTSWAP_REMOTE_PASSWORD"), "{refusal}");
            assert!(!refusal.contains("hunter2"), "{refusal}");
        }
        let url = Url {
            password: Password::Given("hunter2".to_string().into()),
            ..Url::parse("redis://h").unwrap()
        };
        assert!(!format!("{url:?} {url}").contains("hunter2"));
    }

    #[test]
    fn invalid_url_is_reported_with_remedy() {
        for (text, part) in [
            ("http://x", "rediss://"),
            ("redis://", "HOST:PORT"),
            ("redis:h:7000?size=1G", "rediss://HOST:PORT"),
            ("redis+sentinel://h", "rediss://HOST:PORT"),
            ("redis://u%3Aword@h", "escape"),
            ("redis://h:0", "HOST:PORT"),
            ("redis://h:70000", "HOST:PORT"),
            ("redis://::1", "[IPV6]"),
            ("redis://h?size=x", "512M"),
            ("redis://h?copies=3", "two primaries"),
            ("redis://h?single=1", "copies=local"),
            ("redis://h?deadline=1ms", "100ms"),
            ("redis://h?lease=1s", "60s"),
            ("redis://h?pri=-1", "32767"),
            ("redis://h?ca=/x", "rediss://"),
            ("rediss://h?cert=/x", "belong together"),
            ("redis://h?colour=red", "deadline"),
            ("redis://h?size=1G&pri=1&size=2G", "twice"),
            ("redis://h?size=99999T", "at most"),
        ] {
            let refusal = Url::parse(text).unwrap_err().to_string();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
