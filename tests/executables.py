#!/usr/bin/env python3
"""Runs the test executables, several parts of them at a time.

A part is a module of a large executable, or a whole small one. As root, parts that depend on
privileges also run as uid 65534, from copies that this user can read. Parts that took longest in
the last run start first. The output of a part that fails is printed, and kept in
TARGET/test-output.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", SOURCE / "target"))
OUTPUT = TARGET / "test-output"
TIMES = TARGET / "test-times.json"
NOBODY = 65534

# Timeouts of a part. They only detect hangs.
LIMIT_S = 1500
LONG_LIMIT_S = 8 * 3600

# Executables that are split by module.
BY_MODULE = {("cli", "cli"), ("bench", "bench"), ("remote", "remote"), ("softswap", "softswap")}

# Started first while no run times are known.
SLOW = (
    "cli::programs", "remote::clusters", "cli::abi", "cli::remote", "bench::shape", "cli::budget",
    "engine::engine", "cli::tree_turns", "cli::shared_area", "cli::transfers", "cli::started",
)

# Parts with the same value never run concurrently, because they change the machine's swap areas,
# start many servers, or need rings: those of all processes of a user count against one limit on
# locked memory, and the tests of pools create many.
EXCLUSIVE = {
    "bench::command": "swap areas",
    "bench::shape": "swap areas",
    "cli::stat_and_ctl": "locked memory",
    "cli::swap_device": "swap areas",
    "softswap::pool": "locked memory",
    "bench::pages": "swap areas",
    "cli::parking": "locked memory",
    "cli::remote": "cluster",
    "cli::remote_turns": "cluster",
    "remote::clusters": "cluster",
}

# The user that runs a part if two are available. With --long both users run the part.
ONE_USER = {
    "bench::command": 0,
    "bench::extents": NOBODY,
    "bench::pages": NOBODY,
    "bench::shape": 0,
    "cli::areas": 0,
    "cli::budget": 0,
    "cli::faults": 0,
    "cli::loading": NOBODY,
    "cli::programs": NOBODY,
    "cli::python_module": 0,
    "cli::raw_area": 0,
    "cli::remote": 0,
    "cli::reports": NOBODY,
    "cli::secrets": 0,
    "cli::shared_area": 0,
    "cli::sleeping": NOBODY,
    "cli::started": NOBODY,
    "cli::swap_device": 0,
    "cli::thrashing": NOBODY,
    "cli::transfers": 0,
    "cli::tree": 0,
    "cli::tree_turns": 0,
    "engine::engine": NOBODY,
    "engine::softswap_engine": 0,
    "fuzz::bounded": 0,
    "sys::softswap_sys": NOBODY,
}
ROOT_ONLY_CRATES = ("remote", "manual", "view", "capi")
# Configurations in which each user runs the ABI cases.
ABI_WAYS = {0: "8M", NOBODY: "container"}
LONG_ABI_WAYS = {0: "8M,64M,no-move,no-io-uring,protection,wakes,sleeps,container", NOBODY: "8M,wakes,container"}
# Output of passed tests.
PRINTED = re.compile(r"^successes:\n.*?(?=^failures:$|^test result:)", re.MULTILINE | re.DOTALL)
RESULT = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed;", re.MULTILINE)
# Checks of the test programs themselves, without softswap.
PLAIN_PROGRAMS = "cli::programs (plain)"
CHECKS_OF_TEST_PROGRAMS = (
    "every_test_program_detects",
    "every_program_passes_without",
    "python_programs_are_deterministic",
)


@dataclass
class Executable:
    path: Path
    target: str
    crate: str
    package_dir: Path

    def tests(self):
        listing = subprocess.run(
            [self.path, "--list", "--format=terse"], cwd=self.package_dir, check=True, text=True,
            stdout=subprocess.PIPE,
        ).stdout
        return re.findall(r"^(.*): test$", listing, re.MULTILINE)


@dataclass
class Part:
    name: str
    executable: Executable
    user: int
    tests: list
    command: list = field(default_factory=list)
    directory: Path = None
    environment: dict = None
    output: str = ""
    skipped: list = field(default_factory=list)
    status: object = None
    seconds: float = 0
    cpu_seconds: float = 0

    @property
    def title(self):
        return f"{self.name} as uid {self.user}"


def built():
    """Builds the tests, and returns all executables that cargo lists."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json"]
    listing = subprocess.run(
        command, cwd=SOURCE, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    found = []
    for message in map(json.loads, listing.splitlines()):
        if message.get("executable") and message.get("profile", {}).get("test"):
            package = Path(message["manifest_path"]).parent
            name = message["target"]["name"]
            found.append(Executable(Path(message["executable"]), name, package.name, package))
    return found


def part_of(executable, test):
    """Returns the name of the part of a test."""
    if (executable.crate, executable.target) not in BY_MODULE:
        return f"{executable.crate}::{executable.target}"
    name = f"{executable.crate}::{test.split('::')[0]}"
    is_plain = name == "cli::programs" and any(word in test for word in CHECKS_OF_TEST_PROGRAMS)
    return PLAIN_PROGRAMS if is_plain and os.getuid() == 0 else name


def users(name, crate, is_long):
    own = os.getuid()
    if own != 0:
        return (own,)
    if crate in ROOT_ONLY_CRATES or name == PLAIN_PROGRAMS:
        return (0,)
    if is_long or name not in ONE_USER:
        return (0, NOBODY)
    return (ONE_USER[name],)


def parts_of(executables, is_long, only):
    parts = []
    for it in executables:
        tests = {}
        for test in it.tests():
            if re.search(only, f"{it.crate}::{test}"):
                tests.setdefault(part_of(it, test), []).append(test)
        for name, its in tests.items():
            parts += [Part(name, it, user, its) for user in users(name, it.crate, is_long)]
    return parts


def prepare(parts, place, is_long):
    """Assigns each part its command; the files for uid 65534 are copied to a directory that this
    user can read."""
    ways = LONG_ABI_WAYS if is_long else ABI_WAYS
    own = dict(os.environ)
    if os.getuid() == 0:
        own["SOFTSWAP_ABI_WAYS"] = ways[0]
    nobodys = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": place / "tmp",
        "TMPDIR": place / "tmp",
        "LANG": "C.UTF-8",
        "SOFTSWAP_BIN_DIR": place / "bin",
        "SOFTSWAP_SOURCE_DIR": place / "programs",
        "SOFTSWAP_ABI_DIR": place / "abi",
        "SOFTSWAP_ABI_WAYS": ways[NOBODY],
        "SOFTSWAP_FUZZ_DIR": place / "fuzz",
        "SOFTSWAP_FUZZ_SECONDS": "0",
    }
    if any(part.user != os.getuid() for part in parts):
        for name in ("bin", "tests", "tmp"):
            (place / name).mkdir()
        (place / "tmp").chmod(0o1777)
        for name in ("softswap", "softswap-bench", "softswap-remote", "libsoftswap.so"):
            shutil.copy(TARGET / "debug" / name, place / "bin")
        for source, name in (("tests/programs", "programs"), ("tests/abi", "abi"), ("fuzz/corpus", "fuzz/corpus")):
            shutil.copytree(SOURCE / source, place / name)
    options = ["--test-threads=2", "--show-output"] + (["--include-ignored"] if is_long else [])
    for part in parts:
        selected = ["--exact", *part.tests, *options]
        if part.user == os.getuid():
            part.command = [part.executable.path, *selected]
            part.directory, part.environment = part.executable.package_dir, own
            continue
        copy = place / "tests" / part.executable.path.name
        if not copy.exists():
            shutil.copy(part.executable.path, copy)
        user = ["setpriv", f"--reuid={part.user}", f"--regid={part.user}", "--clear-groups"]
        part.command = [*user, copy, *selected]
        part.directory, part.environment = place / "tmp", nobodys
    subprocess.run(["chmod", "-R", "a+rX", place], check=True)


