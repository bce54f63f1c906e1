//! Corruptions of a server's answer.

/// Corrupts an answer; `below` returns random numbers.
pub(crate) fn corrupt_answer(answer: &mut Vec<u8>, below: &mut dyn FnMut(u64) -> u64) {
    let at = below(answer.len() as u64) as usize;
    match below(8) {
        // An answer with a huge length.
        0 => *answer = b"$536870912\r\n".to_vec(),
        // Answers without a command.
        1 => answer.extend_from_slice(b":1\r\n$3\r\nabc\r\n"),
        2 => answer.truncate(at),
        3 => answer.rotate_left(at),
        _ => answer[at] ^= 1 << below(8),
    }
}
