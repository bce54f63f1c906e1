//! Size classes: how a slab is divided.
//!
//! Classes are steps of 64 bytes, each widened so that the slab has no unused tail. Steps that
//! widen to the same size become one class.

use super::handle::{HEADER_BYTES, MAX_OBJECT_BYTES, PoolFull, SLAB_BYTES};

const STEP_BYTES: usize = 64;
const STEPS: usize = MAX_OBJECT_BYTES / STEP_BYTES;
/// Offsets in a slab are multiples of this, so headers are aligned.
const ALIGN_BYTES: usize = size_of::<u64>();
/// Number of lengths of an object with header, in units of `ALIGN_BYTES`, including 0.
const UNITS: usize = (MAX_OBJECT_BYTES + HEADER_BYTES).div_ceil(ALIGN_BYTES) + 1;

#[derive(Clone, Copy)]
pub(super) struct Class {
    pub(super) slot_bytes: usize,
    pub(super) slots: usize,
}

pub(super) const CLASSES: usize = widened_steps().1;

pub(super) static CLASS: [Class; CLASSES] = classes();

/// The class of an object by its length with header, in [`ALIGN_BYTES`].
static CLASS_OF: [u8; UNITS] = class_of();

pub(super) fn class_for(object_bytes: usize) -> usize {
    usize::from(CLASS_OF[(object_bytes + HEADER_BYTES).div_ceil(ALIGN_BYTES)])
}

const fn widened_steps() -> ([Class; STEPS], usize) {
    let mut all = [Class { slot_bytes: 0, slots: 0 }; STEPS];
    let mut count = 0;
    let mut step = 1;
    while step <= STEPS {
        let slots = SLAB_BYTES / (step * STEP_BYTES);
        if count == 0 || all[count - 1].slots != slots {
            let slot_bytes = SLAB_BYTES / slots / ALIGN_BYTES * ALIGN_BYTES;
            all[count] = Class { slot_bytes, slots };
            count += 1;
        }
        step += 1;
    }
    (all, count)
}

const fn classes() -> [Class; CLASSES] {
    let (all, _) = widened_steps();
    let mut classes = [all[0]; CLASSES];
    let mut index = 0;
    while index < CLASSES {
        classes[index] = all[index];
        index += 1;
    }
    classes
}

const fn class_of() -> [u8; UNITS] {
    let classes = classes();
    let mut table = [0; UNITS];
    let (mut units, mut class) = (0, 0);
    while units < table.len() {
        // Fails to compile if the last class is too small for the largest object.
        while classes[class].slot_bytes < units * ALIGN_BYTES {
            class += 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
}

pub(super) fn class_to_take(compressed: &[u8]) -> Result<usize, PoolFull> {
    if compressed.is_empty() || compressed.len() > MAX_OBJECT_BYTES {
        debug_assert!(false, "no slot holds an object of {} bytes", compressed.len());
        return Err(PoolFull);
    }
    Ok(class_for(compressed.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_use_smallest_fitting_class() {
        for object_bytes in 1..=MAX_OBJECT_BYTES {
            let class = class_for(object_bytes);
            assert!(CLASS[class].slot_bytes >= object_bytes + HEADER_BYTES);
            assert!(class == 0 || CLASS[class - 1].slot_bytes < object_bytes + HEADER_BYTES);
        }
    }

    #[test]
    fn class_sizes_fill_slabs() {
        for (index, class) in CLASS.iter().enumerate() {
            let tail = SLAB_BYTES - class.slots * class.slot_bytes;
            assert!(tail < class.slots * ALIGN_BYTES, "class {index} leaves {tail} bytes");
            assert!(class.slot_bytes.is_multiple_of(ALIGN_BYTES));
            assert!(index == 0 || CLASS[index - 1].slot_bytes < class.slot_bytes);
        }
    }

    #[test]
    fn waste_per_object_is_bounded() {
        for object_bytes in 256..=MAX_OBJECT_BYTES {
            let waste = CLASS[class_for(object_bytes)].slot_bytes - object_bytes;
            assert!(waste <= 64 + object_bytes / 16, "{object_bytes} bytes waste {waste}");
        }
    }
}
