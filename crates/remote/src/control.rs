//! Socket protocol between `softswap run` and its helper. It carries the password and the key,
//! which therefore appear in no argument and no environment.

use crate::refusal::Refusal;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::io::{self, BufRead, Write};
use zeroize::Zeroizing;

#[derive(Clone)]
pub struct RunKey {
    pub id: u64,
    /// Random, and never stored.
    pub key: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl RunKey {
    /// Creates a random identity and key.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub fn choose() -> io::Result<RunKey> {
        let mut key = Zeroizing::new([0; 32]);
        let mut id = [0; 8];
        // The kernel never returns fewer bytes for requests this small.
        getrandom(&mut key[..], GetRandomFlags::empty())?;
        getrandom(&mut id[..], GetRandomFlags::empty())?;
        Ok(RunKey { id: u64::from_le_bytes(id), key })
    }

    fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(96));
        text.push_str(&format!("{:016x}", self.id));
        for part in self.key.as_chunks::<8>().0 {
            text.push_str(&Zeroizing::new(format!("{:016x}", u64::from_be_bytes(*part))));
        }
        text
    }

    fn from_text(text: &str) -> Option<RunKey> {
        let part = |at: usize| u64::from_str_radix(text.get(16 * at..16 * at + 16)?, 16).ok();
        let mut key = Zeroizing::new([0; 32]);
        for (at, bytes) in key.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = part(at + 1)?.to_be_bytes();
        }
        Some(RunKey { id: part(0)?, key })
    }
}

#[derive(Clone)]
pub struct Order {
    /// The URL as given; it has no password.
    pub url: String,
    /// The password, if it comes from the environment.
    pub password: Option<Zeroizing<String>>,
    pub run: RunKey,
    /// True if an earlier helper of the run may have stored pages.
    pub is_again: bool,
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Order { url, run, is_again, .. } = self;
        f.debug_struct("Order")
            .field("url", url)
            .field("run", run)
            .field("is_again", is_again)
            .finish_non_exhaustive()
    }
}

impl Order {
    /// Checks that each part is a single line.
    ///
    /// # Errors
    /// If a part has several lines; the error names it.
    pub fn check(&self) -> Result<(), Refusal> {
        let has_lines = |text: &str| text.contains(['\n', '\r']);
        if self.password.as_ref().is_some_and(|it| has_lines(it)) {
            return Err(Refusal::new("the password must be a single line"));
        }
        match has_lines(&self.url) {
            true => Err(Refusal::new("the URL must be a single line")),
            false => Ok(()),
        }
    }

    /// Writes the order, for [`Order::read`].
    ///
    /// # Errors
    /// If the write to the socket fails.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let attempt = if self.is_again { "again" } else { "first" };
        let password = self.password.as_ref().map_or("", |password| password.as_str());
        let run = self.run.to_text();
        let text = format!("{}\n{}\n{attempt}\n{password}\n", self.url, run.as_str());
        to.write_all(Zeroizing::new(text).as_bytes())
    }

    /// Reads an order.
    ///
    /// # Errors
    /// If the read from the socket fails, or the order is invalid or incomplete.
    pub fn read(mut from: impl BufRead) -> io::Result<Order> {
        let mut line = || {
            let mut line = Zeroizing::new(String::new());
            from.read_line(&mut line)?;
            match line.strip_suffix('\n') {
                Some(line) => Ok(Zeroizing::new(line.to_string())),
                None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            }
        };
        let (url, run, again, password) = (line()?, line()?, line()?, line()?);
        Ok(Order {
            url: url.to_string(),
            run: RunKey::from_text(&run).ok_or(io::ErrorKind::InvalidData)?,
            is_again: *again == "again",
            password: Some(password).filter(|password| !password.is_empty()),
        })
    }
}

const MAX_CHARACTERS: usize = 4000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelperMessage {
    Ready,
    Note(String),
    Refused(String),
}

impl HelperMessage {
    #[must_use]
    pub fn to_line(&self) -> String {
        // The text may contain a server's output, so control characters are replaced.
        let plain = |sign: char| if sign.is_control() { ' ' } else { sign };
        let one_line =
            |text: &str| text.chars().take(MAX_CHARACTERS).map(plain).collect::<String>();
        match self {
            HelperMessage::Ready => "ready\n".into(),
            HelperMessage::Note(text) => format!("note {}\n", one_line(text)),
            HelperMessage::Refused(text) => format!("refused {}\n", one_line(text)),
        }
    }

    #[must_use]
    pub fn from_line(line: &str) -> Option<HelperMessage> {
        let line = line.trim_end_matches('\n');
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ready", _) => Some(HelperMessage::Ready),
            ("note", text) => Some(HelperMessage::Note(text.into())),
            ("refused", text) => Some(HelperMessage::Refused(text.into())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_round_trips_and_hides_password() {
        let password = Some(Zeroizing::new("hunter2 ".to_string()));
        let run = RunKey { id: 7, key: Zeroizing::new(std::array::from_fn(|at| at as u8 + 1)) };
        let order = Order { url: "redis://h?size=1G".into(), password, run, is_again: true };
        let mut written = Vec::new();
        order.write(&mut written).unwrap();
        let read = Order::read(&written[..]).unwrap();
        assert_eq!((&read.url, read.is_again), (&order.url, true));
        assert_eq!((read.run.id, &read.run.key), (7, &order.run.key));
        assert_eq!(read.password, order.password);
        assert!(Order::read(&written[..written.len() - 1]).is_err());
        assert!(Order::read(&b"u\nrun\nfirst\n\n"[..]).is_err());
        let order = Order { password: Some(Zeroizing::new("a\nb".into())), ..order };
        assert!(order.check().unwrap_err().to_string().contains("password"));
    }

    #[test]
    fn secrets_are_hidden() {
        let key = RunKey::choose().unwrap();
        assert_ne!(*key.key, *RunKey::choose().unwrap().key);
        let password = Some(Zeroizing::new("hunter2".to_string()));
        let order = Order { url: "redis://h".into(), password, run: key, is_again: false };
        let shown = format!("{order:?}");
        assert!(!shown.contains("key:") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn helper_message_is_one_line() {
        for message in [
            HelperMessage::Ready,
            HelperMessage::Note("a b".into()),
            HelperMessage::Refused("c d e".into()),
        ] {
            assert_eq!(HelperMessage::from_line(&message.to_line()), Some(message));
        }
        assert_eq!(HelperMessage::Note("a\nb\x1b[2J".into()).to_line(), "note a b [2J\n");
        assert_eq!(
            HelperMessage::Note("é".repeat(9999)).to_line().chars().count(),
            MAX_CHARACTERS + 6
        );
        assert_eq!(HelperMessage::from_line("hello\n"), None);
    }
}
