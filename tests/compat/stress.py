"""stress-ng's stressors with --verify: none that holds plain may fail managed."""

import tempfile

from machine import MIB, install, run

PACKAGES = ["stress-ng"]
BUDGET = 128 * MIB
STRESSORS = {
    "memory": """bigheap brk madvise malloc memfd memrate memthrash mincore mlock mmap mmapaddr
        mmapfork mmapfixed mmapmany mprotect mremap msync munmap pageswap physpage randlist
        resources shm shm-sysv stack stackmmap stream tlb-shootdown vm vm-addr vm-rw vm-splice vm-segv
        bad-altstack bigheap far-branch""",
    "threads": """pthread futex mutex sem sem-sysv mq msg clone tsearch atomic lockbus membarrier
        context yield""",
    "signals": """sigabrt sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq
        sigrt sigsegv sigsuspend sigtrap fault kill timer itimer timerfd""",
    "processes": """fork vfork exec spawn wait daemon zombie session vforkmany forkheavy pidfd""",
    "I/O": """aio io io-uring pipe pipeherd sendfile splice tee vm-splice sock sockpair sockmany
        udp udp-flood iomix hdd readahead seek fallocate copy-file eventfd epoll poll
        select inotify null zero zlib""",
}


def names():
    return list(dict.fromkeys(name for group in STRESSORS.values() for name in group.split()))


def stress(name, softswap, folder, seconds, managed):
    work = tempfile.mkdtemp(dir=folder)
    command = ["stress-ng", f"--{name}", "1", "--timeout", f"{seconds}s", "--verify",
               "--temp-path", work, "--metrics-brief"]
    # Some take all memory there is if nobody stops them.
    limits = {"bigheap": ["--bigheap-growth", "1m"], "vm": ["--vm-bytes", "256m"],
              "stream": ["--stream-l3-size", "16m"], "mmap": ["--mmap-bytes", "192m"],
              "brk": ["--no-rand-seed"], "hdd": ["--hdd-bytes", "128m"],
              "vm-rw": ["--vm-rw-bytes", "64m"], "memrate": ["--memrate-bytes", "128m"],
              "mremap": ["--mremap-bytes", "128m"], "memthrash": ["--no-rand-seed"]}
    command += limits.get(name, ["--no-rand-seed"])
    if managed:
        command = softswap.wrap(command, BUDGET)
    return run(command, cwd=work, limit=6 * seconds + 60)


# What its manual says of its exit status.
MEANINGS = {0: "holds", 2: "fails", 3: "cannot run here", 4: "not implemented",
            5: "killed by a signal", 7: "metrics not trustworthy"}


def verdict(outcome):
    if outcome.status is None or outcome.status not in MEANINGS:
        return outcome.ended
    return MEANINGS[outcome.status]


def examine(name, softswap, folder, seconds):
    """A row of the table, and what went wrong."""
    missing = install(PACKAGES)
    if missing:
        return None, f"skipped: {name}: {', '.join(missing)} cannot be installed"
    plain = verdict(stress(name, softswap, folder, seconds, managed=False))
    if plain != "holds":
        return None, f"skipped: {name}: plain: {plain}"
    managed = stress(name, softswap, folder, seconds, managed=True)
    after = verdict(managed)
    row = [name, plain, after if after == plain else f"**{after}**"]
    text = (managed.output + managed.errors).decode(errors="replace")
    signs = [line for line in text.splitlines() if "fail:" in line or "softswap" in line
             or "error" in line.lower() or "signal" in line.lower()]
    return row, None if after == plain else f"{name}: {after}: {' / '.join(signs[:3])[:500]}"


HEAD = ["stressor", "plain", "managed"]
