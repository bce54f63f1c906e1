"""`peak.py REPORT COMMAND...`: runs a command, and writes the peak memory of its largest process
and of the first one, and the duration."""

import json
import os
import signal
import sys
import time

LOOK_S = 0.05


def figures_of(pid):
    """Returns the parent of a process, and its peak memory in bytes."""
    parent, most = 0, 0
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("PPid:"):
                parent = int(line.split()[1])
            elif line.startswith("VmHWM:"):
                most = int(line.split()[1]) * 1024
    return parent, most


def peaks_below(root):
    """Returns the peaks of all descendants of a process, by PID. Some of them are never waited
    for, for instance in a PID namespace, so rusage does not include them."""
    known = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                known[int(name)] = figures_of(name)
            except OSError:
                pass
    found = {root}
    for _ in range(len(known)):
        more = {pid for pid, (parent, _) in known.items() if parent in found} - found
        if not more:
            break
        found |= more
    return {pid: known[pid][1] for pid in found & known.keys()}


def main():
    report, command = sys.argv[1], sys.argv[2:]
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.execvp(command[0], command)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    peaks, ended, looks = {}, 0, 0
    while not ended:
        # Sample more often at first; later the cost must stay low.
        if looks < 20 or looks % 4 == 0:
            for pid, peak in peaks_below(child).items():
                peaks[pid] = max(peak, peaks.get(pid, 0))
        looks += 1
        time.sleep(LOOK_S)
        ended, status, usage = os.wait4(child, os.WNOHANG)
    largest = max(usage.ru_maxrss * 1024, *peaks.values(), 0)
    figures = {"peak_bytes": largest, "first_peak_bytes": peaks.get(child, 0),
               "wall_s": time.monotonic() - started}
    with open(report, "w", encoding="utf-8") as file:
        json.dump(figures, file)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


main()
