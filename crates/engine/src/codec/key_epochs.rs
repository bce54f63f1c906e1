//! Keys of one area, one for each epoch. A fork begins a new epoch: the forked child gets all keys
//! up to the fork and no later ones.
//!
//! The keys are the leaves of a binary tree of hashes (Goldreich, Goldwasser, Micali, 1986). A node
//! is the hash of its parent and of its side. Every key derives from the root. A [`Cover`], at most
//! 33 nodes, contains the keys of the epochs up to its own: the subtrees to the left of the path to
//! that leaf, and the leaf. No hash leads from these to a node to their right. Therefore a process
//! stores 32 bytes for any number of forks, and its child stores a page.

use ring::digest::{SHA256, digest};
use zeroize::{Zeroize, Zeroizing};

pub(super) const NODE_BYTES: usize = 32;
/// Levels below the root.
const DEPTH: u32 = u32::BITS;

pub(super) type Node = [u8; NODE_BYTES];

fn below(node: &Node, right: bool) -> Zeroizing<Node> {
    const LABEL: &[u8] = b"softswap key epoch";
    let mut block = Zeroizing::new([0; LABEL.len() + NODE_BYTES + 1]);
    let (label, rest) = block.split_at_mut(LABEL.len());
    label.copy_from_slice(LABEL);
    rest[..NODE_BYTES].copy_from_slice(node);
    rest[NODE_BYTES] = u8::from(right);
    let hash = digest(&SHA256, &*block);
    let mut child = Zeroizing::new([0; NODE_BYTES]);
    child.copy_from_slice(hash.as_ref());
    child
}

fn turns_right(epoch: u32, level: u32) -> bool {
    epoch >> (DEPTH - 1 - level) & 1 == 1
}

/// Returns the key of an epoch below `node`, which is at the given level on the path to it.
fn leaf(node: &Node, level: u32, epoch: u32) -> Zeroizing<Node> {
    (level..DEPTH)
        .fold(Zeroizing::new(*node), |node, level| below(&node, turns_right(epoch, level)))
}

pub(super) fn key(root: &Node, epoch: u32) -> Zeroizing<Node> {
    leaf(root, 0, epoch)
}

pub(super) struct Cover {
    epoch: u32,
    /// The left sibling at each level where the path to `epoch` turns right.
    left: [Node; DEPTH as usize],
    last: Node,
}

impl Cover {
    pub(super) fn up_to(root: &Node, epoch: u32) -> Cover {
        let mut cover = Cover { epoch, left: [[0; NODE_BYTES]; DEPTH as usize], last: *root };
        for level in 0..DEPTH {
            let node = Zeroizing::new(cover.last);
            if turns_right(epoch, level) {
                cover.left[level as usize] = *below(&node, false);
            }
            cover.last = *below(&node, turns_right(epoch, level));
        }
        cover
    }

    pub(super) fn wipe(&mut self) {
        self.left.zeroize();
        self.last.zeroize();
    }

    /// Returns the key of an epoch; `None` if it is later than the last one.
    pub(super) fn key(&self, epoch: u32) -> Option<Zeroizing<Node>> {
        if epoch > self.epoch {
            return None;
        }
        // At the first level at which the paths differ, the later one turns right.
        match (epoch ^ self.epoch).leading_zeros() {
            DEPTH => Some(Zeroizing::new(self.last)),
            level => Some(leaf(&self.left[level as usize], level + 1, epoch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch() -> impl Strategy<Value = u32> {
        prop_oneof![0..64_u32, any::<u32>(), (u32::MAX - 64)..=u32::MAX]
    }

    proptest! {
        #[test]
        fn cover_derives_keys_up_to_its_epoch_only(
            root: [u8; NODE_BYTES],
            last in epoch(),
            asked in epoch(),
        ) {
            let given = Cover::up_to(&root, last).key(asked);
            prop_assert_eq!(given.is_some(), asked <= last);
            prop_assert!(given.is_none_or(|given| given == key(&root, asked)));
        }

        #[test]
        fn cover_nodes_are_not_on_paths_to_later_epochs(
            root: [u8; NODE_BYTES],
            last in epoch(),
            later in epoch(),
        ) {
            prop_assume!(later > last);
            let cover = Cover::up_to(&root, last);
            let mut node = Zeroizing::new(root);
            for level in 0..DEPTH {
                node = below(&node, turns_right(later, level));
                prop_assert!(cover.left.iter().chain([&cover.last]).all(|given| *given != *node));
            }
        }
    }

    #[test]
    fn keys_of_different_epochs_differ() {
        let root = [7; NODE_BYTES];
        let keys: std::collections::HashSet<_> =
            (0..1000).map(|epoch| *key(&root, epoch)).collect();
        assert_eq!(keys.len(), 1000);
        assert_ne!(key(&[8; NODE_BYTES], 0), key(&root, 0));
    }
}
