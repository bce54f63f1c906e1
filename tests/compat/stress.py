"""stress-ng's stressors with --verify: a stressor that passes without softswap must pass under it.

A stressor runs under softswap first. If it fails, it runs without softswap, and then under
softswap again: a failure that also occurs without softswap says nothing about softswap.
"""

import re
import tempfile

from machine import MIB, Result, install, run, skipped

PACKAGES = ["stress-ng"]
BUDGET = 128 * MIB
# Excludes stressors that fill the disk under /tmp (resources, forkheavy).
STRESSORS = {
    "memory": """bigheap brk madvise malloc memfd memrate memthrash mincore mlock mmap mmapaddr
        mmapfork mmapfixed mmaphuge mmapmany mprotect mremap msync munmap pageswap physpage
        randlist shm shm-sysv stack stackmmap stream tlb-shootdown userfaultfd vm
        vm-addr vm-rw vm-splice vm-segv bad-altstack far-branch""",
    "threads": """pthread futex mutex sem sem-sysv mq msg clone tsearch atomic lockbus membarrier
        context yield""",
    "signals": """sigabrt sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq
        sigrt sigsegv sigsuspend sigtrap fault kill timer itimer timerfd""",
    "processes": """fork vfork exec spawn wait daemon zombie session vforkmany pidfd""",
    "I/O": """aio io io-uring pipe pipeherd sendfile splice tee sock sockpair sockmany
        udp udp-flood iomix hdd readahead seek fallocate copy-file eventfd epoll poll
        inotify null zero zlib""",
}


# Calls that softswap refuses in a way that some systems do, with the reason. An entry that works nevertheless
# is an error.
KNOWN = {
    "userfaultfd": "managed memory cannot be registered once more (EBUSY)",
}


def names():
    return [name for group in STRESSORS.values() for name in group.split()]


def stress(name, softswap, folder, seconds, managed):
    work = tempfile.mkdtemp(dir=folder)
    command = ["stress-ng", f"--{name}", "1", "--timeout", f"{seconds}s", "--verify",
               "--temp-path", work, "--metrics-brief"]
    # Limits for stressors that otherwise allocate all memory. Each is a forked child, which cannot write to
    # the swap area, so its modified memory must fit in its budget when compressed.
    limits = {"bigheap": ["--bigheap-growth", "1m"], "vm": ["--vm-bytes", "256m"],
              "stream": ["--stream-l3-size", "4m"], "mmap": ["--mmap-bytes", "192m"],
              "hdd": ["--hdd-bytes", "128m"],
              "vm-rw": ["--vm-rw-bytes", "64m"], "memrate": ["--memrate-bytes", "128m"],
              "mremap": ["--mremap-bytes", "128m"]}
    command += limits.get(name, ["--no-rand-seed"])
    if managed:
        command = softswap.wrap(command, BUDGET)
    return run(command, cwd=work, limit=6 * seconds + 60)


# Meaning of the exit status, from the manual.
MEANINGS = {0: "holds", 2: "fails", 3: "cannot run here", 4: "not implemented",
            5: "killed by a signal", 7: "metrics not trustworthy"}


def verdict(outcome):
    if outcome.status is None or outcome.status not in MEANINGS:
        return outcome.ended
    text = outcome.output + outcome.errors
    # Status 0 may also mean that the stressor did not run.
    if outcome.status == 0 and re.search(rb"skipped|skipping stressor|not implemented", text):
        return "cannot run here"
    return MEANINGS[outcome.status]


def signs(outcome):
    lines = (outcome.output + outcome.errors).decode(errors="replace").splitlines()
    told = [line for line in lines if "fail:" in line or "softswap" in line
            or "skip" in line or "error" in line.lower() or "signal" in line.lower()]
    return " / ".join(told[:3])[:500]


def examine(name, softswap, folder, seconds):
    missing = install(PACKAGES)
    if missing:
        return skipped(f"{', '.join(missing)} cannot be installed")
    managed = stress(name, softswap, folder, seconds, managed=True)
    after = verdict(managed)
    if after == "holds":
        return Result(row=[name, "holds"],
                      wrong="holds, and is known not to: take it out of KNOWN" if name in KNOWN else "")
    plain = verdict(stress(name, softswap, folder, seconds, managed=False))
    if plain != "holds":
        return skipped(f"plain: {plain}; managed: {after}")
    if name in KNOWN:
        return Result(row=[name, KNOWN[name]], known=KNOWN[name])
    first = managed
    managed = stress(name, softswap, folder, seconds, managed=True)
    if verdict(managed) == "holds":
        return Result(row=[name, "holds"], note=f"not the first time: {after}: {signs(first)}")
    return Result(row=[name, after], wrong=f"{after}: {signs(managed)}")


def summary(rows, left_out):
    """Returns one row for each class of stressors; `rows` and `left_out` are by name."""
    lines = []
    for group, words in STRESSORS.items():
        members = words.split()
        ran = [name for name in members if name in rows]
        bad = [f"**{name}** ({rows[name][1]})" if name not in KNOWN else f"{name}: {KNOWN[name]}"
               for name in ran if rows[name][1] != "holds"]
        absent = [name for name in members if name in left_out]
        lines.append([group, f"{len(ran) - len(bad)} of {len(ran)}", "; ".join(bad) or "-",
                      ", ".join(absent) or "-"])
    return lines


HEAD = ["stressors", "hold", "do not hold managed", "left out: they do not hold plain, either"]
