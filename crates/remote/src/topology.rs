//! Topology: the owners of the hash slots, as reported by the cluster.

use crate::url::Address;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

pub(crate) const SLOTS: usize = 16384;
const NO_OWNER: u16 = u16::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) address: Address,
    pub(crate) is_primary: bool,
    /// The majority of the primaries considers the server dead.
    pub(crate) is_failed: bool,
    /// The server answers reads, but has accepted no writes for some time.
    pub(crate) is_unwritable: bool,
}

impl Member {
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_failed && !self.is_unwritable
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) members: Vec<Member>,
    owners: Vec<u16>,
    pub(crate) epoch: u64,
}

impl Topology {
    pub(crate) fn single(address: Address) -> Self {
        let members =
            vec![Member { address, is_primary: true, is_failed: false, is_unwritable: false }];
        Self { members, owners: vec![0; SLOTS], epoch: 0 }
    }

    /// Parses `CLUSTER NODES`. The own line of the server at `asked` may lack its host.
    ///
    /// A line: `ID HOST:PORT@BUS[,NAME] FLAGS MASTER PING PONG EPOCH LINK SLOT...`
    pub(crate) fn parse(text: &str, asked: &Address, prefer_names: bool) -> Option<Self> {
        let mut topology = Self { members: Vec::new(), owners: vec![NO_OWNER; SLOTS], epoch: 0 };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, place, flags, _, _, _, epoch, _, slots @ ..] = fields.as_slice() else {
                return None;
            };
            let flags: Vec<&str> = flags.split(',').collect();
            topology.epoch = topology.epoch.max(epoch.parse().ok()?);
            if flags.contains(&"noaddr") || flags.contains(&"handshake") {
                continue;
            }
            let index =
                u16::try_from(topology.members.len()).ok().filter(|index| *index < NO_OWNER)?;
            for slot in slots.iter().filter(|slot| !slot.starts_with('[')) {
                let (first, last) = slot.split_once('-').unwrap_or((slot, slot));
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                topology.owners.get_mut(first..=last)?.fill(index);
            }
            topology.members.push(Member {
                address: place_of(place, asked, prefer_names)?,
                is_primary: flags.contains(&"master"),
                is_failed: flags.contains(&"fail"),
                is_unwritable: false,
            });
        }
        (!topology.members.is_empty()).then_some(topology)
    }

    pub(crate) fn signature(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (slot, pair) in (1..).zip(self.owners.windows(2)) {
            if pair[0] != pair[1] || slot == 1 {
                let of = |owner: u16| self.members.get(usize::from(owner));
                let state = of(pair[1]).map(|m| (&m.address, m.is_primary, m.is_failed));
                let first = of(pair[0]).filter(|_| slot == 1).map(|m| (&m.address, m.is_failed));
                (slot, state, first).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<&Member> {
        self.members.get(usize::from(self.owners[usize::from(slot)]))
    }

    pub(crate) fn primaries(&self) -> Vec<(&Member, Vec<u16>)> {
        self.owners_where(Member::is_usable)
    }

    pub(crate) fn owners(&self) -> Vec<(&Member, Vec<u16>)> {
        self.owners_where(|_| true)
    }

    /// Returns the failed primaries that still have slots. After a failover a primary has no slots.
    pub(crate) fn missing_primaries(&self) -> Vec<&Member> {
        self.owners_where(|member| member.is_failed).into_iter().map(|(member, _)| member).collect()
    }

    fn owners_where(&self, accepts: impl Fn(&Member) -> bool) -> Vec<(&Member, Vec<u16>)> {
        let mut found: Vec<(&Member, Vec<u16>)> =
            self.members.iter().map(|member| (member, Vec::new())).collect();
        for (slot, owner) in (0..).zip(&self.owners) {
            if let Some((_, slots)) = found.get_mut(usize::from(*owner)) {
                slots.push(slot);
            }
        }
        found.retain(|(member, slots)| member.is_primary && accepts(member) && !slots.is_empty());
        found
    }
}

fn place_of(place: &str, asked: &Address, prefer_names: bool) -> Option<Address> {
    let (place, rest) = place.split_once('@').unwrap_or((place, ""));
    let (host, port) = place.rsplit_once(':')?;
    let name = rest.split(',').nth(1).filter(|name| prefer_names && !name.is_empty());
    let host = match name.unwrap_or(host) {
        "" => &asked.host,
        host => host,
    };
    Some(Address { host: host.to_string(), port: port.parse().ok()? })
}

/// Returns the slot of a key's hash tag: CRC-16/XMODEM, as in the cluster specification.
pub(crate) fn slot_of(tag: &str) -> u16 {
    let mut crc = 0u16;
    for byte in tag.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    crc % SLOTS as u16
}

static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; SLOTS];
    let mut missing = SLOTS;
    for number in 0.. {
        let tag = &mut tags[usize::from(slot_of(&number.to_string()))];
        if *tag == u32::MAX {
            *tag = number;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    tags
});

pub(crate) fn tag_of(slot: u16) -> u32 {
    TAGS[usize::from(slot)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_hash_matches_specification() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12182);
        for slot in [0, 1, 8191, 16383] {
            assert_eq!(slot_of(&tag_of(slot).to_string()), slot);
        }
    }

    #[test]
    fn cluster_answer_is_parsed() {
        let text = "a1 :7000@17000,name myself,master - 0 0 3 connected 0-8191 [5-<-b1]\n\
                    b1 10.0.0.2:7001@17001 master,fail - 0 0 2 connected 8192 8194-16383\n\
                    c1 10.0.0.3:7002@17002,x slave b1 0 0 9 connected\n\
                    d1 :0@0 master,noaddr - 0 0 1 disconnected\n";
        let server = Address { host: "h".into(), port: 1 };
        let topology = Topology::parse(text, &server, false).unwrap();
        assert_eq!((topology.members.len(), topology.epoch), (3, 9));
        assert_eq!(topology.owner(8191).unwrap().address.to_string(), "h:7000");
        assert_eq!(topology.owner(8193), None);
        assert!(topology.owner(16383).unwrap().is_failed);
        let primaries = topology.primaries();
        assert_eq!((primaries.len(), primaries[0].1.len()), (1, 8192));
        let missing = topology.missing_primaries();
        assert_eq!((missing.len(), missing[0].address.port), (1, 7001));
        // After the failover of a primary to its replica.
        let after = text.replace(" 8192 8194-16383", "");
        let after =
            after.replace("slave b1 0 0 9 connected", "master - 0 0 9 connected 8192-16383");
        let after = Topology::parse(&after, &server, false).unwrap();
        assert_eq!((after.primaries().len(), after.missing_primaries().len()), (2, 0));
        let reversed: Vec<&str> = text.lines().rev().collect();
        let reordered = Topology::parse(&reversed.join("\n"), &server, false).unwrap();
        assert_eq!(reordered.signature(), topology.signature());
        let moved = Topology::parse(&text.replace("0-8191", "0-8190"), &server, false).unwrap();
        assert_ne!(moved.signature(), topology.signature());
        let named = Topology::parse(text, &server, true).unwrap();
        assert_eq!(named.members[2].address.host, "x");
        for bad in [
            "",
            "ERR no cluster",
            "a b c d e f g h",
            "a h:1@2 master - 0 0 1 up 0-99999",
            "a h:1@2 master - 0 0 1 up 0-18446744073709551615",
        ] {
            assert!(Topology::parse(bad, &server, false).is_none(), "{bad}");
        }
    }
}
