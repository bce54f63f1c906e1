//! Requests and answers on the control socket.

use crate::text;
use softswap_engine::api::control_protocol::{Answer, MAX_REQUEST_BYTES, Request, Snapshot};
use softswap_engine::api::live_settings::{parse_sleep, show_sleep};

pub(crate) fn run(input: &[u8]) {
    match Request::parse(input) {
        Ok(request) => {
            if let Some(line) = request.line() {
                assert!(line.len() <= MAX_REQUEST_BYTES && line.ends_with('\n'));
                assert_eq!(Request::parse(line.trim_end_matches('\n').as_bytes()), Ok(request));
            }
        }
        Err(why) => assert!(!why.contains('\n') && !why.is_empty()),
    }
    match Answer::parse(input) {
        Answer::Ok(body) => {
            assert!(input.starts_with(b"ok") && input.ends_with(b"\n"));
            if let Ok(snapshot) = Snapshot::parse(&body) {
                assert!(snapshot.settings.iter().all(|(key, _)| body.contains(key)));
            }
        }
        Answer::Error(why) | Answer::Denied(why) => assert!(!why.contains('\n')),
        Answer::Garbled => {}
    }
    for value in text(input).split_whitespace() {
        if let Ok(sleep) = parse_sleep(value) {
            assert_eq!(parse_sleep(&show_sleep(sleep)), Ok(sleep));
        }
    }
}
