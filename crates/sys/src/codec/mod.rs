//! What looks at the content of a page: comparing, compressing.

pub mod simd;
pub mod lz4;
pub mod zstd;
