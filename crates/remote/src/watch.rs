//! Messages about servers without service, so that a wait for them is not taken for a hang.

use crate::node::MissingService;
use crate::router::Router;
use crate::url::Address;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A problem is reported if its first occurrence is at least, and its last at most, this long ago.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// Shortest interval between two reports about one server.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of servers named in a message; others are only counted.
const MAX_NAMED: usize = 4;

#[derive(Default)]
pub(crate) struct Watch {
    noted: BTreeMap<Address, Noted>,
}

struct Noted {
    at: Instant,
    /// Message for the end of the problem; `None` after it was sent, or if it is not needed.
    recovered_message: Option<&'static str>,
}

impl Watch {
    pub(crate) fn check(&mut self, router: &Router) -> Vec<String> {
        let topology = router.topology();
        let owners = topology.owners().into_iter().map(|(member, _)| member.address.clone());
        let services = owners.map(|address| {
            let missing_service = router.node(&address).missing_service();
            (address, missing_service)
        });
        self.messages(services.collect(), Instant::now())
    }

    fn messages(
        &mut self,
        owners: BTreeMap<Address, Option<MissingService>>,
        now: Instant,
    ) -> Vec<String> {
        let mut recovered_message = Vec::new();
        for (address, noted) in &mut self.noted {
            let Some(words) = noted.recovered_message else { continue };
            match owners.get(address) {
                Some(Some(missing_service)) if recovery_text(missing_service) == words => continue,
                // The problem has changed; the new one is reported separately.
                Some(Some(_)) => {}
                Some(None) => recovered_message.push(format!("{address} {words}")),
                None => recovered_message.push(format!("{address} has no slots any more")),
            }
            noted.recovered_message = None;
        }
        let mut problems = Vec::new();
        for (address, missing_service) in owners {
            let Some(missing_service) = missing_service.filter(|it| lasts(it, now)) else {
                continue;
            };
            let is_due =
                |noted: &Noted| noted.recovered_message.is_none() && now >= noted.at + REPORT_EVERY;
            if self.noted.get(&address).is_none_or(is_due) {
                problems.push(format!("{address} {}", problem_text(&missing_service)));
                let recovered_message =
                    (problems.len() <= MAX_NAMED).then(|| recovery_text(&missing_service));
                self.noted.insert(address, Noted { at: now, recovered_message });
            }
        }
        let problems = all_of(&problems)
            .map(|servers| format!("{servers}; requests wait, or use other servers"));
        all_of(&recovered_message).into_iter().chain(problems).collect()
    }
}

fn lasts(missing_service: &MissingService, now: Instant) -> bool {
    let (MissingService::Service(streak) | MissingService::Writes(streak)) = missing_service;
    now >= streak.first + REPORT_AFTER && now <= streak.last + REPORT_AFTER
}

fn problem_text(missing_service: &MissingService) -> String {
    match missing_service {
        MissingService::Service(streak) => format!("is unavailable ({})", streak.reason),
        MissingService::Writes(streak) => format!("refuses writes ({})", streak.reason),
    }
}

fn recovery_text(missing_service: &MissingService) -> &'static str {
    match missing_service {
        MissingService::Service(_) => "is available again",
        MissingService::Writes(_) => "accepts writes again",
    }
}

fn all_of(servers: &[String]) -> Option<String> {
    let named = servers.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
    match servers.len() {
        0 => None,
        1..=MAX_NAMED => Some(named),
        count => Some(format!("{named}; and {} more", count - MAX_NAMED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Streak;

    fn address(port: u16) -> Address {
        Address { host: "h".into(), port }
    }

    fn streak(first: Instant, last: Instant) -> Streak {
        Streak { first, last, reason: "why".into() }
    }

    #[test]
    fn persistent_problem_and_recovery_are_reported_once() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let unavailable = |seconds| Some(MissingService::Service(streak(begun, at(seconds))));
        let mut watch = Watch::default();
        let mut messages = |missing_service, seconds| {
            watch.messages(BTreeMap::from([(address(1), missing_service)]), at(seconds)).join("\n")
        };
        assert_eq!(messages(unavailable(4), 4), "");
        assert_eq!(messages(unavailable(1), 7), "", "no request since, so it may have recovered");
        let first = messages(unavailable(7), 7);
        assert!(first.starts_with("h:1 is unavailable (why); requests wait"), "{first}");
        assert_eq!(messages(unavailable(300), 300), "", "already reported");
        assert_eq!(messages(None, 301), "h:1 is available again");
        assert_eq!(messages(None, 302), "");
        assert_ne!(messages(unavailable(303), 303), "");
        assert_ne!(messages(None, 304), "");
        assert_eq!(messages(unavailable(305), 305), "", "within a minute of the last report");
        let writes = || Some(MissingService::Writes(streak(at(350), at(363))));
        assert_ne!(messages(writes(), 363), "");
        assert_eq!(messages(writes(), 600), "", "no write was accepted yet");
        assert_eq!(messages(None, 601), "h:1 accepts writes again");
        assert_ne!(messages(Some(MissingService::Writes(streak(at(655), at(661)))), 661), "");
        let other = messages(unavailable(730), 730);
        assert!(other.starts_with("h:1 is unavailable"), "a different problem: {other}");
        assert_eq!(messages(None, 731), "h:1 is available again");
        assert_ne!(messages(unavailable(800), 800), "");
        assert_eq!(watch.messages(BTreeMap::new(), at(801)), ["h:1 has no slots any more"]);
    }

    #[test]
    fn many_servers_are_reported_in_one_line() {
        let begun = Instant::now();
        let now = begun + REPORT_AFTER;
        let all =
            (1..8).map(|port| (address(port), Some(MissingService::Service(streak(begun, now)))));
        let mut watch = Watch::default();
        let messages = watch.messages(all.clone().collect(), now);
        assert!(messages.len() == 1 && messages[0].contains("h:4 is unavailable"), "{messages:?}");
        assert!(messages[0].contains("(why); and 3 more; requests wait"), "{messages:?}");
        // A server that was not named is not reported at the end.
        let messages = watch.messages(all.map(|(address, _)| (address, None)).collect(), now);
        let is_last = messages.len() == 1 && messages[0].ends_with("h:4 is available again");
        assert!(is_last, "{messages:?}");
    }
}
