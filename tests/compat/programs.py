"""Third-party programs: each computes something, without and under softswap, and must print the
same result. corpus.py and runtimes.py list them."""

import os
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import corpus
import runtimes
from machine import (MIN_BUDGET, Result, install, install_wheels, last_lines, read_reports,
                     run, show_bytes, skipped, wheel_version)

PROGRAMS = corpus.PROGRAMS + runtimes.PROGRAMS
# Installed Python packages are kept in the target directory.
WHEELS = Path("target/compat/python").resolve()

PREAMBLE = """
set -u
run() {
    if [ -n "$COMPAT_BUDGET" ]; then
        set -- "$COMPAT_SOFTSWAP" run --memory "$COMPAT_BUDGET" --reserve 0 --swap "$COMPAT_SWAP" \
            --quiet --report "$COMPAT_REPORT" -- "$@"
    else
        set -- /usr/bin/python3 "$COMPAT_PEAK" "$COMPAT_REPORT" "$@"
    fi
    ${run_as:-} "$@"
}
"""


def measure(program, softswap, folder, budget_bytes):
    """Runs a program's script once. Returns the result, and the peak of the processes that `run`
    started."""
    work = Path(tempfile.mkdtemp(dir=folder))
    report_dir = Path(tempfile.mkdtemp(dir=folder))
    report_dir.chmod(0o777)
    report = report_dir / "report.json"
    env = dict(
        os.environ, LC_ALL="C.UTF-8", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/bin",
        COMPAT_BUDGET=str(budget_bytes or ""), COMPAT_SOFTSWAP=str(softswap.command),
        COMPAT_SWAP=softswap.swap, COMPAT_REPORT=str(report),
        PYTHON=str(WHEELS / "bin" / "python3"),
        COMPAT_PEAK=str(Path(__file__).resolve().parent / "peak.py"))
    outcome = run(["bash", "-c", PREAMBLE + program.script], cwd=work, env=env,
                  limit=program.limit)
    outcome.reports = read_reports(report_dir)
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(report_dir, ignore_errors=True)
    return outcome


def reported(outcome, key):
    values = [report.get(key) for report in outcome.reports]
    return max((value for value in values if value), default=0)


def version_of(program):
    if program.wheels:
        return wheel_version(WHEELS / "bin" / "python3", program.wheels[0])
    found = subprocess.run(["bash", "-c", program.version], capture_output=True)
    text = (found.stdout + found.stderr).decode(errors="replace")
    number = re.search(r"\d+(\.\d+)+", text)
    return number.group() if number else "?"


def spent(outcome):
    """Returns the duration of `run` itself, without the generation of its input, if the report
    has it."""
    return reported(outcome, "wall_s") or outcome.seconds


def examine(program, softswap, folder, rounds):
    missing = install(program.packages) or install_wheels(program.wheels, WHEELS)
    if missing:
        return skipped(f"{', '.join(missing)} cannot be installed")
    plain = measure(program, softswap, folder, None)
    peak = reported(plain, "peak_bytes")
    if plain.status != 0 or not peak:
        return skipped(f"fails without softswap: {plain.ended}: {last_lines(plain)}")
    budget = max(MIN_BUDGET, int(peak * program.share))
    # The report covers only the first process. The evicted memory of the others is unknown.
    has_left = reported(plain, "first_peak_bytes") < peak * 0.8
    times, wrong = ([spent(plain)], []), ""
    for number in range(rounds):
        if number > 0:
            # Alternate the runs, so that other load on the machine affects both kinds.
            again = measure(program, softswap, folder, None)
            if (again.status, again.output) != (plain.status, plain.output):
                return skipped("the output differs between two runs without softswap")
            times[0].append(spent(again))
        managed = measure(program, softswap, folder, budget)
        times[1].append(spent(managed))
        has_left = has_left or reported(managed, "pages_out") > 0
        if (managed.status, managed.output) != (plain.status, plain.output):
            why = managed.ended if managed.status != plain.status else "another answer"
            wrong = f"at {show_bytes(budget)}: {why}: {last_lines(managed)}"
            break
    slowdown = statistics.median(times[1]) / statistics.median(times[0])
    same = "**no**" if wrong else "yes" if has_left else "yes, all in DRAM"
    row = [program.name, version_of(program), f"{show_bytes(budget)} ({100 * budget / peak:.0f} %)",
           same, "-" if wrong else f"{slowdown:.1f} x", program.unmanaged]
    return Result(row=row, wrong=wrong, runs=rounds)


HEAD = ["program", "version", "budget (share of its peak)", "same answer", "slowdown",
        "what is not managed"]
