//! An adaptive binary range coder, that of LZMA: each bit is coded by how often bits in its
//! place were ones before. Page numbers that jump at random take little more than what they
//! tell; all else takes a fraction of a bit.

/// A chance of 1.
const BITS: u32 = 11;
/// How fast a chance follows what is seen.
const SHIFT: u32 = 5;
const TOP: u32 = 1 << 24;

/// How likely a bit in some place is 0, of `1 << BITS`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chance(u16);

impl Default for Chance {
    fn default() -> Chance {
        Chance(1 << (BITS - 1))
    }
}

impl Chance {
    fn bound(self, range: u32) -> u32 {
        (range >> BITS) * u32::from(self.0)
    }

    fn learn(&mut self, bit: bool) {
        match bit {
            true => self.0 -= self.0 >> SHIFT,
            false => self.0 += ((1 << BITS) - self.0) >> SHIFT,
        }
    }
}

/// What codes or decodes: one description of a format is good for both.
pub(super) trait Coder {
    /// A bit, with what is known of its place. One who decodes is given any bit, and returns
    /// the one that was coded.
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> bool;

    /// The lower `count` bits of a number, by a tree of chances: `1 << count` of them.
    fn tree(&mut self, chances: &mut [Chance], count: u32, number: u32) -> u32 {
        let mut node = 1;
        for at in (0..count).rev() {
            let bit = self.bit(&mut chances[node], number >> at & 1 == 1);
            node = node << 1 | usize::from(bit);
        }
        node as u32 - (1 << count)
    }
}

/// Chances for numbers of any size: how many bits they have, then these.
#[derive(Debug, Clone)]
pub(super) struct Number {
    length: [Chance; 64],
    bits: Vec<[Chance; 16]>,
}

impl Default for Number {
    fn default() -> Number {
        Number { length: [Chance::default(); 64], bits: vec![[Chance::default(); 16]; 64 * 34] }
    }
}

impl Number {
    /// A number below 2^32.
    pub(super) fn code(&mut self, coder: &mut impl Coder, number: u32) -> u32 {
        let length = coder.tree(&mut self.length, 6, u32::BITS - number.leading_zeros());
        let mut value: u32 = u32::from(length > 0);
        for at in (0..length.min(u32::BITS).saturating_sub(1)).rev() {
            // The first bits tell something of those after them.
            let seen = if length - at <= 5 { value as usize & 15 } else { 0 };
            let chance = &mut self.bits[length as usize * 34 + at as usize][seen];
            value = value << 1 | u32::from(coder.bit(chance, number >> at & 1 == 1));
        }
        value
    }
}

/// Codes into bytes.
#[derive(Debug)]
pub(super) struct Encoder {
    low: u64,
    range: u32,
    cache: u8,
    pending: u64,
    bytes: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { low: 0, range: u32::MAX, cache: 0, pending: 1, bytes: Vec::new() }
    }
}

impl Encoder {
    fn shift(&mut self) {
        if self.low < 0xff00_0000 || self.low > u64::from(u32::MAX) {
            let carry = (self.low >> 32) as u8;
            for at in 0..self.pending {
                let byte = if at == 0 { self.cache } else { 0xff };
                self.bytes.push(byte.wrapping_add(carry));
            }
            self.pending = 0;
            self.cache = (self.low >> 24) as u8;
        }
        self.pending += 1;
        self.low = (self.low & 0x00ff_ffff) << 8;
    }

    /// All that was coded.
    pub(super) fn finish(mut self) -> Vec<u8> {
        (0..5).for_each(|_| self.shift());
        self.bytes
    }
}

impl Coder for Encoder {
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> bool {
        let bound = chance.bound(self.range);
        if bit {
            self.low += u64::from(bound);
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.learn(bit);
        while self.range < TOP {
            self.range <<= 8;
            self.shift();
        }
        bit
    }
}

/// Decodes from bytes; from their end on zeroes.
#[derive(Debug)]
pub(super) struct Decoder<'b> {
    code: u32,
    range: u32,
    bytes: std::slice::Iter<'b, u8>,
    missing: usize,
}

impl<'b> Decoder<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Decoder<'b> {
        let mut decoder = Decoder { code: 0, range: u32::MAX, bytes: bytes.iter(), missing: 0 };
        (0..5).for_each(|_| decoder.next());
        decoder
    }

    fn next(&mut self) {
        let byte = self.bytes.next().copied();
        self.missing += usize::from(byte.is_none());
        self.code = self.code << 8 | u32::from(byte.unwrap_or(0));
    }

    /// Whether more was asked for than there was, or less.
    pub(super) fn is_damaged(&self) -> bool {
        self.missing > 0 || self.bytes.len() > 0
    }
}

impl Coder for Decoder<'_> {
    fn bit(&mut self, chance: &mut Chance, _: bool) -> bool {
        let bound = chance.bound(self.range);
        let bit = self.code >= bound;
        if bit {
            self.code -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.learn(bit);
        while self.range < TOP {
            self.range <<= 8;
            self.next();
        }
        bit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn coded(numbers: &[u32]) -> Vec<u8> {
        let (mut encoder, mut model) = (Encoder::default(), Number::default());
        numbers.iter().for_each(|number| {
            model.code(&mut encoder, *number);
        });
        encoder.finish()
    }

    proptest! {
        #[test]
        fn numbers_come_back(numbers in prop::collection::vec(
            prop_oneof![Just(0), Just(u32::MAX), 0..50u32, any::<u32>()], 0..500
        )) {
            let bytes = coded(&numbers);
            let (mut decoder, mut model) = (Decoder::new(&bytes), Number::default());
            for number in &numbers {
                prop_assert_eq!(model.code(&mut decoder, 0), *number);
            }
            prop_assert!(!decoder.is_damaged());
        }
    }

    #[test]
    fn what_repeats_takes_hardly_any_room() {
        assert!(coded(&vec![1; 10_000]).len() < 400);
    }

    #[test]
    fn what_is_cut_off_is_known_to_be() {
        let bytes = coded(&(0..1000).collect::<Vec<_>>());
        let (mut decoder, mut model) = (Decoder::new(&bytes[..bytes.len() / 2]), Number::default());
        (0..1000).for_each(|_| {
            model.code(&mut decoder, 0);
        });
        assert!(decoder.is_damaged());
    }
}
