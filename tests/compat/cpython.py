"""CPython's own tests, as Debian ships them: a test that passes without softswap must pass under
it.

A test that fails under softswap is repeated by itself, at most twice, and counts as failed if it
fails each time. A test that passes when repeated is reported, too.
"""

import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from machine import MIB, Result, install, last_lines, run, skipped

# Debian omits some modules. Another Python runs these, if available.
PYTHONS = ["/usr/bin/python3", shutil.which("python3")]
PACKAGES = ["python3", "libpython3.11-testsuite"]
BUDGET = 64 * MIB
# Excluded: tests of sockets to the hypervisor, some of which wait forever.
EXCLUDED = ["*VSOCK*"]
# test_socketserver is skipped unless network use is enabled. It uses only the loopback interface.
USES = {"test_socketserver": ["-u", "network"]}
# Time limit in seconds for a module without softswap: the machine may be busy, and some modules
# take minutes. Managed runs get at least a quarter of this limit, or TIMES times the plain time.
LIMIT = 1200
TIMES = 6
REPEATS = 2
MODULES = """
    test_mmap test_subprocess test_threading test_signal test_fork1 test_wait3 test_wait4
    test_multiprocessing_fork test_multiprocessing_spawn test_multiprocessing_forkserver
    test_multiprocessing_main_handling test_concurrent_futures test_ctypes test_sqlite3
    test_socket test_socketserver test_asyncio test_io test_os test_posix test_gc test_ssl
    test_thread test_threadsignals test_threading_local test_faulthandler test_fcntl test_pty
    test_resource test_select test_epoll test_poll test_eintr test_array test_memoryio
    test_zlib test_lzma test_bz2 test_mailbox test_tempfile test_shutil
""".split()


def python_with(module):
    """Returns a Python whose tests include the module."""
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec('test.{module}') is None)"
    has = (python for python in PYTHONS
           if python and subprocess.run([python, "-c", look], stderr=subprocess.DEVNULL).returncode == 0)
    return next(has, None)


def outcomes(module, softswap, folder, managed, limit=LIMIT, names=()):
    """Returns the result of each test of a module, or of the named tests, and of the whole
    module."""
    work = Path(tempfile.mkdtemp(dir=folder))
    results = work / "results.xml"
    command = [python_with(module), "-W", "ignore", "-m", "test", "--timeout", str(limit - 30),
               "--junit-xml", str(results), module]
    for pattern in EXCLUDED:
        command[-1:-1] = ["--ignore", pattern]
    command[-1:-1] = USES.get(module, [])
    if names:
        chosen = work / "chosen"
        chosen.write_text("\n".join(names) + "\n")
        command[-1:-1] = ["--matchfile", str(chosen)]
    if managed:
        command = softswap.wrap(command, BUDGET)
    outcome = run(command, cwd=work, limit=limit)
    tests = {}
    try:
        tree = ElementTree.parse(results)
    except (OSError, ElementTree.ParseError):
        return outcome, tests
    for case in tree.iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        is_skipped = case.find("skipped") is not None or case.get("result") == "skipped"
        verdict = "failed" if bad else "skipped" if is_skipped else "passed"
        # Subtests share a name. The test fails if one subtest fails.
        if tests.get(case.get("name")) != "failed":
            tests[case.get("name")] = verdict
    return outcome, tests


def without(tests, wanted):
    """Returns the wanted tests that did not pass."""
    return [name for name in wanted if tests.get(name) != "passed"]


def examine(module, softswap, folder):
    missing = install(PACKAGES)
    if missing:
        return skipped(f"{', '.join(missing)} cannot be installed")
    if python_with(module) is None:
        return skipped("no installed Python contains the module")
    plain, before = outcomes(module, softswap, folder, False)
    good = [name for name, verdict in before.items() if verdict == "passed"]
    if not good:
        return skipped(f"no test passes without softswap: {plain.ended}: {last_lines(plain)}")
    limit = int(max(LIMIT / 4, TIMES * plain.seconds))
    managed, after = outcomes(module, softswap, folder, True, limit)
    first = worse = without(after, good)
    for _ in range(REPEATS):
        if worse:
            # Ignore a test that now also fails without softswap.
            alone = outcomes(module, softswap, folder, False, limit, worse)[1]
            again = outcomes(module, softswap, folder, True, limit, worse)[1]
            worse = without(again, [name for name in worse if alone.get(name) == "passed"])
    row = [module, str(len(good)), str(len(good) - len(worse)),
           "-" if not worse else f"**{len(worse)}**",
           f"{managed.seconds / plain.seconds:.1f} x" if after else "-"]
    repeated = [name for name in first if name not in worse]
    note = f"failed at first, passed when repeated: {', '.join(repeated[:12])}" if repeated else ""
    if not after:
        note += f" the run ended early: {managed.ended}: {last_lines(managed)}"
    wrong = ", ".join(f"{name} ({after.get(name, 'not run')})" for name in worse[:12])
    return Result(row=row, wrong=wrong, note=note)


HEAD = ["tests of CPython", "pass plain", "pass managed", "worse", "time"]
