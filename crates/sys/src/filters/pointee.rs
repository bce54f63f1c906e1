//! The memory behind a pointer argument of a system call, and the class of a call.

/// The memory that a pointer argument points to. For vectors and messages the guard's `transfers`
/// handles the call; the runtime's `guard` lists which module handles what.
///
/// ```
/// use softswap_sys::pointer_arguments::{Pointee, pointers};
///
/// // read(fd, buffer, length): argument 1 points to as many bytes as argument 2 says.
/// assert_eq!(pointers(libc::SYS_read), [(1, Pointee::Bytes(2))]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointee {
    /// As many bytes as another argument says.
    Bytes(u8),
    /// A header of the given size, then as many bytes as another argument says.
    BytesPlus(u8, u16),
    /// As many elements of the given size as another argument says.
    Array(u8, u16),
    /// A structure (or a set of them) of at most this many bytes.
    Struct(u16),
    /// A structure whose size another argument encodes as an `ioctl` request does
    /// (`_IOC_SIZE`); 4 KiB if it encodes less.
    Request(u8),
    /// As many bytes as the next argument says; 4 KiB if that is less, or is no length.
    NextSays(u8),
    /// A set with as many bits as another argument says.
    Bits(u8),
    /// As many bytes as the 32-bit number says that another argument points to.
    SizeBehind(u8),
    /// A string that ends with a zero byte.
    Text,
    /// An iovec array, as long as another argument says, and its buffers.
    Vectors(u8),
    /// A msghdr and all it refers to.
    Message,
    /// An mmsghdr array, as long as another argument says.
    Messages(u8),
    /// A zero-terminated array of strings (argv, envp).
    Texts,
    /// Memory that the call manages rather than reads or writes.
    Range,
}

impl Pointee {
    /// Returns how many bytes that is, if the call's arguments determine it. For
    /// [`Pointee::SizeBehind`] it is 4 KiB: the caller reads the real number.
    ///
    /// ```
    /// use softswap_sys::pointer_arguments::Pointee;
    ///
    /// assert_eq!(Pointee::Bytes(2).byte_count(&[3, 0x1000, 80, 0, 0, 0]), Some(80));
    /// assert_eq!(Pointee::Text.byte_count(&[0x1000, 0, 0, 0, 0, 0]), None);
    /// ```
    #[must_use]
    pub fn byte_count(self, arguments: &[usize; 6]) -> Option<usize> {
        Some(match self {
            Pointee::Bytes(len) => arguments[len as usize],
            Pointee::BytesPlus(len, extra) => {
                arguments[len as usize].saturating_add(extra as usize)
            }
            Pointee::Array(count, size) => arguments[count as usize].saturating_mul(size as usize),
            Pointee::Struct(len) => len as usize,
            Pointee::Request(request) => request_bytes(arguments[request as usize]),
            Pointee::NextSays(length) => match arguments[length as usize] {
                bytes @ 0..=MOST_PAYLOAD_BYTES => bytes.max(LEAST_BYTES),
                _ => LEAST_BYTES,
            },
            // A negative number, which the kernel refuses, is a large one here.
            Pointee::Bits(count) => arguments[count as usize].min(MOST_BITS).div_ceil(64) * 8,
            Pointee::SizeBehind(_) => LEAST_BYTES,
            _ => return None,
        })
    }
}

/// Bytes of a structure whose size is not known.
const LEAST_BYTES: usize = 4096;
/// The longest payload of a key.
const MOST_PAYLOAD_BYTES: usize = 1 << 20;
/// Descriptors that a process can have (`fs.nr_open`), and more bits than a set of nodes has.
const MOST_BITS: usize = 1 << 20;

/// Returns the size of the structure that an `ioctl` request names.
fn request_bytes(request: usize) -> usize {
    (request >> 16 & 0x3fff).max(LEAST_BYTES)
}

/// A pointer argument: its index and what it points to.
///
/// ```
/// use softswap_sys::pointer_arguments::{Pointer, pointers};
///
/// let of_call: &[Pointer] = pointers(libc::SYS_getpid);
/// assert!(of_call.is_empty());
/// ```
pub type Pointer = (u8, Pointee);

/// The class of a system call.
///
/// ```
/// use softswap_sys::pointer_arguments::{Class, class_of};
///
/// assert_eq!(class_of(libc::SYS_getpid), Some(Class::NoPointer));
/// assert_eq!(class_of(libc::SYS_io_setup).and_then(Class::refusal), Some(libc::ENOSYS));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The kernel follows no argument.
    NoPointer,
    /// The kernel follows these arguments. The filter looks at them.
    Described(&'static [Pointer]),
    /// A managed program gets this error number.
    Refused(i32, &'static [Pointer]),
    /// The filter lets the call pass, because a signal handler cannot issue it for the program.
    /// The runtime interposes the C library's function instead.
    Interposed,
}

impl Class {
    /// Returns the arguments at which the filter looks.
    #[must_use]
    pub const fn pointers(self) -> &'static [Pointer] {
        match self {
            Class::Described(pointers) | Class::Refused(_, pointers) => pointers,
            Class::NoPointer | Class::Interposed => &[],
        }
    }

    /// Returns the error number that a managed program gets instead of the call.
    #[must_use]
    pub const fn refusal(self) -> Option<i32> {
        match self {
            Class::Refused(error, _) => Some(error),
            _ => None,
        }
    }
}
