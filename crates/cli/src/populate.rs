//! `softswap ctl PID populate`: swaps memory in for a debugger or profiler.

use crate::control_client::{Process, program_threads, query};
use crate::refusal::{FAILED, OrRefuse, Refusal};
use softswap_engine::api::control_protocol::{Request, TOUCHED, pairs, parse_number};
use softswap_engine::base::access::Access;

/// Part of each stack that is swapped in, from the stack pointer up.
const STACK_BYTES: usize = 256 << 10;

#[derive(Debug, Clone, Copy)]
pub(crate) enum From {
    Address(usize),
    AllStacks,
}

pub(crate) fn from(text: &str) -> Result<From, String> {
    match text {
        "all-stacks" => Ok(From::AllStacks),
        _ => number(text).map(From::Address),
    }
}

pub(crate) fn number(text: &str) -> Result<usize, String> {
    parse_number(text).ok_or_else(|| {
        "not a number; give a decimal number, or a hexadecimal one that begins with 0x".to_string()
    })
}

pub(crate) fn populate(pid: u32, from: From, len: Option<usize>) -> Result<String, Refusal> {
    match (from, len) {
        (From::Address(address), Some(len)) => {
            let (_, touched) = touch(pid, address, len)?;
            Ok(format!("{TOUCHED} = {touched}\n"))
        }
        (From::AllStacks, None) => all_stacks(pid),
        (From::Address(_), None) => Err(Refusal::usage("give the length in bytes, too")),
        (From::AllStacks, Some(_)) => Err(Refusal::usage("all-stacks takes no length")),
    }
}

/// Returns the process that answered, and the length that was swapped in.
fn touch(pid: u32, address: usize, len: usize) -> Result<(Process, u64), Refusal> {
    let (process, body) = query(pid, &Request::Touch(address, len, Access::Read))?;
    let touched = pairs(&body).find(|(key, _)| *key == TOUCHED).and_then(|(_, it)| it.parse().ok());
    Ok((process, touched.unwrap_or(0)))
}

fn all_stacks(pid: u32) -> Result<String, Refusal> {
    let (process, _) = touch(pid, 0, 0)?;
    let what = format!("process {}: its stack pointers cannot be read", process.pid);
    let pointers = stack_pointers(process.pid).or_status(FAILED, what)?;
    let mut touched = 0;
    for &pointer in &pointers {
        touched += touch(process.pid, pointer, STACK_BYTES)?.1;
    }
    Ok(format!("stacks = {}\n{TOUCHED} = {touched}\n", pointers.len()))
}

/// Covers threads that wait in a system call or a fault. A running thread has no stack pointer.
fn stack_pointers(pid: u32) -> std::io::Result<Vec<usize>> {
    let mut pointers = Vec::new();
    for thread in program_threads(pid, usize::MAX)? {
        // NUMBER ARGUMENT... SP PC, `-1 SP PC` or `running`. The thread may have exited since.
        let call = match std::fs::read_to_string(thread.join("syscall")) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(error);
            }
            call => call.unwrap_or_default(),
        };
        pointers.extend(call.split_whitespace().rev().nth(1).and_then(parse_number));
    }
    Ok(pointers)
}
