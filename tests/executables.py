#!/usr/bin/env python3
"""Runs all test executables, as many at a time as there are CPUs: most of them wait half of the
time, for a disk or for a program to get on.

As root, what may depend on the user runs as uid 65534, too, from copies which that user may read:
most people run softswap without any privilege. `failed: NAME` follows what has failed.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
NOBODY = 65534

# A guard against hangs: what takes longest takes a quarter of it.
LIMIT_S = 2400

# Begun first, as they take longest.
LONG = ("abi", "programs", "budget", "clusters", "remote", "shared_area", "shape")
# One after the other: they turn swap on, or want to find none; or they start clusters, each of
# many ports that were free a moment before.
IN_TURN = (("bench", "swap_device", "pages"), ("clusters", "remote"))

# Where there are two users, each runs the boundary's cases in other ways, and what takes long and
# is about no privilege is run by one of them.
ROOT_ONLY_CRATES = ("remote", "manual", "view", "capi")
ROOT_ONLY = (("bench", "shape"),)
ABI_WAYS = {0: "64M,no-move,no-io-uring,sleeps", NOBODY: "8M,wakes"}
# Real programs run as nobody; that the tests' own programs notice what is wrong is seen as root.
PROGRAMS = ("cli", "programs")
OF_TESTS = (
    "every_case_of_every_program_notices",
    "every_program_passes_without",
    "the_python_programs_repeat",
)


@dataclass
class Executable:
    path: Path
    target: str
    crate: str
    package_dir: Path


@dataclass
class Job:
    name: str
    target: str
    command: list
    directory: Path
    environment: dict = field(default_factory=lambda: dict(os.environ))


def built():
    """All test executables, as cargo names them."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json"]
    told = subprocess.run(command, cwd=SOURCE, stdout=subprocess.PIPE, check=True, text=True).stdout
    found = []
    for message in map(json.loads, told.splitlines()):
        if message.get("executable") and message.get("profile", {}).get("test"):
            package = Path(message["manifest_path"]).parent
            name = message["target"]["name"]
            found.append(Executable(Path(message["executable"]), name, package.name, package))
    return found


def is_of_both(executable):
    name = (executable.crate, executable.target)
    return executable.crate not in ROOT_ONLY_CRATES and name not in ROOT_ONLY


def own_jobs(executables):
    is_root = os.getuid() == 0
    jobs = []
    for it in executables:
        job = Job(it.path.name, it.target, [it.path], it.package_dir)
        if is_root and (it.crate, it.target) == PROGRAMS:
            # Tests whose names have one of these in them.
            job.command += OF_TESTS
        if is_root:
            job.environment["SOFTSWAP_ABI_WAYS"] = ABI_WAYS[0]
        jobs.append(job)
    return jobs


def nobodys_jobs(executables, place):
    """What the tests run is copied to where that user may read it, and nothing else."""
    for name in ("bin", "tests", "tmp"):
        (place / name).mkdir()
    (place / "tmp").chmod(0o1777)
    target = Path(os.environ.get("CARGO_TARGET_DIR", SOURCE / "target")) / "debug"
    for name in ("softswap", "softswap-bench", "softswap-remote", "libsoftswap.so"):
        shutil.copy(target / name, place / "bin")
    for source, name in (("tests/programs", "programs"), ("tests/abi", "abi"), ("fuzz/corpus", "fuzz/corpus")):
        shutil.copytree(SOURCE / source, place / name)
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": place / "tmp",
        "TMPDIR": place / "tmp",
        "LANG": "C.UTF-8",
        "SOFTSWAP_BIN_DIR": place / "bin",
        "SOFTSWAP_SOURCE_DIR": place / "programs",
        "SOFTSWAP_ABI_DIR": place / "abi",
        "SOFTSWAP_ABI_WAYS": ABI_WAYS[NOBODY],
        "SOFTSWAP_FUZZ_DIR": place / "fuzz",
        "SOFTSWAP_FUZZ_SECONDS": "0",
    }
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    skipped = [word for name in OF_TESTS for word in ("--skip", name)]
    jobs = []
    for it in filter(is_of_both, executables):
        copy = shutil.copy(it.path, place / "tests")
        command = [*as_nobody, copy, *skipped]
        name = f"{it.path.name} as uid {NOBODY}"
        jobs.append(Job(name, it.target, command, place / "tmp", environment))
    subprocess.run(["chmod", "-R", "a+rX", place], check=True)
    return jobs


# What runs now, and whether nothing more is to be begun.
running, is_ended = set(), threading.Event()


def rank(job):
    return LONG.index(job.target) if job.target in LONG else len(LONG)


def run_all(jobs):
    """Whether all have passed. What each says is shown when it ends, in one piece."""
    output = threading.Lock()
    turns = {target: turn for targets in IN_TURN for turn in [threading.Lock()] for target in targets}

    def run(job):
        if is_ended.is_set():
            return False
        with output:
            print(f"begun: {job.name}", flush=True)
        with tempfile.TemporaryFile() as said:
            command = [*job.command, "--test-threads=2"]
            child = subprocess.Popen(
                command, cwd=job.directory, env=job.environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )
            running.add(child)
            try:
                status = child.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                status = f"not over after {LIMIT_S} s"
            end(child)
            running.discard(child)
            said.seek(0)
            with output:
                print(f"\n-- {job.name}", flush=True)
                shutil.copyfileobj(said, sys.stdout.buffer)
                if status != 0:
                    print(f"failed: {job.name} (status {status})")
                sys.stdout.flush()
        return status == 0

    def run_in_turn(job):
        with turns.get(job.target, contextlib.nullcontext()):
            return run(job)

    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        return all(list(pool.map(run_in_turn, sorted(jobs, key=rank))))


def end(child):
    """Ends a child's session, as far as anything of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def be_ended(number, _frame):
    is_ended.set()
    for child in list(running):
        end(child)
    sys.exit(128 + number)


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, be_ended)
    executables = built()
    if not executables:
        sys.exit("no test executables were found")
    jobs = own_jobs(executables)
    with tempfile.TemporaryDirectory(
        prefix="softswap-tests.", dir="/tmp", ignore_cleanup_errors=True
    ) as place:
        place = Path(place)
        place.chmod(0o755)
        if os.getuid() == 0:
            jobs += nobodys_jobs(executables, place)
        return 0 if run_all(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
