//! Messages for a run's user about servers without service, so that a wait for them is not taken
//! for a hang.

use crate::node::Lack;
use crate::router::Router;
use crate::url::Address;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A problem is reported if it lasts this long and occurred within this time.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// Shortest interval between two reports about one server.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of servers named in a message; others are only counted.
const MOST_NAMED: usize = 4;

#[derive(Default)]
pub(crate) struct Watch {
    noted: BTreeMap<Address, Noted>,
}

struct Noted {
    at: Instant,
    /// The message for the end of the problem; `None` after it was sent, or if the server was only
    /// counted.
    over: Option<&'static str>,
}

impl Watch {
    /// Checks the servers with slots and returns the messages due.
    pub(crate) fn look(&mut self, router: &Router) -> Vec<String> {
        let topology = router.topology();
        let owners = topology.owners().into_iter().map(|(member, _)| member.address.clone());
        let lacks = owners.map(|address| (router.node(&address).lack(), address));
        self.tell(lacks.map(|(lack, address)| (address, lack)).collect(), Instant::now())
    }

    fn tell(&mut self, owners: BTreeMap<Address, Option<Lack>>, now: Instant) -> Vec<String> {
        let mut over = Vec::new();
        for (address, noted) in &mut self.noted {
            let Some(words) = noted.over else { continue };
            match owners.get(address) {
                Some(Some(lack)) if over_of(lack) == words => continue,
                // The problem has changed; the new one is reported separately.
                Some(Some(_)) => {}
                Some(None) => over.push(format!("{address} {words}")),
                None => over.push(format!("{address} has no slots any more")),
            }
            noted.over = None;
        }
        let mut lacking = Vec::new();
        for (address, lack) in owners {
            let Some(lack) = lack.filter(|lack| lasts(lack, now)) else { continue };
            let noted = self.noted.get(&address);
            if noted.is_none_or(|noted| noted.over.is_none() && now >= noted.at + TOLD_EVERY) {
                lacking.push(format!("{address} {}", words_of(&lack)));
                let over = (lacking.len() <= MOST_NAMED).then(|| over_of(&lack));
                self.noted.insert(address, Noted { at: now, over });
            }
        }
        let lacking = all_of(&lacking)
            .map(|servers| format!("{servers}; requests to it wait, or use other servers"));
        all_of(&over).into_iter().chain(lacking).collect()
    }
}

/// Returns true if the problem has lasted, and occurred recently.
fn lasts(lack: &Lack, now: Instant) -> bool {
    let (Lack::Service(streak) | Lack::Writes(streak)) = lack;
    now >= streak.first + TOLD_AFTER && now <= streak.last + TOLD_AFTER
}

fn words_of(lack: &Lack) -> String {
    match lack {
        Lack::Service(streak) => format!("is unavailable ({})", streak.reason),
        Lack::Writes(streak) => format!("refuses writes ({})", streak.reason),
    }
}

fn over_of(lack: &Lack) -> &'static str {
    match lack {
        Lack::Service(_) => "is available again",
        Lack::Writes(_) => "accepts writes again",
    }
}

fn all_of(servers: &[String]) -> Option<String> {
    let named = servers.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
    match servers.len() {
        0 => None,
        1..=MOST_NAMED => Some(named),
        count => Some(format!("{named}; and {} more", count - MOST_NAMED)),
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
    fn a_server_that_lacks_something_for_long_is_told_once_and_when_it_is_back() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let away = |seconds| Some(Lack::Service(streak(begun, at(seconds))));
        let mut watch = Watch::default();
        let mut tell = |lack, seconds| {
            watch.tell(BTreeMap::from([(address(1), lack)]), at(seconds)).join("\n")
        };
        assert_eq!(tell(away(4), 4), "");
        assert_eq!(tell(away(1), 7), "", "nobody has asked since: it may be back");
        assert!(tell(away(7), 7).starts_with("h:1 is unavailable (why); requests to it wait"));
        assert_eq!(tell(away(300), 300), "", "it has been told");
        assert_eq!(tell(None, 301), "h:1 is available again");
        assert_eq!(tell(None, 302), "");
        assert_ne!(tell(away(303), 303), "");
        assert_ne!(tell(None, 304), "");
        assert_eq!(tell(away(305), 305), "", "not every few seconds");
        let writes = || Some(Lack::Writes(streak(at(350), at(363))));
        assert_ne!(tell(writes(), 363), "");
        assert_eq!(tell(writes(), 600), "", "it has not written");
        assert_eq!(tell(None, 601), "h:1 accepts writes again");
        assert_ne!(tell(Some(Lack::Writes(streak(at(655), at(661)))), 661), "");
        assert!(tell(away(730), 730).starts_with("h:1 is unavailable"), "that is something else");
        assert_eq!(tell(None, 731), "h:1 is available again");
        assert_ne!(tell(away(800), 800), "");
        assert_eq!(watch.tell(BTreeMap::new(), at(801)), ["h:1 has no slots any more"]);
    }

    #[test]
    fn many_servers_are_one_line() {
        let begun = Instant::now();
        let now = begun + TOLD_AFTER;
        let all = (1..8).map(|port| (address(port), Some(Lack::Service(streak(begun, now)))));
        let mut watch = Watch::default();
        let told = watch.tell(all.clone().collect(), now);
        assert!(told.len() == 1 && told[0].contains("h:4 is unavailable"), "{told:?}");
        assert!(told[0].contains("(why); and 3 more; requests to it wait"), "{told:?}");
        // A server that was not named is not reported at the end.
        let told = watch.tell(all.map(|(address, _)| (address, None)).collect(), now);
        assert!(told.len() == 1 && told[0].ends_with("h:4 is available again"), "{told:?}");
    }
}
