//! Tests a secret's mapping in a process of its own: other tests could map memory at its address.

use softswap_sys::secret::Secret;

fn flags_at(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{address:x}-");
    let of_it = maps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = of_it.take(40).find(|line| line.starts_with("VmFlags:"))?;
    Some(flags.to_string())
}

#[test]
fn secret_is_locked_and_excluded_from_dumps() {
    let secret = Secret::new(|| Ok([7_u64; 100])).unwrap();
    assert_eq!(*secret, [7; 100]);
    let address = secret.as_ptr() as usize;
    let flags = flags_at(address).unwrap();
    assert!(flags.contains(" dd"), "{flags}");
    assert_eq!(flags.contains(" lo"), secret.is_locked(), "{flags}");
    drop(secret);
    assert_eq!(flags_at(address), None);
}