# Running child processes, and an event that prevents further starts.
running, is_ended = set(), threading.Event()


def run(part, limit_s):
    """Runs a part, and records its output, status and duration."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            part.command, cwd=part.directory, env=part.environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )
        running.add(child)
        watchdog = threading.Timer(limit_s, end, [child])
        watchdog.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        is_late = not watchdog.is_alive()
        watchdog.cancel()
        end(child)
        running.discard(child)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    part.skipped = sorted(set(re.findall("^skipped: .*", printed, re.MULTILINE)))
    part.output = PRINTED.sub("", printed)
    part.status = f"not finished after {limit_s} s" if is_late else child.returncode
    part.seconds = time.monotonic() - begin
    part.cpu_seconds = usage.ru_utime + usage.ru_stime


def end(child):
    """Kills the remaining processes of a child's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def run_all(parts, limit_s, concurrent):
    waiting, held, changed = list(parts), set(), threading.Condition()

    def take():
        with changed:
            while waiting and not is_ended.is_set():
                for part in waiting:
                    if EXCLUSIVE.get(part.name) not in held:
                        waiting.remove(part)
                        held.update(filter(None, [EXCLUSIVE.get(part.name)]))
                        return part
                changed.wait()
            return None

    def work():
        while (part := take()) is not None:
            run(part, limit_s)
            with changed:
                held.discard(EXCLUSIVE.get(part.name))
                changed.notify_all()
                tell(part)

    workers = [threading.Thread(target=work) for _ in range(concurrent)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def tell(part):
    counts = "; ".join(f"{passed} passed, {broken} failed" for passed, broken in RESULT.findall(part.output))
    print(f"{part.seconds:7.1f} s {part.cpu_seconds:7.1f} s CPU  {part.title}: {counts}", flush=True)
    for line in part.skipped:
        print(line)
    if part.status != 0:
        OUTPUT.mkdir(parents=True, exist_ok=True)
        kept = OUTPUT / f"{re.sub('[^a-z0-9]+', '-', part.title)}.{int(time.time())}.log"
        kept.write_text(part.output)
        output = "\n".join("  " + line for line in part.output.splitlines())
        print(f"\n-- {part.title}: status {part.status}; kept in {kept}\n{output}\n", flush=True)


def failures(part):
    """Returns the failures in a part: the names of tests, or of the part if there is no test
    name."""
    names = re.findall(r"^test (.*) \.\.\. FAILED$", part.output, re.MULTILINE)
    return [f"{part.title}: {name}" for name in names or ["the executable"]] if part.status != 0 else []


def last_times():
    return json.loads(TIMES.read_text()) if TIMES.exists() else {}


def by_last_time(parts):
    times = last_times()
    slow = {name: 10_000 - rank for rank, name in enumerate(SLOW)}
    return sorted(parts, key=lambda part: -times.get(part.title, slow.get(part.name, 0)))


def keep_times(parts):
    times = last_times()
    times.update({part.title: round(part.seconds, 1) for part in parts if part.status == 0})
    TIMES.write_text(json.dumps(times, indent=1, sort_keys=True))


@contextlib.contextmanager
def load(place):
    """Runs a busy loop for each CPU, and a writer to the disk."""
    loops = ["while :; do :; done"] * (os.cpu_count() or 2)
    writer = f"while :; do dd if=/dev/zero of={place}/load bs=1M count=256 conv=fsync status=none; done"
    children = [
        subprocess.Popen(["sh", "-c", script], start_new_session=True) for script in [*loops, writer]
    ]
    running.update(children)
    try:
        yield
    finally:
        for child in children:
            end(child)
            child.wait()
            running.discard(child)


def be_ended(number, _frame):
    is_ended.set()
    for child in list(running):
        end(child)
    os._exit(128 + number)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--long", action="store_true", help="all ways, all users, ignored tests")
    arguments.add_argument("--times", type=int, default=1, help="run everything this often")
    arguments.add_argument("--load", action="store_true", help="with busy loops and a writer to the disk")
    arguments.add_argument("--only", default="", help="a regular expression for CRATE::TEST")
    asked = arguments.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, be_ended)
    executables = built()
    failed = {}
    with tempfile.TemporaryDirectory(
        prefix="softswap-tests.", dir="/tmp", ignore_cleanup_errors=True
    ) as place, contextlib.ExitStack() as stack:
        place = Path(place)
        place.chmod(0o755)
        parts = by_last_time(parts_of(executables, asked.long, asked.only))
        if not parts:
            sys.exit(f"no test matches {asked.only!r}")
        prepare(parts, place, asked.long)
        if asked.load:
            stack.enter_context(load(place))
        cpus = os.cpu_count() or 1
        # One more than CPUs, because parts wait for disks and servers about a fifth of their time.
        # Under load twice as many, or the busy loops would take most of the time.
        concurrent = 2 * cpus + 2 if asked.load else cpus + 1
        for turn in range(asked.times):
            run_all(parts, LONG_LIMIT_S if asked.long else LIMIT_S, concurrent)
            for name in (name for part in parts for name in failures(part)):
                failed[name] = failed.get(name, 0) + 1
            if asked.times > 1:
                print(f"turn {turn + 1} of {asked.times}: {len(failed)} failed tests", flush=True)
        if not asked.load and not asked.long and not asked.only:
            keep_times(parts)
    for name, count in sorted(failed.items()):
        print(f"failed {count} of {asked.times} times: {name}")
    counts = [(int(a), int(b)) for part in parts for a, b in RESULT.findall(part.output)]
    passed, broken = (sum(column) for column in zip(*counts, (0, 0)))
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {broken} failed;")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
