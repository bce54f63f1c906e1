//! Placement: the slots of the copies of each page. Here a slot is a hash slot of the cluster.
//!
//! Pages are grouped in *extents* of 31. With its headers an extent is just below 128 KiB, a size
//! class of the servers' allocator. Extents are assigned to 512 groups. A group has one slot for
//! each copy, on two different primaries, and on two machines if the addresses differ. The table is
//! stored on the cluster too, so a restarted helper can read it.

use crate::seal::{HEADER_BYTES, SEALED_BYTES};
use crate::topology::{SLOTS, Topology, tag_of};
use std::collections::HashMap;

pub(crate) const PAGES: u64 = 31;
/// Length of an extent: its pages and one byte. That last byte is written first, so that the server
/// allocates the whole extent once.
pub(crate) const EXTENT_BYTES: usize = PAGES as usize * SEALED_BYTES + 1;
pub(crate) const GROUPS: usize = 512;
/// Flag in a stored table, above the group numbers: marks an obsolete copy.
const OBSOLETE: u16 = 1 << 13;
const _: () = assert!(GROUPS <= OBSOLETE as usize && (OBSOLETE as usize) << 1 <= SLOTS);

const _: () = assert!(EXTENT_BYTES + HEADER_BYTES <= 128 << 10);

/// Copies in `former` slots exist until a move ends. Those in `obsolete` slots are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) slots: Vec<u16>,
    pub(crate) former: Vec<u16>,
    pub(crate) obsolete: Vec<u16>,
}

impl Group {
    fn at(slots: Vec<u16>) -> Group {
        Group { slots, former: Vec::new(), obsolete: Vec::new() }
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = u16> {
        self.slots.iter().chain(&self.former).copied()
    }

    pub(crate) fn move_copy(&mut self, copy: usize, slot: u16) {
        let before = std::mem::replace(&mut self.slots[copy], slot);
        self.former.push(before);
        // The new slot may be a former one.
        self.former.retain(|former| !self.slots.contains(former));
        self.obsolete.retain(|obsolete| !self.slots.contains(obsolete));
    }

    pub(crate) fn finish_move(&mut self) {
        self.obsolete.append(&mut self.former);
        self.obsolete.sort_unstable();
        self.obsolete.dedup();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) groups: Vec<Group>,
    pub(crate) version: u64,
}

pub(crate) fn extent_of(page: u64) -> u64 {
    page / PAGES
}

pub(crate) fn group_of(extent: u64) -> usize {
    (extent % GROUPS as u64) as usize
}

struct Places {
    hosts: Vec<String>,
    slots: Vec<Vec<u16>>,
    owner: HashMap<u16, usize>,
}

impl Places {
    fn new(topology: &Topology) -> Self {
        let mut places = Self { hosts: Vec::new(), slots: Vec::new(), owner: HashMap::new() };
        for (member, slots) in topology.primaries() {
            places.owner.extend(slots.iter().map(|slot| (*slot, places.hosts.len())));
            places.hosts.push(member.address.host.clone());
            places.slots.push(slots);
        }
        places
    }

