//! What a page is touched for.

/// What the toucher was about to do.
///
/// ```
/// use softswap_engine::base::access::Access;
/// // Only a write makes a stored copy stale.
/// let gives_up_the_copy = |access| access == Access::Write;
/// assert!(gives_up_the_copy(Access::Write) && !gives_up_the_copy(Access::Read));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}
