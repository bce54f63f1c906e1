//! Each engine handles its own pages, even if one call touches pages of several engines.

use crate::support::{Swapped, mix64};
use softswap::Pool;
use std::io::{Read, Seek, Write};

const PAGE: usize = 4096;
const ALONE_VARIABLE: &str = "SOFTSWAP_POOLS_ALONE";

/// Each engine has memory of four times its budget.
fn work() {
    let swap = std::env::temp_dir();
    let pool = |is_guarded| {
        let builder = Pool::builder().memory("16M").unwrap().swap(swap.to_str().unwrap()).unwrap();
        builder.guard_calls(is_guarded).build().unwrap()
    };
    let pools = [pool(false), pool(true)];
    let mut regions: Vec<_> = pools.iter().map(|pool| pool.map(64 << 20).unwrap()).collect();
    let mut heap = vec![0_u8; 64 << 20];
    let parts = regions.iter_mut().map(|region| &mut region[..]).chain([&mut heap[..]]);
    let word = |part: usize, page: usize| mix64((part << 40 | page) as u64);
    for (number, part) in parts.enumerate() {
        for (page, bytes) in part.chunks_mut(PAGE).enumerate() {
            bytes.fill(page as u8);
            bytes[..8].copy_from_slice(&word(number, page).to_ne_bytes());
        }
    }
    let parts = [&regions[0][..], &regions[1][..], &heap[..]];
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for step in 0..6000 {
                    let chance = mix64(thread << 32 | step) as usize;
                    let (part, page) = (chance % 3, chance / 3 % (parts[0].len() / PAGE));
                    let found = &parts[part][page * PAGE..][..PAGE];
                    assert_eq!(found[..8], word(part, page).to_ne_bytes(), "{part}: {page}");
                    assert_eq!(found[PAGE - 1], page as u8);
                }
            });
        }
    });
    for part in &parts[1..] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(part).unwrap();
        file.rewind().unwrap();
        let mut found = vec![0; 1 << 20];
        for expected in part.chunks(1 << 20) {
            file.read_exact(&mut found).unwrap();
            assert!(found == expected);
        }
    }
    for pool in &pools {
        let stats = pool.stats();
        let come_back = stats.faults_memory + stats.faults_disk;
        assert!(come_back > 0 && stats.used_peak_bytes <= 16 << 20, "{stats:?}");
    }
}

#[test]
fn pools_work_with_the_runtime() {
    if std::env::var_os(ALONE_VARIABLE).is_some() {
        work();
        return;
    }
    let swapped = Swapped::within("16M");
    let arguments = ["pools::pools_work_with_the_runtime", "--exact", "--nocapture"];
    let mut command = swapped.command(std::env::current_exe().unwrap(), &arguments);
    let output = command.env(ALONE_VARIABLE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?} {text}", output.status);
}