    /// Returns a slot on a primary not in `others`, on another machine if possible.
    fn slot_apart_from(&self, others: &[usize], seed: usize) -> Option<u16> {
        let apart: Vec<usize> = (0..self.slots.len()).filter(|one| !others.contains(one)).collect();
        let is_other_machine =
            |one: &usize| others.iter().all(|o| self.hosts[*o] != self.hosts[*one]);
        let machines: Vec<usize> = apart.iter().copied().filter(is_other_machine).collect();
        let choice = if machines.is_empty() { apart } else { machines };
        let slots = &self.slots[*choice.get(seed % choice.len().max(1))?];
        // Spread over all slots of the primary: if some of them migrate, few groups are affected.
        Some(slots[mixed(seed) % slots.len()])
    }
}

fn is_alive(topology: &Topology, slot: u16) -> bool {
    topology.owner(slot).is_some_and(|member| !member.is_failed)
}

fn mixed(seed: usize) -> usize {
    ((seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as usize
}

impl Placement {
    pub(crate) fn new(topology: &Topology, copies: usize) -> Option<Self> {
        let places = Places::new(topology);
        let primaries = places.slots.len();
        if primaries < copies {
            return None;
        }
        let group = |number: usize| {
            let first = number % primaries;
            let slots = &places.slots[first];
            let mut group = vec![slots[mixed(number) % slots.len()]];
            if copies == 2 {
                group.push(places.slot_apart_from(&[first], number / primaries)?);
            }
            Some(Group::at(group))
        };
        let groups: Option<Vec<Group>> = (0..GROUPS).map(group).collect();
        Some(Self { groups: groups?, version: 1 })
    }

    /// Returns group, copy and new slot of each copy that shares a primary or has no usable one.
    pub(crate) fn misplaced(&self, topology: &Topology) -> Vec<(usize, usize, u16)> {
        let places = Places::new(topology);
        let wrong = |(number, group): (usize, &Group)| {
            let owners: Vec<Option<usize>> =
                group.slots.iter().map(|slot| places.owner.get(slot).copied()).collect();
            let copy = match owners.as_slice() {
                // A single copy cannot be moved or recovered.
                [_] => return None,
                [None, Some(_)] => 0,
                [Some(_), None] => 1,
                // Failed servers may recover, so copies on two of them stay. A copy on an
                // unwritable server is readable, so the copies move, one at a time.
                [None, None] if group.slots.iter().any(|slot| is_alive(topology, *slot)) => 0,
                [Some(first), Some(second)] if first == second => 1,
                _ => return None,
            };
            let other_owner: Vec<usize> = owners[1 - copy].into_iter().collect();
            let slot = places.slot_apart_from(&other_owner, number / places.slots.len().max(1))?;
            Some((number, copy, slot))
        };
        self.groups.iter().enumerate().filter_map(wrong).collect()
    }

    /// Encodes the table, little-endian: the version, the slots of all groups, then a pair of group
    /// and slot for each former slot. The bit `OBSOLETE` of the group marks obsolete copies.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let slots = self.groups.iter().flat_map(|group| &group.slots);
        let former = (0..).zip(&self.groups).flat_map(|(number, group): (u16, &Group)| {
            let former = group.former.iter().map(move |slot| [number, *slot]);
            former
                .chain(group.obsolete.iter().map(move |slot| [number | OBSOLETE, *slot]))
                .flatten()
        });
        let numbers = slots.copied().chain(former);
        self.version.to_le_bytes().into_iter().chain(numbers.flat_map(u16::to_le_bytes)).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8], copies: usize) -> Option<Self> {
        let (version, slots) = bytes.split_first_chunk::<8>()?;
        let (slots, rest) = slots.as_chunks::<2>();
        let slots: Vec<u16> = slots.iter().map(|slot| u16::from_le_bytes(*slot)).collect();
        let is_whole = rest.is_empty() && slots.iter().all(|slot| usize::from(*slot) < SLOTS);
        let (slots, former) = slots.split_at_checked(GROUPS * copies).filter(|_| is_whole)?;
        let (former, rest) = former.as_chunks::<2>();
        let mut groups: Vec<Group> = slots.chunks(copies).map(|it| Group::at(it.into())).collect();
        for [number, slot] in former {
            let group = groups.get_mut(usize::from(*number & !OBSOLETE))?;
            let places =
                if *number & OBSOLETE == 0 { &mut group.former } else { &mut group.obsolete };
            places.push(*slot);
        }
        rest.is_empty().then_some(Self { groups, version: u64::from_le_bytes(*version) })
    }
}

/// The keys of one area of a run. The tag in braces selects the slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) run: u64,
    pub(crate) area: u16,
}

impl Keys {
    pub(crate) fn extent(&self, slot: u16, extent: u64) -> String {
        format!("softswap:{{{}}}:{:016x}:{}:{extent:x}", tag_of(slot), self.run, self.area)
    }

    pub(crate) fn placement(&self, slot: u16) -> String {
        format!("softswap:{{{}}}:{:016x}:{}:placement", tag_of(slot), self.run, self.area)
    }

