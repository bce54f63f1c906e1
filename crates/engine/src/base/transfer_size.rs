//! Buckets of I/O statistics: transfers by direction and size.

/// Number of buckets. Reads have even numbers, writes odd ones.
pub const BUCKETS: usize = 16;
const SECTOR_BYTES: usize = 512;

/// Sizes are powers of two from 512 bytes to 64 KiB; larger transfers use the last bucket.
pub(crate) fn bucket_of(is_write: bool, bytes: usize) -> usize {
    let sectors = (bytes / SECTOR_BYTES).max(1);
    let size = (sectors.ilog2() as usize).min(BUCKETS / 2 - 1);
    size * 2 + usize::from(is_write)
}

/// Returns the smallest transfer of a bucket, in bytes, and true for a write.
pub fn shape_of(bucket: usize) -> (usize, bool) {
    (SECTOR_BYTES << (bucket / 2), bucket % 2 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_in_their_bucket() {
        assert_eq!([bucket_of(false, 0), bucket_of(true, 1)], [0, 1]);
        assert_eq!([bucket_of(false, 4096), bucket_of(true, 4096)], [6, 7]);
        assert_eq!([bucket_of(false, 65_536), bucket_of(true, 1 << 30)], [14, 15]);
        for bucket in 0..BUCKETS {
            let (bytes, is_write) = shape_of(bucket);
            assert_eq!(bucket_of(is_write, bytes), bucket);
            assert_eq!(bucket_of(is_write, 2 * bytes - 1), bucket);
        }
    }
}
