"""Installs the tested programs, and runs them without or under softswap."""

import functools
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
# Minimum budget of a run. The engine itself accepts 8 MiB.
MIN_BUDGET = 16 * MIB


@dataclass
class Result:
    """The result of one program, test module or stressor: a row of the table, failures under
    softswap, known failures, the reason if it was left out, and notes."""

    row: list | None = None
    wrong: str = ""
    known: str = ""
    skipped: str = ""
    note: str = ""
    # Number of runs with and without softswap.
    runs: int = 1


def skipped(why):
    return Result(skipped=why)


@functools.cache
def apt(*words):
    # Prevents installed packages from starting services.
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")
    subprocess.run(["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300",
                    *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def install(packages):
    """Installs Debian packages. Returns the names of those that are not available."""
    missing = [name for name in packages if not is_installed(name)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        apt("update")
        for name in missing:
            apt("install", "--no-install-recommends", name)
    return [name for name in missing if not is_installed(name)]


def install_wheels(wheels, environment):
    """Installs Python packages into a permanent environment of their own. Returns the names of
    those that are not available."""
    python = environment / "bin" / "python3"
    if not python.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", str(environment)],
                       stdout=subprocess.DEVNULL, check=False)
    missing = [name for name in wheels if not has_wheel(python, name)]
    for name in missing:
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", name],
                       stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
    return [name for name in missing if not has_wheel(python, name)]


def has_wheel(python, name):
    return python.exists() and wheel_version(python, name) != ""


def wheel_version(python, name):
    look = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    return subprocess.run([str(python), "-c", look, name], capture_output=True, text=True).stdout.strip()


# Commands of packages that are often installed from other sources.
COMMANDS = {"golang-go": "go", "cargo": "cargo"}


def is_installed(package):
    if package in COMMANDS and shutil.which(COMMANDS[package]):
        return True
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    found = subprocess.run(query, capture_output=True, text=True)
    return found.stdout == "installed"


@dataclass
class Outcome:
    """The result of one run."""

    status: int | None  # None: timed out
    output: bytes
    errors: bytes
    seconds: float
    peak_bytes: int
    reports: list = field(default_factory=list)

    @property
    def ended(self):
        if self.status is None:
            return "timed out"
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def run(command, *, cwd, env=None, limit=300):
    """Runs a command in a new session, and kills its remaining processes after its exit."""
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
        # The size is limited, because some stressors allocate without a limit.
        self.swap = f"{swap_dir}:4G"

    def wrap(self, command, budget_bytes, report=None):
        more = ["--report", str(report)] if report else []
        return [str(self.command), "run", "--memory", str(budget_bytes), "--reserve", "0",
                "--swap", self.swap, "--quiet", *more, "--", *command]


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