    pub(crate) fn lease(&self, slot: u16) -> String {
        format!("softswap:{{{}}}:{:016x}:lease", tag_of(slot), self.run)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Extent { area: u16, extent: u64 },
    Placement { area: u16 },
    Lease,
}

pub(crate) fn parse_key(key: &str) -> Option<(u64, Kind)> {
    let (_, rest) = key.strip_prefix("softswap:{")?.split_once("}:")?;
    let mut parts = rest.split(':');
    let run = u64::from_str_radix(parts.next().filter(|run| run.len() == 16)?, 16).ok()?;
    let kind = match (parts.next()?, parts.next()) {
        ("lease", None) => Kind::Lease,
        (area, Some("placement")) => Kind::Placement { area: area.parse().ok()? },
        (area, Some(extent)) => {
            Kind::Extent { area: area.parse().ok()?, extent: u64::from_str_radix(extent, 16).ok()? }
        }
        _ => return None,
    };
    parts.next().is_none().then_some((run, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Address;

    const THREE: [(&str, &str, &str); 3] =
        [("a", "master", "0-5000"), ("a", "master", "5001-9000"), ("a", "master", "9001-16383")];

    fn topology(nodes: &[(&str, &str, &str)]) -> Topology {
        let line = |(number, (host, flags, slots)): (usize, &(&str, &str, &str))| {
            format!("id{number} {host}:{}@1 {flags} - 0 0 1 connected {slots}\n", 7000 + number)
        };
        let text: String = nodes.iter().enumerate().map(line).collect();
        Topology::parse(&text, &Address { host: "h".into(), port: 1 }, false).unwrap()
    }

    fn owners(placement: &Placement, topology: &Topology) -> Vec<Vec<u16>> {
        let owner = |slot: &u16| topology.owner(*slot).unwrap().address.port;
        placement.groups.iter().map(|group| group.slots.iter().map(owner).collect()).collect()
    }

    #[test]
    fn copies_are_balanced_over_different_primaries() {
        let three = topology(&THREE);
        let placement = Placement::new(&three, 2).unwrap();
        let mut share = HashMap::new();
        for owners in owners(&placement, &three) {
            assert_ne!(owners[0], owners[1]);
            owners.iter().for_each(|owner| *share.entry(*owner).or_insert(0) += 1);
        }
        assert!(share.values().all(|groups| (320..=362).contains(groups)), "{share:?}");
        assert_eq!(placement.misplaced(&three), []);
        assert_eq!(Placement::from_bytes(&placement.to_bytes(), 2).unwrap(), placement);
        assert_eq!(Placement::from_bytes(&placement.to_bytes()[1..], 2), None);
        assert!(Placement::new(&topology(&[("a", "master", "0-16383")]), 2).is_none());
    }

    #[test]
    fn other_machines_are_preferred() {
        let four = topology(&[
            ("a", "master", "0-4000"),
            ("a", "master", "4001-8000"),
            ("b", "master", "8001-12000"),
            ("b", "master", "12001-16383"),
        ]);
        for owners in owners(&Placement::new(&four, 2).unwrap(), &four) {
            assert_ne!(owners[0] < 7002, owners[1] < 7002, "{owners:?}");
        }
    }

    #[test]
    fn colocated_or_orphaned_copies_get_new_slot() {
        let before = topology(&THREE);
        let moved = [("a", "master", "0-1000 9001-16383"), ("a", "master", "1001-5000")];
        for after in [
            topology(&[moved[0], THREE[1], moved[1]]),
            topology(&[THREE[0], ("a", "master,fail", "5001-9000"), THREE[2]]),
            topology(&[THREE[0], THREE[2]]),
        ] {
            let mut placement = Placement::new(&before, 2).unwrap();
            let misplaced = placement.misplaced(&after);
            assert!(!misplaced.is_empty());
            for (group, copy, slot) in misplaced {
                placement.groups[group].move_copy(copy, slot);
                if group % 2 == 0 {
                    placement.groups[group].finish_move();
                }
            }
            assert_eq!(placement.misplaced(&after), []);
            assert_eq!(Placement::from_bytes(&placement.to_bytes(), 2).unwrap(), placement);
        }
    }

    #[test]
    fn copies_leave_two_unwritable_servers() {
        let nodes = [
            ("a", "master", "0-4000"),
            ("a", "master", "4001-8000"),
            ("a", "master", "8001-12000"),
            ("a", "master", "12001-16383"),
        ];
        let mut topology = topology(&nodes);
        let mut placement = Placement::new(&topology, 2).unwrap();
        topology.members[0].is_unwritable = true;
        topology.members[1].is_unwritable = true;
        for _ in 0..2 {
            for (group, copy, slot) in placement.misplaced(&topology) {
                placement.groups[group].move_copy(copy, slot);
            }
        }
        assert_eq!(placement.misplaced(&topology), []);
        assert!(owners(&placement, &topology).iter().flatten().all(|port| *port >= 7002));
        let mut placement = Placement::new(&self::topology(&nodes), 2).unwrap();
        for member in &mut topology.members[..2] {
            (member.is_failed, member.is_unwritable) = (true, false);
        }
        for (group, copy, slot) in placement.misplaced(&topology) {
            placement.groups[group].move_copy(copy, slot);
        }
        let is_dead = |slot: &u16| topology.owner(*slot).unwrap().is_failed;
        assert!(placement.groups.iter().any(|group| group.slots.iter().all(is_dead)));
    }

    #[test]
    fn group_moved_twice_keeps_both_former_slots() {
        let mut group = Group::at(vec![1, 2]);
        group.move_copy(0, 3);
        group.move_copy(1, 4);
        assert_eq!(group.places().collect::<Vec<u16>>(), [3, 4, 1, 2]);
        group.move_copy(1, 2);
        assert_eq!(group, Group { slots: vec![3, 2], former: vec![1, 4], obsolete: vec![] });
        group.finish_move();
        group.move_copy(0, 1);
        assert_eq!(group, Group { slots: vec![1, 2], former: vec![3], obsolete: vec![4] });
        assert_eq!(group.places().collect::<Vec<u16>>(), [1, 2, 3]);
    }

    #[test]
    fn keys_round_trip() {
        let keys = Keys { run: 0xABC, area: 2 };
        let extent = Kind::Extent { area: 2, extent: 255 };
        assert_eq!(parse_key(&keys.extent(5, 255)), Some((0xABC, extent)));
        assert_eq!(parse_key(&keys.placement(5)), Some((0xABC, Kind::Placement { area: 2 })));
        assert_eq!(parse_key(&keys.lease(5)), Some((0xABC, Kind::Lease)));
        for other in ["softswap:x", "user:{1}:0000000000000abc:lease", "softswap:{1}:abc:lease"] {
            assert_eq!(parse_key(other), None, "{other}");
        }
    }
}
