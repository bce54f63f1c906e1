#!/usr/bin/python3
"""Other people's programs, plain and managed: what passes plain must pass managed.

Prints a table for each part as Markdown, ready for docs/compatibility.md, and
what went wrong to standard error. `--only redis,test_mmap,vm` picks by name, and
so does the name of a part: programs, cpython, stress.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import cpython
import programs
import stress
from machine import Softswap


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parts(options):
    """Name, title, heading, and the examinations of each part."""
    by_name = {program.name: program for program in programs.PROGRAMS}
    return [
        ("programs", "Programs", programs.HEAD, list(by_name),
         lambda name, *where: programs.examine(by_name[name], *where)),
        ("cpython", "CPython's own tests, at 64 MiB", cpython.HEAD, cpython.MODULES,
         cpython.examine),
        ("stress", "stress-ng with --verify, at 128 MiB", stress.HEAD, stress.names(),
         lambda name, *where: stress.examine(name, *where, options.seconds)),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", default="target/release", help="where softswap was built")
    parser.add_argument("--swap", default="/var/tmp", help="the swap directory")
    parser.add_argument("--only", default="", help="names of programs, tests, stressors or parts")
    parser.add_argument("--seconds", type=int, default=10, help="how long each stressor runs")
    parser.add_argument("--work", default="/var/tmp", help="where files are made")
    options = parser.parse_args()
    wanted = {name.strip() for name in options.only.split(",") if name.strip()}
    folder = Path(tempfile.mkdtemp(prefix="softswap-compat-", dir=options.work))
    folder.chmod(0o755)
    softswap = Softswap(options.bin_dir, options.swap)
    passed, failures, skipped = 0, [], []
    known = set()
    try:
        for part, title, head, names, examine in parts(options):
            rows = []
            known |= {part, *names}
            for name in names:
                if wanted and not wanted & {part, name}:
                    continue
                print(f"-- {name}", file=sys.stderr, flush=True)
                row, wrong = examine(name, softswap, folder)
                if row:
                    rows.append(row)
                    print(" | ".join(row), file=sys.stderr, flush=True)
                if wrong is None:
                    passed += 1
                elif wrong.startswith("skipped: "):
                    skipped.append(wrong)
                    print(wrong, file=sys.stderr, flush=True)
                else:
                    failures.append(wrong)
                    print(f"FAILED: {wrong}", file=sys.stderr, flush=True)
            if rows:
                print(f"\n### {title}\n\n{table(head, rows)}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name in wanted - known:
        failures.append(f"{name}: there is no such program, test or stressor")
    print("", *skipped, *(f"failed: {failure}" for failure in failures), sep="\n", file=sys.stderr)
    print(f"{passed} passed, {len(failures)} failed, {len(skipped)} skipped", file=sys.stderr)
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
