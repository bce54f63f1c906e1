"""CPython's own tests, as Debian ships them: none that passes plain may fail managed."""

import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from machine import MIB, install, last_lines, run

PYTHON = "/usr/bin/python3"
PACKAGES = ["python3", "libpython3.11-testsuite"]
BUDGET = 64 * MIB
LIMIT = 900
MODULES = """
    test_mmap test_subprocess test_threading test_signal test_fork1 test_wait3 test_wait4
    test_multiprocessing_fork test_multiprocessing_spawn test_multiprocessing_forkserver
    test_multiprocessing_main_handling test_concurrent_futures test_ctypes test_sqlite3
    test_socket test_socketserver test_asyncio test_io test_os test_posix test_gc test_ssl
    test_thread test_threadsignals test_threading_local test_faulthandler test_fcntl test_pty
    test_resource test_select test_epoll test_poll test_eintr test_array test_memoryio
    test_zlib test_lzma test_bz2 test_mailbox test_tempfile test_shutil
""".split()


def outcomes(module, softswap, folder, managed):
    """What became of each test of a module, and of the whole."""
    work = tempfile.mkdtemp(dir=folder)
    results = Path(work) / "results.xml"
    command = [PYTHON, "-W", "ignore", "-m", "test", "--timeout", str(LIMIT - 60),
               "--junit-xml", str(results), module]
    if managed:
        command = softswap.wrap(command, BUDGET)
    outcome = run(command, cwd=work, limit=LIMIT)
    tests = {}
    try:
        tree = ElementTree.parse(results)
    except (OSError, ElementTree.ParseError):
        return outcome, tests
    for case in tree.iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None or case.get("result") == "skipped"
        verdict = "failed" if bad else "skipped" if skipped else "passed"
        # Subtests share a name: one that failed decides.
        if tests.get(case.get("name")) != "failed":
            tests[case.get("name")] = verdict
    return outcome, tests


def examine(module, softswap, folder):
    """A row of the table, and what went wrong."""
    missing = install(PACKAGES)
    if missing:
        return None, f"skipped: {module}: {', '.join(missing)} cannot be installed"
    plain, before = outcomes(module, softswap, folder, managed=False)
    if not before:
        return None, f"skipped: {module}: nothing of it runs without softswap: {plain.ended}: " \
                     f"{last_lines(plain)}"
    managed, after = outcomes(module, softswap, folder, managed=True)
    worse = [name for name, verdict in before.items()
             if verdict == "passed" and after.get(name) != "passed"]
    row = [module, str(sum(v == "passed" for v in before.values())),
           str(sum(v == "passed" for v in after.values())),
           "-" if not worse else f"**{len(worse)}**",
           f"{managed.seconds / plain.seconds:.1f} x" if after else "-"]
    if not worse:
        return row, None
    if not after:
        return row, f"{module}: ended early: {managed.ended}: {last_lines(managed)}"
    named = ", ".join(f"{name} ({after.get(name, 'not run')})" for name in worse[:12])
    return row, f"{module}: {named}"


HEAD = ["tests of CPython", "pass plain", "pass managed", "worse", "time"]
