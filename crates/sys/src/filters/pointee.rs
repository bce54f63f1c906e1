//! The memory behind a pointer argument of a system call, and the class of a call.

/// The memory behind a pointer argument. The guard's `transfers` handles calls with vectors and
/// messages; the runtime's `guard` lists the module for each kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointee {
    /// The number of bytes that another argument specifies.
    Bytes(u8),
    /// A header of the given size, then the number of bytes that another argument specifies.
    BytesPlus(u8, u16),
    /// Elements of the given size, in the number that another argument specifies.
    Array(u8, u16),
    /// A structure (or a set of them) of at most this many bytes.
    Struct(u16),
    /// A structure whose size another argument encodes as an `ioctl` request does
    /// (`_IOC_SIZE`); 4 KiB if it encodes less.
    Request(u8),
    /// The number of bytes that the next argument specifies; 4 KiB if that is less, or is no
    /// length.
    LengthInNext(u8),
    /// A set with the number of bits that another argument specifies.
    Bits(u8),
    /// The number of bytes that the 32-bit number behind another argument specifies.
    SizeBehind(u8),
    /// The data of a `ptrace` request. Only PTRACE_PEEKSIGINFO may access more than 4 KiB: the
    /// structure behind the previous argument has the number of its records.
    TraceData,
    /// A string that ends with a zero byte.
    Text,
    /// An iovec array, whose length another argument specifies, and its buffers.
    Vectors(u8),
    /// A msghdr and all it refers to.
    Message,
    /// An mmsghdr array, whose length another argument specifies.
    Messages(u8),
    /// A zero-terminated array of strings (argv, envp).
    Texts,
    /// Memory that the call manages rather than reads or writes.
    Range,
}

impl Pointee {
    /// Returns the number of bytes if the call's arguments determine it. For
    /// [`Pointee::SizeBehind`] and [`Pointee::TraceData`] that is 4 KiB: the caller reads the real
    /// number.
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
            // A negative number, which the kernel refuses, is a large one here.
            Pointee::Bits(count) => arguments[count as usize].min(MAX_BITS).div_ceil(64) * 8,
            Pointee::SizeBehind(_) | Pointee::TraceData => MIN_BYTES,
            _ => return None,
        })
    }
}

/// Assumed bytes of a structure of unknown size.
const MIN_BYTES: usize = 4096;
/// The longest payload of a key, in bytes.
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Upper bound of descriptors of a process (`fs.nr_open`), and of the bits in a set of nodes.
const MAX_BITS: usize = 1 << 20;

/// Returns the size of the structure that an `ioctl` request names.
fn request_bytes(request: usize) -> usize {
    (request >> 16 & 0x3fff).max(MIN_BYTES)
}

/// A pointer argument: its index and what it points to.
pub type Pointer = (u8, Pointee);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The kernel follows no argument.
    NoPointer,
    /// The kernel follows these arguments. The filter checks them.
    Described(&'static [Pointer]),
    /// A managed program gets this error number instead of the call.
    Refused(i32, &'static [Pointer]),
    /// The filter allows the call, because a signal handler cannot issue it for the program. The
    /// runtime interposes the C library's function instead.
    Interposed,
}

impl Class {
    /// Returns the arguments that the filter checks.
    pub const fn pointers(self) -> &'static [Pointer] {
        match self {
            Class::Described(pointers) | Class::Refused(_, pointers) => pointers,
            Class::NoPointer | Class::Interposed => &[],
        }
    }

    /// Returns the error number that a managed program gets instead of the call.
    pub const fn refusal(self) -> Option<i32> {
        match self {
            Class::Refused(error, _) => Some(error),
            _ => None,
        }
    }
}
