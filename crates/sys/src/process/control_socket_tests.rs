//! Tests sockets in directories of all kinds, and misbehaving peers.

use super::*;
use crate::waiting::{eventually, wait_until};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tempfile::tempdir;

const SHORT: Duration = Duration::from_millis(50);
/// A guard against hangs.
const LONG: Duration = Duration::from_secs(120);

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn directory_and_socket_are_private() {
    let scratch = tempdir().unwrap();
    let dir = scratch.path().join("new");
    let listener = Listener::open(&dir, uid(), 7).unwrap();
    assert_eq!(listener.path(), dir.join("7.sock"));
    assert_eq!((mode(&dir), mode(listener.path())), (0o700, 0o600));
}

#[test]
fn unsafe_directories_are_rejected() {
    let scratch = tempdir().unwrap();
    let [plain, link, file] = ["plain", "link", "file"].map(|name| scratch.path().join(name));
    make(&plain, uid()).unwrap();
    symlink(&plain, &link).unwrap();
    std::fs::write(&file, "").unwrap();
    let open = |dir: &Path, uid| Listener::open(dir, uid, 7).unwrap_err();
    assert!(matches!(open(&link, uid()), Unusable::NotADirectory));
    assert!(matches!(open(&file, uid()), Unusable::NotADirectory));
    assert!(matches!(open(&plain, uid() + 1), Unusable::OtherOwner(found) if found == uid()));
    assert!(matches!(open(Path::new("plain"), uid()), Unusable::Relative));
    let long = scratch.path().join("x".repeat(120));
    assert!(matches!(open(&long, uid()), Unusable::TooLong));
    assert!(matches!(open(&scratch.path().join("no/such"), uid()), Unusable::Refused(_)));
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(open(&plain, uid()), Unusable::Open(0o777)));
}

#[test]
fn environment_selects_directory() {
    let scratch = tempdir().unwrap();
    let session = scratch.path().as_os_str().to_owned();
    let look_up = |own: Option<&str>, session: Option<OsString>, uid| {
        let own = own.map(OsString::from);
        directories(|name| if name == DIR_VARIABLE { own.clone() } else { session.clone() }, uid)
    };
    let fallback = PathBuf::from(format!("/tmp/softswap-{}", uid()));
    let in_session = scratch.path().join("softswap");
    assert_eq!(look_up(Some("/x"), Some(session.clone()), uid()), [PathBuf::from("/x")]);
    let found = look_up(Some(""), Some(session.clone()), uid());
    assert_eq!(found, [in_session, fallback.clone()]);
    for session in [None, Some("relative".into())] {
        assert_eq!(look_up(None, session, uid()), std::slice::from_ref(&fallback));
    }
    let other_user = uid() + 1;
    let theirs = PathBuf::from(format!("/tmp/softswap-{other_user}"));
    assert_eq!(look_up(None, Some(session), other_user), [theirs], "not in another user's session");
}

/// Until they call `exec`, forked children of other tests hold copies of closed listeners.
#[test]
fn stale_socket_is_replaced() {
    let scratch = tempdir().unwrap();
    let pid = std::process::id();
    drop(Listener::open(scratch.path(), uid(), 7).unwrap());
    assert!(socket_path(scratch.path(), 7).exists(), "the name remains");
    let second = wait_until("no process serves it", || {
        Listener::open(scratch.path(), uid(), 7).map_err(|unusable| unusable.to_string())
    });
    assert!(!remove_stale(second.path()), "a process serves it");
    // This process serves it, but its PID is not 7.
    assert!(matches!(Listener::open(scratch.path(), uid(), 7), Err(Unusable::Taken)));
    let own = Listener::open(scratch.path(), uid(), pid).unwrap();
    Listener::open(scratch.path(), uid(), pid).unwrap();
    drop((second, own));
    eventually("the socket is removed", || remove_stale(&socket_path(scratch.path(), 7)));
    let file = scratch.path().join("8.sock");
    std::fs::write(&file, "").unwrap();
    assert!(!remove_stale(&file) && file.exists(), "not a socket");
}

#[test]
fn peers_are_identified() {
    let scratch = tempdir().unwrap();
    let listener = Listener::open(scratch.path(), uid(), 7).unwrap();
    let client = connect(listener.path(), LONG).unwrap();
    let server = listener.accept().unwrap();
    let ourselves = Credentials { pid: std::process::id() as i32, uid: uid() };
    assert_eq!(client.credentials().unwrap(), ourselves);
    assert_eq!(server.credentials().unwrap(), ourselves);
}

#[test]
fn split_requests_and_long_answers_work() {
    let scratch = tempdir().unwrap();
    let listener = Listener::open(scratch.path(), uid(), 7).unwrap();
    let client = connect(listener.path(), LONG).unwrap();
    let server = listener.accept().unwrap();
    let answer = vec![b'x'; 3 << 20];
    client.write_all(b"one ", LONG).unwrap();
    let unread = server.0.try_clone().unwrap();
    let client_thread = std::thread::spawn(move || {
        let is_read = || rustix::io::ioctl_fionread(&unread).unwrap() == 0;
        eventually("the first part is read", is_read);
        drop(unread);
        client.write_all(b"line\n", LONG).unwrap();
        client.read_to_end(4 << 20, LONG).unwrap()
    });
    let mut buffer = [0; 64];
    assert_eq!(server.read_line(&mut buffer, LONG).unwrap(), b"one line");
    server.write_all(&answer, LONG).unwrap();
    drop(server);
    assert_eq!(client_thread.join().unwrap(), answer);
}

#[test]
fn silent_and_verbose_peers_time_out() {
    let scratch = tempdir().unwrap();
    let listener = Listener::open(scratch.path(), uid(), 7).unwrap();
    let client = connect(listener.path(), LONG).unwrap();
    let server = listener.accept().unwrap();
    let mut buffer = [0; 16];
    let kind = |result: io::Result<&[u8]>| result.unwrap_err().kind();
    assert_eq!(kind(server.read_line(&mut buffer, SHORT)), io::ErrorKind::TimedOut);
    client.write_all(&[b'x'; 1000], LONG).unwrap();
    assert_eq!(kind(server.read_line(&mut buffer, LONG)), io::ErrorKind::InvalidData);
    assert_eq!(server.read_to_end(10, LONG).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let much = vec![0; 64 << 20];
    assert_eq!(server.write_all(&much, SHORT).unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(client);
    assert!(server.write_all(b"x", LONG).is_err(), "an error, not a signal");
}

#[test]
fn queued_client_times_out() {
    let scratch = tempdir().unwrap();
    let listener = Listener::open(scratch.path(), uid(), 7).unwrap();
    let queue: Vec<_> =
        (0..100).map_while(|_| connect(listener.path(), Duration::ZERO).ok()).collect();
    assert!(queue.len() < 100, "the queue is limited");
    let refused = connect(listener.path(), SHORT).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    assert!(!remove_stale(listener.path()), "a busy socket is not stale");
}

#[test]
fn unmapped_uid_is_unknown() {
    let all = "         0          0 4294967295\n";
    assert!(is_mapped(all, 0) && is_mapped(all, 65534));
    let one = "         0       1000          1\n";
    assert!(is_mapped(one, 0) && !is_mapped(one, 65534));
    assert!(!is_mapped("", 65534) && !is_mapped("no numbers here\n", 0));
    assert!(is_own_number(rustix::process::geteuid().as_raw()));
}
