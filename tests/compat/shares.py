#!/usr/bin/python3
"""Six kinds of program with 75, 50 and 25 % of their memory: prints the README's table of
slowdowns, medians of rounds in which each program runs plain and with each share in turns. A run
that takes longer than MOST times the plain one is ended."""

import argparse
import dataclasses
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import programs
from machine import MIN_BUDGET, Softswap, install, install_wheels

KINDS = {
    "gcc": "compilers: gcc",
    "pandas and NumPy": "tables in columns: pandas",
    "ffmpeg": "media: ffmpeg",
    "sqlite3": "databases: SQLite, with an index",
    "python3": "many small objects, all in use: Python",
    "sort": "sorting everything: GNU sort",
}
SHARES = [0.75, 0.5, 0.25]
MOST = 30


def slowdowns(program, softswap, folder, rounds):
    """Returns the program's peak in bytes, and the slowdown for each share."""
    missing = install(program.packages) or install_wheels(program.wheels, programs.WHEELS)
    if missing:
        sys.exit(f"{program.name}: {', '.join(missing)} cannot be installed")
    first = programs.measure(program, softswap, folder, None)
    peak = programs.reported(first, "peak_bytes")
    plain = programs.spent(first)
    # The program's input is made first, in about the same time.
    limited = dataclasses.replace(program, limit=(first.seconds - plain) * 2 + MOST * plain)
    times = {share: [] for share in [1, *SHARES]}
    for _ in range(rounds):
        for share, spent in times.items():
            if spent and spent[-1] > MOST * plain:
                continue
            budget = None if share == 1 else max(MIN_BUDGET, int(peak * share))
            outcome = programs.measure(limited, softswap, folder, budget)
            if outcome.status is None:
                spent.append(float("inf"))
            elif (outcome.status, outcome.output) != (first.status, first.output):
                sys.exit(f"{program.name} at {share}: {outcome.ended}, or another answer")
            else:
                spent.append(programs.spent(outcome))
            print(program.name, share, f"{spent[-1]:.2f} s", file=sys.stderr, flush=True)
    medians = {share: statistics.median(spent) for share, spent in times.items()}
    return peak, [medians[share] / medians[1] for share in SHARES]


def slowdown(ratio):
    return f"{ratio:.1f} x" if ratio <= MOST else f"over {MOST} x"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", default="target/release", help="where softswap was built")
    parser.add_argument("--swap", default="/var/tmp", help="the swap directory")
    parser.add_argument("--rounds", type=int, default=3, help="runs with each share")
    options = parser.parse_args()
    softswap = Softswap(options.bin_dir, options.swap)
    folder = Path(tempfile.mkdtemp(prefix="softswap-shares-", dir="/var/tmp"))
    folder.chmod(0o755)
    by_name = {program.name: program for program in programs.PROGRAMS}
    heads = ["kind of program", "its memory", *(f"{share:.0%}" for share in SHARES)]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    try:
        for name, kind in KINDS.items():
            peak, ratios = slowdowns(by_name[name], softswap, folder, options.rounds)
            cells = [kind, f"{peak >> 20} MiB", *map(slowdown, ratios)]
            print("| " + " | ".join(cells) + " |", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
