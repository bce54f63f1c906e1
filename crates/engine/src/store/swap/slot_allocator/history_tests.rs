//! Random histories of an area, checked against a model.

use super::tests::CLUSTER;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
enum Step {
    Alloc { cpu: usize, want: usize },
    Free { pick: usize, len: usize },
    Retire { pick: usize },
    Grow,
    Freeze,
    Thaw,
    SetDiscards { on: bool },
    TakeWaiting,
    Discarded,
    Shrink { least: u32 },
    SetAside { cpu: usize, want: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..3_usize, prop_oneof![1..8_usize, 1..=512_usize])
            .prop_map(|(cpu, want)| Step::Alloc { cpu, want }),
        8 => (any::<usize>(), 1..300_usize).prop_map(|(pick, len)| Step::Free { pick, len }),
        1 => any::<usize>().prop_map(|pick| Step::Retire { pick }),
        1 => Just(Step::Grow),
        1 => Just(Step::Freeze),
        1 => Just(Step::Thaw),
        1 => any::<bool>().prop_map(|on| Step::SetDiscards { on }),
        2 => Just(Step::TakeWaiting),
        2 => Just(Step::Discarded),
        1 => (0..5_u32).prop_map(|least| Step::Shrink { least }),
        1 => (0..3_usize, 1..=512_usize).prop_map(|(cpu, want)| Step::SetAside { cpu, want }),
    ]
}

#[derive(Default)]
struct Model {
    free: BTreeSet<u64>,
    used: BTreeSet<u64>,
    /// Used at the start of an active freeze.
    kept: BTreeSet<u64>,
    limbo: BTreeSet<u64>,
    frozen: u32,
    /// Clusters being discarded: free, but not available.
    discarding: Vec<u32>,
}

impl Model {
    fn apply(&mut self, slots: &SlotAllocator, step: &Step) {
        match *step {
            Step::Alloc { cpu, want } => match slots.alloc_slots(cpu, want) {
                Some((first, len)) => {
                    assert!((1..=want).contains(&len));
                    for slot in first..first + len as u64 {
                        assert!(self.free.remove(&slot), "slot {slot} is not free");
                        self.used.insert(slot);
                    }
                }
                None => assert!(!self.free.iter().any(|&slot| self.is_allocatable(slot))),
            },
            Step::Free { pick, len } => {
                let Some(first) = self.pick(pick) else { return };
                let run = (first..first + len as u64).take_while(|slot| self.used.contains(slot));
                let run: Vec<u64> = run.collect();
                slots.free(first, run.len()).unwrap();
                for slot in run {
                    self.used.remove(&slot);
                    let is_kept = self.kept.contains(&slot);
                    if is_kept { &mut self.limbo } else { &mut self.free }.insert(slot);
                }
            }
            Step::Retire { pick } => {
                let Some(slot) = self.pick(pick) else { return };
                slots.retire(slot, 1).unwrap();
                self.used.remove(&slot);
            }
            Step::Grow => {
                let old = slots.total_slots();
                slots.grow(1);
                self.free.extend(old.max(1)..slots.total_slots());
            }
            Step::Freeze => {
                slots.freeze();
                self.frozen += 1;
                self.kept.extend(&self.used);
            }
            Step::Thaw if self.frozen > 0 => {
                slots.thaw();
                self.frozen -= 1;
                if self.frozen == 0 {
                    self.free.append(&mut self.limbo);
                    self.kept.clear();
                }
            }
            Step::Thaw => {}
            Step::SetDiscards { on } => slots.set_discards(on),
            Step::TakeWaiting => {
                if let Some(cluster) = slots.take_waiting() {
                    let first = u64::from(cluster) * CLUSTER;
                    assert!((first..first + CLUSTER).all(|slot| self.free.contains(&slot)));
                    self.discarding.push(cluster);
                }
            }
            Step::Discarded => {
                if let Some(cluster) = self.discarding.pop() {
                    slots.discarded(cluster);
                }
            }
            Step::Shrink { least } => {
                let gone = u64::from(slots.shrink(least)) * CLUSTER;
                let end = slots.total_slots();
                assert!(gone == 0 || end >= u64::from(least.max(1)) * CLUSTER);
                let removed = self.free.split_off(&end);
                assert_eq!(removed.len() as u64, gone, "only free slots");
            }
            Step::SetAside { cpu, want } => {
                if let Some((first, len)) = slots.alloc_slots(cpu, want) {
                    slots.set_aside(first, len);
                }
            }
        }
        assert_eq!(slots.used_slots() as usize, self.used.len() + self.limbo.len());
    }

    fn is_allocatable(&self, slot: u64) -> bool {
        !self.discarding.contains(&((slot / CLUSTER) as u32))
    }

    fn pick(&self, pick: usize) -> Option<u64> {
        self.used.iter().nth(pick.checked_rem(self.used.len())?).copied()
    }
}

proptest! {
    #[test]
    fn random_history_allocates_each_free_slot(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let slots = SlotAllocator::new(4, 3).unwrap();
        let mut model = Model::default();
        model.apply(&slots, &Step::Grow);
        for step in &steps {
            model.apply(&slots, step);
        }
        while model.frozen > 0 {
            model.apply(&slots, &Step::Thaw);
        }
        while !model.discarding.is_empty() {
            model.apply(&slots, &Step::Discarded);
        }
        while !model.free.is_empty() {
            model.apply(&slots, &Step::Alloc { cpu: 0, want: 512 });
        }
        assert_eq!(slots.alloc_slots(1, 1), None);
    }
}
