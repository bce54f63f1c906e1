//! Dispatch of the calls that move data.

use super::{messages, vectors};
use crate::base::issue_call::Arguments;
use softswap_engine::api::engine::Engine;

pub(crate) fn transfer(engine: &Engine, number: i64, arguments: Arguments) -> Option<isize> {
    Some(match number {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_recvfrom
        | libc::SYS_getrandom
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_sendto => vectors::answer_buffer(engine, number, arguments),
        _ if vectors::has_vectors(number) => vectors::answer_vectors(engine, number, arguments),
        libc::SYS_sendmsg => messages::send(engine, arguments),
        libc::SYS_recvmsg => messages::receive(engine, arguments),
        libc::SYS_sendmmsg => messages::send_all(engine, arguments),
        libc::SYS_recvmmsg => messages::receive_all(engine, arguments),
        _ => return None,
    })
}
