//! Sorts more records than DRAM holds, by merging sorted runs in a region:
//! `external_sort [RECORDS] [MEMORY]`.

use softswap::{Advice, Pool};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const RUN: usize = 64 << 10;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap_or_default())
}

fn set_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_ne_bytes());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: usize = arguments.next().map_or(Ok(8 << 20), |text| text.parse())?;
    let memory = arguments.next().unwrap_or("16M".into());
    let pool = Pool::builder().memory(&memory)?.swap("/var/tmp")?.build()?;
    let mut input = pool.map(records * 8)?;
    let mut output = pool.map(records * 8)?;
    let (mut state, mut sum) = (1_u64, 0_u64);
    for at in 0..records {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        set_word(&mut input, at, state >> 24);
        sum = sum.wrapping_add(state >> 24);
    }

    let mut run = Vec::with_capacity(RUN);
    for bytes in input.chunks_mut(RUN * 8) {
        run.clear();
        run.extend((0..bytes.len() / 8).map(|at| word(bytes, at)));
        run.sort_unstable();
        run.iter().enumerate().for_each(|(at, key)| set_word(bytes, at, *key));
    }

    let starts = (0..records).step_by(RUN);
    let mut heads: BinaryHeap<_> = starts.map(|at| Reverse((word(&input, at), at))).collect();
    for at in 0..records {
        let Some(Reverse((key, from))) = heads.pop() else { break };
        set_word(&mut output, at, key);
        let next = from + 1;
        if next % RUN != 0 && next < records {
            heads.push(Reverse((word(&input, next), next)));
        }
        if next % RUN == 0 {
            let first = (next - RUN) * 8;
            input.advise(first..next * 8, Advice::DontNeed)?;
        }
    }

    let (mut before, mut sorted_sum) = (0, 0_u64);
    for at in 0..records {
        let key = word(&output, at);
        assert!(before <= key, "record {at} is out of order");
        (before, sorted_sum) = (key, sorted_sum.wrapping_add(key));
    }
    assert_eq!(sum, sorted_sum, "a record is missing");
    println!("{records} records in order; {}", pool.snapshot_stats_json());
    Ok(())
}
