//! What a run's user is told of servers that do not do their part, so that waiting for them is
//! not taken for standing still.

use crate::node::{Lack, Streak};
use crate::router::Router;
use crate::url::Address;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// What is over sooner is not worth a word; what nobody has met for so long may be over.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// The next trouble of the same server is told so long after the last, at the earliest.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// More servers are counted, and not named.
const MOST_NAMED: usize = 4;

/// What has been told of each server.
#[derive(Default)]
pub(crate) struct Watch {
    noted: BTreeMap<Address, Noted>,
}

struct Noted {
    at: Instant,
    /// By which words it is told that this is over; `None` once it has been.
    over: Option<&'static str>,
}

impl Watch {
    /// Looks at the servers that have slots; what is to be told now.
    pub(crate) fn look(&mut self, router: &Router) -> Vec<String> {
        let topology = router.topology();
        let owners = topology.owners().into_iter().map(|(member, _)| member.address.clone());
        let lacks = owners.map(|address| (router.node(&address).lack(), address));
        self.tell(lacks.map(|(lack, address)| (address, lack)).collect(), Instant::now())
    }

    fn tell(&mut self, owners: BTreeMap<Address, Option<Lack>>, now: Instant) -> Vec<String> {
        let mut over = Vec::new();
        for (address, noted) in &mut self.noted {
            match owners.get(address) {
                Some(Some(_)) => {}
                Some(None) => {
                    over.extend(noted.over.take().map(|words| format!("{address} {words}")));
                }
                None if noted.over.take().is_some() => {
                    over.push(format!("{address} has no slots any more"));
                }
                None => {}
            }
        }
        let mut lacking = Vec::new();
        for (address, lack) in owners {
            let Some((words, over)) = lack.and_then(|lack| words_of(&lack, now)) else { continue };
            let noted = self.noted.get(&address);
            if noted.is_none_or(|noted| noted.over.is_none() && now >= noted.at + TOLD_EVERY) {
                lacking.push(format!("{address} {words}"));
                self.noted.insert(address, Noted { at: now, over: Some(over) });
            }
        }
        let lacking = all_of(&lacking)
            .map(|servers| format!("{servers}; what is asked there waits, or goes elsewhere"));
        all_of(&over).into_iter().chain(lacking).collect()
    }
}

/// What is said of a lack that has lasted, and when it is over.
fn words_of(lack: &Lack, now: Instant) -> Option<(String, &'static str)> {
    let lasts = |it: &Streak| now >= it.first + TOLD_AFTER && now <= it.last + TOLD_AFTER;
    match lack {
        Lack::Service(it) if lasts(it) => {
            Some((format!("cannot be used now ({})", it.reason), "can be used again"))
        }
        Lack::Writes(it) if lasts(it) => {
            Some((format!("takes no writes now ({})", it.reason), "takes writes again"))
        }
        _ => None,
    }
}

/// All in one line.
fn all_of(servers: &[String]) -> Option<String> {
    let named = servers.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
    match servers.len() {
        0 => None,
        1..=MOST_NAMED => Some(named),
        count => Some(format!("{named}; and so {} more", count - MOST_NAMED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(tell(away(7), 7).starts_with("h:1 cannot be used now (why); what is asked there"));
        assert_eq!(tell(away(300), 300), "", "it has been told");
        assert_eq!(tell(None, 301), "h:1 can be used again");
        assert_eq!(tell(None, 302), "");
        assert_ne!(tell(away(303), 303), "");
        assert_ne!(tell(None, 304), "");
        assert_eq!(tell(away(305), 305), "", "not every few seconds");
        assert_ne!(tell(Some(Lack::Writes(streak(at(350), at(363)))), 363), "");
        assert_eq!(
            tell(Some(Lack::Writes(streak(at(350), at(363)))), 600),
            "",
            "it has not written"
        );
        assert_eq!(tell(None, 601), "h:1 takes writes again");
        assert_ne!(tell(away(700), 700), "");
        assert_eq!(watch.tell(BTreeMap::new(), at(701)), ["h:1 has no slots any more"]);
    }

    #[test]
    fn many_servers_are_one_line() {
        let begun = Instant::now();
        let now = begun + TOLD_AFTER;
        let all = (1..8).map(|port| (address(port), Some(Lack::Service(streak(begun, now)))));
        let told = Watch::default().tell(all.collect(), now);
        assert!(told.len() == 1 && told[0].contains("h:4 cannot"), "{told:?}");
        assert!(told[0].contains("(why); and so 3 more; what is asked"), "{told:?}");
    }
}
