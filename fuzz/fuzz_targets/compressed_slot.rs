#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| softswap_fuzz::compressed_slot(input));
