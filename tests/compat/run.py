#!/usr/bin/python3
"""Third-party programs, without and under softswap: a program that passes without must pass with
it.

Writes each result to a file of results, and from all results the tables of
docs/compatibility.md. A program that cannot be installed, or fails without softswap, is printed
as skipped. The exit status is 0 only if something passed and nothing differs. `--only
redis,test_mmap,vm` selects by name, or by the name of a part: programs, trees, cpython, stress.
"""

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from datetime import date
from pathlib import Path

import cpython
import programs
import stress
import trees
from machine import Softswap

BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def parts(options):
    """Returns each part's name, the names of its tests, and the function that runs one of them."""
    by_name = {program.name: program for program in programs.PROGRAMS}
    return [
        ("programs", list(by_name),
         lambda name, *where: programs.examine(by_name[name], *where, options.rounds)),
        ("trees", list(trees.BY_NAME),
         lambda name, *where: trees.examine(name, *where, options.rounds)),
        ("cpython", cpython.MODULES, cpython.examine),
        ("stress", stress.names(),
         lambda name, *where: stress.examine(name, *where, options.seconds)),
    ]


def say(*words, sep=" "):
    print(*words, file=sys.stderr, flush=True, sep=sep)


class Results:
    """The stored results, in a file that several runs may write at the same time."""

    def __init__(self, path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def read(self):
        try:
            return json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}

    def add(self, part, name, result):
        with open(f"{self.path}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.read()
            known.setdefault(part, {})[name] = {
                "row": result.row, "skipped": result.skipped, "runs": result.runs}
            self.path.write_text(json.dumps(known, indent=1))


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def how_often(known, part):
    """Returns the text that states how often the slowdowns of a part were measured."""
    entries = known.get(part, {}).values()
    runs = min((entry.get("runs", 1) for entry in entries if entry["row"]), default=1)
    return f"medians of {runs} runs each way, in turns" if runs > 1 else "of one run each way"


def tables(known, options):
    """Returns the results as Markdown."""
    def of(part, names):
        found = known.get(part, {})
        rows = {name: found[name]["row"] for name in names if found.get(name, {}).get("row")}
        return rows, [name for name in names if found.get(name, {}).get("skipped")]

    def skipped_names(names):
        return f"\n\nNot run, as they cannot be installed or fail plain: {', '.join(names)}." if names else ""

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    (program_rows, no_programs), (tree_rows, no_trees), (module_rows, no_modules), (stress_rows, no_stress) = (
        of(part, names) for part, names, _ in parts(options))
    return "\n\n".join([
        f"Measured {date.today()} on {os.cpu_count()} CPUs with {memory:.0f} GiB, Linux {platform.release()}.",
        "### Programs",
        f"Slowdown: {how_often(known, 'programs')}, on a machine that did other work, too.",
        table(programs.HEAD, program_rows.values()) + skipped_names(no_programs),
        "### Trees of processes",
        "All processes share the budget, in a control group of the kernel's without swap. "
        f"Slowdown: {how_often(known, 'trees')}, on a machine that did other work, too.",
        table(trees.HEAD, tree_rows.values()) + skipped_names(no_trees),
        f"### CPython's own tests, at {cpython.BUDGET >> 20} MiB",
        table(cpython.HEAD, module_rows.values()) + skipped_names(no_modules),
        f"### stress-ng with --verify, at {stress.BUDGET >> 20} MiB",
        table(stress.HEAD, stress.summary(stress_rows, no_stress))])


def write_document(path, text):
    """Writes the tables between the two markers of a document."""
    document = path.read_text()
    before, rest = document.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def examine_all(options, results, folder):
    softswap = Softswap(options.bin_dir, options.swap)
    wanted = {name.strip() for name in options.only.split(",") if name.strip()}
    passed, failures, skipped_names, differs, known = 0, [], [], [], set()
    for part, names, examine in parts(options):
        known |= {part, *names}
        for name in names:
            if wanted and not wanted & {part, name}:
                continue
            say(f"-- {name}")
            result = examine(name, softswap, folder)
            results.add(part, name, result)
            if result.note:
                say(f"note: {name}: {result.note}")
            if result.skipped:
                skipped_names.append(f"skipped: {name}: {result.skipped}")
                say(skipped_names[-1])
                continue
            say(" | ".join(result.row))
            if result.wrong:
                failures.append(f"{name}: {result.wrong}")
                say(f"FAILED: {failures[-1]}")
            elif result.known:
                differs.append(f"known: {name}: {result.known}")
            else:
                passed += 1
    failures += [f"{name}: no such program, test or stressor" for name in wanted - known]
    return passed, failures, differs, skipped_names


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", default="target/release", help="where softswap was built")
    parser.add_argument("--swap", default="/var/tmp", help="the swap directory")
    parser.add_argument("--only", default="", help="names of programs, tests, stressors or parts")
    parser.add_argument("--seconds", type=int, default=10, help="how long each stressor runs")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program, plain and managed in turns")
    parser.add_argument("--work", default="/var/tmp", help="where files are made")
    parser.add_argument("--results", default="target/compat/results.json", help="what is known of each")
    parser.add_argument("--document", type=Path, help="the document that the tables go into")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results(options.results)
    folder = Path(tempfile.mkdtemp(prefix="softswap-compat-", dir=options.work))
    folder.chmod(0o755)
    try:
        passed, failures, differs, skipped_names = examine_all(options, results, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = tables(results.read(), options)
    if options.document:
        write_document(options.document, text)
    else:
        print(text)
    say("", *skipped_names, *differs, *(f"failed: {failure}" for failure in failures), sep="\n")
    say(f"{passed} passed, {len(failures)} failed, {len(differs)} known to differ, "
        f"{len(skipped_names)} skipped")
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
