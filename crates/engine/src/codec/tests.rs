use super::*;
use proptest::prelude::*;

/// Every codec, and the zstd levels with different strategies.
const COMPRESSORS: [Compressor; 6] = [
    Compressor::Lz4,
    Compressor::Zstd { level: -5 },
    Compressor::Zstd { level: 1 },
    Compressor::Zstd { level: 3 },
    Compressor::Zstd { level: 5 },
    Compressor::Zstd { level: 9 },
];

fn scratch() -> Scratch {
    Scratch::new(Arc::default()).unwrap()
}

thread_local! {
    /// Shared by all cases, because reserved address space is never released.
    static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::new(scratch());
}

fn with_scratch<T>(run: impl FnOnce(&mut Scratch) -> T) -> T {
    SCRATCH.with_borrow_mut(run)
}

fn any_compressor() -> impl Strategy<Value = Compressor> {
    prop::sample::select(COMPRESSORS.to_vec())
}

/// Pages between constant and random: runs copied from earlier in the page, with random bytes
/// between them.
fn any_page() -> impl Strategy<Value = Box<[u8; PAGE_BYTES]>> {
    let run = (prop::collection::vec(any::<u8>(), 1..80), 1..600usize, 0..400usize);
    prop::collection::vec(run, 1..60).prop_map(|runs| {
        let mut bytes = Vec::new();
        for (fresh, distance, copied) in runs.iter().cycle() {
            bytes.extend_from_slice(fresh);
            for _ in 0..*copied {
                bytes.push(bytes[bytes.len().saturating_sub(*distance)]);
            }
            if bytes.len() >= PAGE_BYTES {
                break;
            }
        }
        bytes.truncate(PAGE_BYTES);
        bytes.into_boxed_slice().try_into().unwrap()
    })
}

fn random_page() -> [u8; PAGE_BYTES] {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
}

#[test]
fn tags_identify_codecs() {
    for codec in Codec::ALL {
        assert_eq!(Codec::from_tag(codec.tag()), Some(codec));
    }
    for tag in [2, 3, 4, u8::MAX] {
        assert_eq!(Codec::from_tag(tag), None);
    }
}

#[test]
fn a_random_page_is_incompressible() {
    let mut out = [0; MAX_COMPRESSED_BYTES];
    for compressor in COMPRESSORS {
        assert_eq!(compress(compressor, &random_page(), &mut out, &mut scratch()), None);
    }
}

#[test]
fn failed_page_does_not_affect_next() {
    let mut page = [0; PAGE_BYTES];
    page[..9].copy_from_slice(b"softswap!");
    for compressor in COMPRESSORS {
        let (mut clean, mut used) = ([0; MAX_COMPRESSED_BYTES], [0; MAX_COMPRESSED_BYTES]);
        let expected = compress(compressor, &page, &mut clean, &mut scratch());
        let mut scratch = scratch();
        assert_eq!(compress(compressor, &random_page(), &mut used, &mut scratch), None);
        assert_eq!(compress(compressor, &page, &mut used, &mut scratch), expected);
        assert_eq!(clean[..expected.unwrap()], used[..expected.unwrap()]);
    }
}

#[test]
fn wrong_page_size_is_rejected() {
    for bytes in [100, PAGE_BYTES - 1, PAGE_BYTES + 1, 2 * PAGE_BYTES] {
        let mut compressed = [0; 4096];
        let len = lz4::compress(&vec![7; bytes], &mut compressed, &mut lz4::State::new()).unwrap();
        let expected = if bytes < PAGE_BYTES {
            CodecError::WrongLength { bytes }
        } else {
            CodecError::Corrupt { compressed_bytes: len }
        };
        let refused =
            decompress(Codec::Lz4, &compressed[..len], &mut [0; PAGE_BYTES], &mut scratch());
        assert_eq!(refused, Err(expected));
    }
}

#[test]
fn empty_input_is_rejected() {
    for codec in Codec::ALL {
        assert!(decompress(codec, &[], &mut [0; PAGE_BYTES], &mut scratch()).is_err());
    }
}

#[test]
fn zstd_memory_is_counted_once() {
    let workspaces = Arc::<Workspaces>::default();
    let mut scratches = [(); 2].map(|()| Scratch::new(workspaces.clone()).unwrap());
    let (page, mut out, mut back) = ([1; PAGE_BYTES], [0; MAX_COMPRESSED_BYTES], [0; PAGE_BYTES]);
    let mut turn = |compressor: Compressor, scratch: &mut Scratch| {
        let len = compress(compressor, &page, &mut out, scratch).unwrap();
        decompress(compressor.codec(), &out[..len], &mut back, scratch).unwrap();
        workspaces.touched_bytes()
    };
    assert_eq!(turn(Compressor::Lz4, &mut scratches[0]), 0);
    let once = turn(Compressor::Zstd { level: 1 }, &mut scratches[0]);
    assert!(once > 0);
    assert_eq!(turn(Compressor::Zstd { level: 1 }, &mut scratches[0]), once);
    assert_eq!(turn(Compressor::Zstd { level: 1 }, &mut scratches[1]), 2 * once);
    let more = turn(Compressor::Zstd { level: 9 }, &mut scratches[0]);
    assert!(more > 2 * once);
    assert_eq!(turn(Compressor::Zstd { level: -5 }, &mut scratches[0]), more);
    assert!(more <= 2 * (zstd::COMPRESSOR_BYTES + zstd::DECOMPRESSOR_BYTES));
}

