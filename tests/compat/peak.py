"""`peak.py REPORT COMMAND...`: runs a command, and writes down how much memory the
largest process of it took, and for how long it ran."""

import json
import os
import signal
import sys
import time


def main():
    report, command = sys.argv[1], sys.argv[2:]
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.execvp(command[0], command)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status, usage = os.wait4(child, 0)
    figures = {"peak_bytes": usage.ru_maxrss * 1024, "wall_s": time.monotonic() - started}
    with open(report, "w", encoding="utf-8") as file:
        json.dump(figures, file)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


main()
