"""Installing what is tested, and running it plain or managed."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
# Smaller budgets than this leave a run of the engine nothing to work with.
SMALLEST_BUDGET = 16 * MIB


def install(packages):
    """Installs Debian packages; the names of those that cannot be had."""
    missing = [name for name in packages if not is_installed(name)]
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return missing
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    # Services are started by the tests, and by nobody else.
    apt = ["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0"]
    quiet = dict(env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    subprocess.run(apt + ["update"], **quiet)
    for name in missing:
        subprocess.run(apt + ["install", "--no-install-recommends", name], **quiet)
    return [name for name in missing if not is_installed(name)]


def is_installed(package):
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    found = subprocess.run(query, capture_output=True, text=True)
    return found.stdout == "installed"


@dataclass
class Outcome:
    """What came of one run."""

    status: int | None  # None: it took too long
    output: bytes
    errors: bytes
    seconds: float
    peak_bytes: int
    reports: list = field(default_factory=list)

    @property
    def ended(self):
        if self.status is None:
            return "took too long"
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def run(command, *, cwd, env=None, limit=300):
    """Runs a command in a session of its own; whatever it leaves behind is ended."""
    started = time.monotonic()
    with open(Path(cwd) / ".stdout", "w+b") as out, open(Path(cwd) / ".stderr", "w+b") as err:
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True)
        usage = None
        deadline = started + limit
        while time.monotonic() < deadline:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.02)
        seconds = time.monotonic() - started
        end_group(process)
        out.seek(0)
        err.seek(0)
        output, errors = out.read(), err.read()
    peak = usage.ru_maxrss * 1024 if usage and process.returncode is not None else 0
    return Outcome(process.returncode, output, errors, seconds, peak)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if process.returncode is None:
        os.waitpid(process.pid, 0)


class Softswap:
    """The build under test."""

    def __init__(self, bin_dir, swap_dir):
        self.command = Path(bin_dir).resolve() / "softswap"
        self.swap_dir = swap_dir

    def wrap(self, command, budget_bytes, report=None):
        more = ["--report", str(report)] if report else []
        return [str(self.command), "run", "--memory", str(budget_bytes), "--reserve", "0",
                "--swap", str(self.swap_dir), "--quiet", *more, "--", *command]


def read_reports(folder):
    reports = []
    for path in sorted(Path(folder).glob("report*.json")):
        try:
            reports.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            reports.append({})
    return reports


def show_bytes(count):
    return f"{count / MIB:.0f} MiB"


def last_lines(outcome, count=4):
    text = (outcome.errors or outcome.output).decode(errors="replace").strip()
    return " / ".join(text.splitlines()[-count:])[-600:]