#[test]
fn codec_memory_is_known_in_advance() {
    let workspaces = Arc::<Workspaces>::default();
    let mut scratch = Scratch::new(workspaces.clone()).unwrap();
    let (page, mut out) = ([1; PAGE_BYTES], [0; MAX_COMPRESSED_BYTES]);
    for compressor in COMPRESSORS {
        let taken = workspaces.touched_bytes() + scratch.bytes_to_compress(compressor);
        compress(compressor, &page, &mut out, &mut scratch).unwrap();
        assert_eq!((workspaces.touched_bytes(), scratch.bytes_to_compress(compressor)), (taken, 0));
    }
    // Without stored zstd pages no decompression memory is needed.
    workspaces.note_stored(Codec::Lz4);
    assert_eq!(scratch.bytes_to_decompress(), 0);
    workspaces.note_stored(Codec::Zstd);
    let taken = workspaces.touched_bytes() + scratch.bytes_to_decompress();
    assert!(scratch.bytes_to_decompress() > 0);
    scratch.open();
    assert_eq!((workspaces.touched_bytes(), scratch.bytes_to_decompress()), (taken, 0));
    let len = compress(COMPRESSORS[1], &page, &mut out, &mut scratch).unwrap();
    decompress(Codec::Zstd, &out[..len], &mut [0; PAGE_BYTES], &mut scratch).unwrap();
    assert_eq!(workspaces.touched_bytes(), taken);
}

proptest! {
    #[test]
    fn format_is_compatible_with_reference(page in any_page()) {
        let (mut out, mut back) = ([0; 2 * PAGE_BYTES], [0; PAGE_BYTES]);
        with_scratch(|scratch| {
            let len = compress(Compressor::Lz4, &page, &mut out, scratch).unwrap();
            prop_assert_eq!(
                lz4_flex::block::decompress_into(&out[..len], &mut back).unwrap(),
                PAGE_BYTES
            );
            prop_assert_eq!(&back, &*page);
            let len = lz4_flex::block::compress_into(&*page, &mut out).unwrap();
            back.fill(0);
            decompress(Codec::Lz4, &out[..len], &mut back, scratch).unwrap();
            prop_assert_eq!(&back, &*page);
            Ok(())
        })?;
    }

    #[test]
    fn output_limit_is_exact(page in any_page(), short_by in 1..64usize) {
        let mut out = [0; 2 * PAGE_BYTES];
        with_scratch(|scratch| {
            let len = compress(Compressor::Lz4, &page, &mut out, scratch).unwrap();
            let exact = compress(Compressor::Lz4, &page, &mut out[..len], scratch);
            prop_assert_eq!(exact, Some(len));
            let shorter = len.saturating_sub(short_by);
            if let Some(compressed) = compress(Compressor::Lz4, &page, &mut out[..shorter], scratch) {
                prop_assert!(compressed <= shorter);
            }
            Ok(())
        })?;
    }

    #[test]
    fn damaged_page_never_panics(
        compressor in any_compressor(),
        page in any_page(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        kept in any::<prop::sample::Index>(),
    ) {
        let (mut out, mut back) = ([0; 2 * PAGE_BYTES], [0; 3 * PAGE_BYTES]);
        back[..PAGE_BYTES].fill(0xA5);
        back[2 * PAGE_BYTES..].fill(0xA5);
        with_scratch(|scratch| {
            let len = compress(compressor, &page, &mut out, scratch).unwrap();
            for (at, byte) in damage {
                out[at.index(len)] = byte;
            }
            let target = back[PAGE_BYTES..].first_chunk_mut().unwrap();
            let _ = decompress(compressor.codec(), &out[..len], target, scratch);
            let _ = decompress(compressor.codec(), &out[..kept.index(len)], target, scratch);
            prop_assert!(back[..PAGE_BYTES].iter().all(|&byte| byte == 0xA5));
            prop_assert!(back[2 * PAGE_BYTES..].iter().all(|&byte| byte == 0xA5));
            let len = compress(compressor, &page, &mut out, scratch).unwrap();
            let target = back.first_chunk_mut().unwrap();
            decompress(compressor.codec(), &out[..len], target, scratch).unwrap();
            prop_assert_eq!(&*target, &*page);
            Ok(())
        })?;
    }

    #[test]
    fn truncated_page_is_rejected(
        compressor in any_compressor(),
        page in any_page(),
        kept in any::<prop::sample::Index>(),
    ) {
        let mut out = [0; 2 * PAGE_BYTES];
        let decompressed = with_scratch(|scratch| {
            let len = compress(compressor, &page, &mut out, scratch).unwrap();
            decompress(compressor.codec(), &out[..kept.index(len)], &mut [0; PAGE_BYTES], scratch)
        });
        prop_assert!(decompressed.is_err());
    }
}
