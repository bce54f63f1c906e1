//! Requests and their control blocks.

use libc::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};

pub(super) const MAX_PRIORITY: i32 = 20;

/// `struct aiocb`, with glibc's internal fields.
#[repr(C)]
pub struct ControlBlock {
    pub(super) fd: i32,
    pub(super) opcode: i32,
    pub(super) priority: i32,
    pub(super) buffer: *mut c_void,
    pub(super) bytes: usize,
    pub(super) event: Event,
    pub(super) internal: [usize; 2],
    pub(super) error: AtomicI32,
    pub(super) result: isize,
    pub(super) offset: i64,
    pub(super) reserved: [u8; 32],
}

/// `struct sigevent`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    pub(super) value: usize,
    pub(super) signal: i32,
    pub(super) notify: i32,
    pub(super) function: usize,
    pub(super) attributes: usize,
    pub(super) padding: [usize; 4],
}

const _: () = assert!(size_of::<ControlBlock>() == size_of::<libc::aiocb>());
const _: () = assert!(size_of::<Event>() == size_of::<libc::sigevent>());
const _: () = assert!(
    std::mem::offset_of!(ControlBlock, offset) == std::mem::offset_of!(libc::aiocb, aio_offset)
);

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Operation {
    Read,
    Write,
    Sync,
    DataSync,
    /// Invalid opcode: the request fails when it is executed.
    Unknown,
}

impl Operation {
    pub(super) fn of(opcode: i32) -> Operation {
        match opcode {
            libc::LIO_READ => Operation::Read,
            libc::LIO_WRITE => Operation::Write,
            _ => Operation::Unknown,
        }
    }
}

pub(super) struct List {
    pub(super) left: AtomicUsize,
    pub(super) has_failed: AtomicBool,
    pub(super) event: Option<Event>,
}

pub(super) struct Request {
    pub(super) block: *const ControlBlock,
    pub(super) operation: Operation,
    pub(super) fd: i32,
    pub(super) buffer: usize,
    pub(super) bytes: usize,
    pub(super) offset: i64,
    pub(super) priority: i32,
    pub(super) event: Event,
    pub(super) list: Option<Arc<List>>,
}
