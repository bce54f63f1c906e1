"""A memory control group, version 1 or 2, without the kernel's swap: measures all DRAM of a tree
of processes, and counts kills by the kernel."""

import os
import threading
import time
from pathlib import Path

MOUNTS = "/proc/self/mounts"
# Interval between samples.
LOOK_S = 0.02
UNLIMITED = 1 << 50


def place():
    """Returns the directory for groups, and true for version 2; `None` if there is none."""
    mounts = [line.split()[1:4] for line in Path(MOUNTS).read_text().splitlines()]
    for where, kind, options in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(where), False
    for where, kind, _ in mounts:
        if kind == "cgroup2" and "memory" in (Path(where) / "cgroup.subtree_control").read_text().split():
            return Path(where), True
    return None


class ControlGroup:
    """One group with a limit, sampled while it is in use."""

    def __init__(self, limit_bytes):
        parent, self.is_v2 = place()
        self.path = parent / f"softswap-{os.getpid()}-{time.monotonic_ns()}"
        self.path.mkdir()
        if self.is_v2:
            self.write("memory.swap.max", 0)
            self.write("memory.max", limit_bytes)
        else:
            self.write("memory.swappiness", 0)
            self.write("memory.limit_in_bytes", limit_bytes)
        self.most_processes = self.most_anonymous_bytes = 0
        self.is_over = threading.Event()
        self.watch = threading.Thread(target=self.look_on)
        self.watch.start()

    def write(self, name, value):
        (self.path / name).write_text(str(value))

    def look_on(self):
        while not self.is_over.wait(LOOK_S):
            members = self.members()
            self.most_processes = max(self.most_processes, len(members))
            anonymous_bytes = self.count("memory.stat", "anon" if self.is_v2 else "total_rss")
            self.most_anonymous_bytes = max(self.most_anonymous_bytes, anonymous_bytes)

    def members(self):
        return (self.path / "cgroup.procs").read_text().split()

    def count(self, file, name):
        lines = (line.split() for line in (self.path / file).read_text().splitlines())
        return next(int(value) for key, value in lines if key == name)

    @property
    def peak_bytes(self):
        return int((self.path / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")).read_text())

    @property
    def kills(self):
        return self.count("memory.events" if self.is_v2 else "memory.oom_control", "oom_kill")

    def end(self):
        """Kills the remaining processes in the group, and removes it."""
        self.is_over.set()
        self.watch.join()
        for _ in range(100):
            for pid in self.members():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)
