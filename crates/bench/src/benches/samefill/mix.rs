//! Generated pages: fixed shares of several kinds, in random order.

use crate::measure::noise::{below, fill_with_noise, noise, shuffled};
use crate::pages::Page;
use softswap_engine::codec::same_filled::fill;

const SEED: u64 = 4;

/// Shares in percent; the rest is noise. LAST_WORD: equal up to the last word.
const ZERO: usize = 20;
const OTHER: usize = 3;
const LAST_WORD: usize = 10;
const TEXT: usize = 34;

pub(super) fn pages(count: usize) -> Vec<Page> {
    let order = shuffled(count, SEED);
    let made = |at: usize, number: u64| {
        let mut page = Page::ZERO;
        let share = at * 100 / count;
        if share < ZERO {
        } else if share < ZERO + OTHER {
            fill(&mut page.0, number);
        } else if share < ZERO + OTHER + LAST_WORD {
            fill(&mut page.0, if number & 1 == 0 { 0 } else { number });
            page.0[4095] ^= 1;
        } else if share < ZERO + OTHER + LAST_WORD + TEXT {
            write_text(&mut page, number);
        } else {
            fill_with_noise(&mut page.0, number);
        }
        page
    };
    order.into_iter().zip(noise(SEED)).map(|(at, number)| made(at, number)).collect()
}

fn write_text(page: &mut Page, seed: u64) {
    const WORDS: [&[u8]; 8] = [
        b"memory ",
        b"of the ",
        b"page is ",
        b"kept, ",
        b"and where ",
        b"it goes ",
        b"to disk.\n",
        b"nobody ",
    ];
    let mut words = noise(seed).flat_map(|n| WORDS[below(n, WORDS.len() as u64) as usize]);
    page.0.fill_with(|| words.next().copied().unwrap_or(b' '));
}
