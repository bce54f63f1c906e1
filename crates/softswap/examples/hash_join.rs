//! Joins two tables by a hash table that is larger than DRAM: `hash_join [ROWS] [MEMORY]`.

use softswap::Pool;

/// Size of a slot: key and value. A key of 0 marks an empty slot.
const SLOT: usize = 16;

fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
}

fn slot(table: &[u8], at: usize) -> (u64, u64) {
    let word =
        |from: usize| u64::from_ne_bytes(table[from..from + 8].try_into().unwrap_or_default());
    (word(at * SLOT), word(at * SLOT + 8))
}

/// Returns the index of the key's slot, or of the empty slot for it.
fn find(table: &[u8], slots: usize, key: u64) -> usize {
    let mut at = hash(key) % slots;
    while !matches!(slot(table, at).0, found if found == 0 || found == key) {
        at = (at + 1) % slots;
    }
    at
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rows: usize = arguments.next().map_or(Ok(2 << 20), |text| text.parse())?;
    let memory = arguments.next().unwrap_or("16M".into());
    let pool = Pool::builder().memory(&memory)?.swap("/var/tmp")?.build()?;
    let slots = rows * 2;
    let mut table = pool.map(slots * SLOT)?;

    // Orders by number, with their cost.
    for order in 1..=rows as u64 {
        let at = find(&table, slots, order);
        table[at * SLOT..at * SLOT + 8].copy_from_slice(&order.to_ne_bytes());
        table[at * SLOT + 8..at * SLOT + 16].copy_from_slice(&(order * 3).to_ne_bytes());
    }
    // Payments, each for an order; some of the orders do not exist.
    let (mut matched, mut total) = (0_u64, 0_u64);
    for payment in 0..rows as u64 / 2 {
        let order = payment * 5 % (rows as u64 * 2) + 1;
        let (found, cost) = slot(&table, find(&table, slots, order));
        if found == order {
            matched += 1;
            total += cost;
        }
    }
    let exist = (0..rows as u64 / 2).map(|payment| payment * 5 % (rows as u64 * 2) + 1);
    let exist = exist.filter(|order| *order <= rows as u64);
    let (expected, cost) = exist.fold((0, 0), |(count, sum), order| (count + 1, sum + order * 3));
    assert_eq!((matched, total), (expected, cost));
    println!("{matched} of {} payments joined; {}", rows / 2, pool.snapshot_stats_json());
    Ok(())
}
