"""Lets gdb debug a program under softswap. gdb loads this file with libsoftswap.so if its
auto-load safe path allows that (`add-auto-load-safe-path`); otherwise load it by `source`."""
import signal

import gdb

# The engine uses these signals itself, so gdb must not stop at them.
gdb.execute("handle SIGBUS SIGSYS nostop noprint pass", to_string=True)


def catches_segv(pid):
    """Returns true if a process handles SIGSEGV, as the engine does with page protection."""
    try:
        with open(f"/proc/{pid}/status") as status:
            mask = next((line.split()[1] for line in status if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return int(mask, 16) >> (signal.SIGSEGV - 1) & 1 == 1


if catches_segv(gdb.selected_inferior().pid):
    gdb.execute("handle SIGSEGV nostop noprint pass", to_string=True)

LIBRARY = "libsoftswap.so"
FRAMES = 20


def is_free(thread):
    """Returns true if a thread can call a function of the library, that is, if it is outside the
    library now."""
    thread.switch()
    frame, left = gdb.newest_frame(), FRAMES
    while frame is not None and left:
        if LIBRARY in (gdb.solib_name(frame.pc()) or ""):
            return False
        try:
            frame, left = frame.older(), left - 1
        except gdb.error:
            break
    return True


class BringIn(gdb.Command):
    """softswap-in ADDRESS LENGTH
Swap memory of the program in, so that gdb can read it.
One command swaps in at most a quarter of the budget. A thread of the program calls a function of
libsoftswap.so for this, and the other threads may run meanwhile."""

    def __init__(self):
        super().__init__("softswap-in", gdb.COMMAND_DATA)

    def invoke(self, text, _from_tty):
        words = gdb.string_to_argv(text)
        if len(words) != 2:
            raise gdb.GdbError("usage: softswap-in ADDRESS LENGTH")
        address, length = (int(gdb.parse_and_eval(word)) for word in words)
        selected = gdb.selected_thread()
        if selected is None:
            raise gdb.GdbError("the program does not run")
        others = [thread for thread in gdb.selected_inferior().threads() if thread != selected]
        try:
            if not any(is_free(thread) for thread in [selected, *others]):
                raise gdb.GdbError("all threads are inside libsoftswap.so; continue for a moment")
            call = "((unsigned long (*)(unsigned long, unsigned long)) softswap_bring_in)"
            done = int(gdb.parse_and_eval(f"{call}({address}ul, {length}ul)"))
        finally:
            selected.switch()
        print(f"{done} of {length} bytes from {address:#x} can be read")


BringIn()
