//! Python code of tests that run a program on a terminal of its own.

/// Types a key after the line `ready`, and calls `then` after the line `got`. When Ctrl-C or Ctrl-Z
/// is typed, a terminal drops output that it has not written.
pub(crate) const TYPE_AT_READY: &str = r#"
def type_at_ready(master, key, then=lambda: None):
    said, is_typed, is_called = b"", False, False
    while True:
        try:
            some = os.read(master, 1000)
        except OSError:
            return said
        if not some:
            return said
        said += some
        if b"ready\r\n" in said and not is_typed:
            is_typed = True
            os.write(master, key)
        if b"got\r\n" in said and not is_called:
            is_called = True
            then()
"#;

/// Runs a program in the foreground (`child`) of a shell on its own terminal, until it ends or
/// stops (`status`). The rest of the shell follows.
pub(crate) const START_JOB: &str = r#"
import os, pty, signal, sys
pid, master = pty.fork()
if pid == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    child = os.fork()
    try:
        os.setpgid(child, child or os.getpid())
    except PermissionError:
        pass  # The child has done it, and has called exec since.
    os.tcsetpgrp(0, child or os.getpid())
    if child == 0:
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(sys.argv[1], sys.argv[1:])
    _, status = os.waitpid(child, os.WUNTRACED)
"#;
