//! Pointer arguments of a system call, and its class.

/// Memory behind a pointer argument. The guard's `transfers` handles vectors and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointee {
    /// As many bytes as another argument specifies.
    Bytes(u8),
    /// A header of the given size, then as in [`Pointee::Bytes`].
    BytesPlus(u8, u16),
    /// Elements of the given size; another argument is their number.
    Array(u8, u16),
    /// At most this many bytes.
    Struct(u16),
    /// Another argument encodes the size as an `ioctl` request does (`_IOC_SIZE`); at least 4 KiB.
    Request(u8),
    /// The next argument is the number of bytes; 4 KiB if that is less, or is no length.
    LengthInNext(u8),
    /// Another argument is the number of bits.
    Bits(u8),
    /// The 32-bit number behind another argument is the number of bytes.
    SizeBehind(u8),
    /// For `ptrace`. Only PTRACE_PEEKSIGINFO may access more than 4 KiB: the structure behind the
    /// previous argument has the number of its records.
    TraceData,
    /// Zero-terminated.
    Text,
    /// An iovec array, whose length another argument is, and its buffers.
    Vectors(u8),
    /// With all it refers to.
    Message,
    /// Another argument is the array's length.
    Messages(u8),
    /// A zero-terminated array of strings (argv, envp).
    Texts,
    /// The call manages this memory rather than reading or writing it.
    Range,
}

impl Pointee {
    /// Returns `None` if the arguments do not determine it. For [`Pointee::SizeBehind`] and
    /// [`Pointee::TraceData`] that is 4 KiB: the caller reads the real number.
    pub fn byte_count(self, arguments: &[usize; 6]) -> Option<usize> {
        Some(match self {
            Pointee::Bytes(len) => arguments[len as usize],
            Pointee::BytesPlus(len, extra) => {
                arguments[len as usize].saturating_add(extra as usize)
            }
            Pointee::Array(count, size) => arguments[count as usize].saturating_mul(size as usize),
            Pointee::Struct(len) => len as usize,
            Pointee::Request(request) => request_bytes(arguments[request as usize]),
            Pointee::LengthInNext(length) => match arguments[length as usize] {
                bytes @ 0..=MAX_PAYLOAD_BYTES => bytes.max(MIN_BYTES),
                _ => MIN_BYTES,
            },
            // The kernel refuses negative numbers, which are large here.
            Pointee::Bits(count) => arguments[count as usize].min(MAX_BITS).div_ceil(64) * 8,
            Pointee::SizeBehind(_) | Pointee::TraceData => MIN_BYTES,
            _ => return None,
        })
    }
}

/// For structures of unknown size.
const MIN_BYTES: usize = 4096;
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Of descriptors (`fs.nr_open`), and of a set of nodes.
const MAX_BITS: usize = 1 << 20;

fn request_bytes(request: usize) -> usize {
    (request >> 16 & 0x3fff).max(MIN_BYTES)
}

pub type Pointer = (u8, Pointee);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The kernel follows no argument.
    NoPointer,
    /// The filter checks these arguments.
    Described(&'static [Pointer]),
    /// A managed program gets this error number instead.
    Refused(i32, &'static [Pointer]),
    /// Not filtered: a signal handler cannot issue the call for the program. The runtime interposes
    /// the C library's function instead.
    Interposed,
}

impl Class {
    pub const fn pointers(self) -> &'static [Pointer] {
        match self {
            Class::Described(pointers) | Class::Refused(_, pointers) => pointers,
            Class::NoPointer | Class::Interposed => &[],
        }
    }

    pub const fn refusal(self) -> Option<i32> {
        match self {
            Class::Refused(error, _) => Some(error),
            _ => None,
        }
    }
}
