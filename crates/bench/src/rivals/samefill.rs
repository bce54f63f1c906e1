//! Whether a page repeats one word, asked a word at a time: from the start, from
//! the end, and the last word first, as zswap asks now.
//!
//! Each stops at the first word that differs. What is timed and what counts the
//! words is one piece of code; so the counts are those of what was timed.

const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;
/// Words of a page.
pub(crate) const WORDS: usize = PAGE_BYTES / WORD_BYTES;

/// An order in which the words are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordOrder {
    /// Each word with the first one, from the start.
    Forward,
    /// Each word with the last one, from the end.
    Backward,
    /// The last word with the first one, then as forward.
    LastFirst,
}

/// The word that the page repeats, if it does: compared from the start.
// Never inlined, none of them: each page then costs every check one call.
#[inline(never)]
pub(crate) fn forward(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    forward_counting(page, || ())
}

/// The same, compared from the end.
#[inline(never)]
pub(crate) fn backward(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    backward_counting(page, || ())
}

/// The same, compared from the start after the last word.
#[inline(never)]
pub(crate) fn last_first(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    last_first_counting(page, || ())
}

/// How many words are compared until the verdict is there.
pub(crate) fn words_compared(page: &[u8; PAGE_BYTES], order: WordOrder) -> u32 {
    let mut count = 0;
    let each = || count += 1;
    match order {
        WordOrder::Forward => forward_counting(page, each),
        WordOrder::Backward => backward_counting(page, each),
        WordOrder::LastFirst => last_first_counting(page, each),
    };
    count
}

fn word(page: &[u8; PAGE_BYTES], at: usize) -> u64 {
    let (words, _) = page.as_chunks::<WORD_BYTES>();
    u64::from_ne_bytes(words[at])
}

#[inline(always)]
fn forward_counting(page: &[u8; PAGE_BYTES], mut each: impl FnMut()) -> Option<u64> {
    let first = word(page, 0);
    for at in 1..WORDS {
        each();
        if word(page, at) != first {
            return None;
        }
    }
    Some(first)
}

#[inline(always)]
fn backward_counting(page: &[u8; PAGE_BYTES], mut each: impl FnMut()) -> Option<u64> {
    let last = word(page, WORDS - 1);
    for at in (0..WORDS - 1).rev() {
        each();
        if word(page, at) != last {
            return None;
        }
    }
    Some(last)
}

#[inline(always)]
fn last_first_counting(page: &[u8; PAGE_BYTES], mut each: impl FnMut()) -> Option<u64> {
    let first = word(page, 0);
    each();
    if word(page, WORDS - 1) != first {
        return None;
    }
    for at in 1..WORDS - 1 {
        each();
        if word(page, at) != first {
            return None;
        }
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&[u8; PAGE_BYTES]) -> Option<u64>;
    const CHECKS: [Check; 3] = [forward, backward, last_first];
    const ORDERS: [WordOrder; 3] = [WordOrder::Forward, WordOrder::Backward, WordOrder::LastFirst];

    fn counts(page: &[u8; PAGE_BYTES]) -> [u32; 3] {
        ORDERS.map(|order| words_compared(page, order))
    }

    #[test]
    fn a_page_of_one_word_is_told_after_all_its_words() {
        let page = [0xA7; PAGE_BYTES];
        for check in CHECKS {
            assert_eq!(check(&page), Some(0xA7A7_A7A7_A7A7_A7A7));
        }
        assert_eq!(counts(&page), [511; 3]);
    }

    #[test]
    fn one_differing_byte_anywhere_is_noticed() {
        for at in 0..PAGE_BYTES {
            let mut page = [0x5A; PAGE_BYTES];
            page[at] ^= 1;
            assert_eq!(CHECKS.map(|check| check(&page)), [None; 3], "byte {at}");
        }
    }

    #[test]
    fn words_are_compared_up_to_the_first_that_differs() {
        let differing_at = |at: usize| {
            let mut page = [0; PAGE_BYTES];
            page[at * WORD_BYTES] = 1;
            counts(&page)
        };
        assert_eq!(differing_at(0), [1, 511, 1]);
        assert_eq!(differing_at(1), [1, 510, 2]);
        assert_eq!(differing_at(100), [100, 411, 101]);
        assert_eq!(differing_at(510), [510, 1, 511]);
        // The worst page for a check from the start.
        assert_eq!(differing_at(511), [511, 1, 1]);
    }
}
