//! A value given by the user, with its source.

use crate::refusal::Refusal;
use softswap_remote::url::{OPTIONS, has_user_in_options, is_url};
use std::fmt::Display;

#[derive(Debug)]
pub(crate) struct Sourced {
    pub(crate) text: String,
    /// For messages: `--memory banana`, `SOFTSWAP_MEMORY=banana`, `memory = banana in FILE`.
    pub(crate) shown: String,
}

impl Sourced {
    pub(super) fn refuse(&self, why: impl Display) -> Refusal {
        Refusal::usage(format!("{}: {why}", self.shown))
    }
}

/// For messages. softswap refuses cluster URLs with passwords, and must not print the passwords.
pub(crate) fn without_password(text: &str) -> String {
    let parts: Vec<String> = text.split(';').map(one_without_password).collect();
    parts.join(";")
}

fn one_without_password(text: &str) -> String {
    if !is_url(text) {
        return text.into();
    }
    let hidden = || match text.rsplit_once('@') {
        // The URL is malformed: any text before the `@` may contain a password.
        Some((_, rest)) => format!("{}...@{rest}", &text[..=text.find(':').unwrap_or(0)]),
        None => text.into(),
    };
    let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| !scheme.contains(':'))
    else {
        return hidden();
    };
    let (place, options) = rest.split_once('?').map_or((rest, None), |(it, more)| (it, Some(more)));
    let place = match place.rsplit_once('@').map(|(user, hosts)| (user.split_once(':'), hosts)) {
        Some((Some((user, _)), hosts)) => format!("{user}:...@{hosts}"),
        Some((None, hosts)) if place.contains('%') => format!("...@{hosts}"),
        _ if options.is_some_and(has_user_in_options) => return hidden(),
        _ => place.into(),
    };
    // The value of an unknown option may be a password.
    let shown = |option: &str| match option.split_once('=') {
        Some((name, _)) if !OPTIONS.contains(&name) => format!("{name}=..."),
        _ => option.into(),
    };
    let options = options.map(|all| all.split('&').map(shown).collect::<Vec<_>>().join("&"));
    let options = options.map_or_else(String::new, |all| format!("?{all}"));
    format!("{scheme}://{place}{options}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_password_is_hidden() {
        for (text, shown) in [
            ("/var/tmp;redis://u:hunter2@h:1,i?size=1G", "/var/tmp;redis://u:...@h:1,i?size=1G"),
            ("rediss://h?password=hunter2&size=1G", "rediss://h?password=...&size=1G"),
            ("Valkey://h?size=1G&passwd=hunter2", "Valkey://h?size=1G&passwd=..."),
            ("redis://u@h", "redis://u@h"),
            ("redis://u:hun?ter2@h", "redis:...@h"),
            ("redis:u:hunter2@h", "redis:...@h"),
            ("redis://u%3Ahunter2@h", "redis://...@h"),
            ("redis://u:12?ter2@h", "redis:...@h"),
            ("redis:u:hunter2@h?ca=file:///x", "redis:...@h?ca=file:///x"),
            ("redis://[::1]/?ca=/a@b", "redis://[::1]/?ca=/a@b"),
            ("/a:b@c?password=x", "/a:b@c?password=x"),
        ] {
            assert_eq!(without_password(text), shown);
        }
    }
}
