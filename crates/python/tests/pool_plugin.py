"""For pytest (`-p pool_plugin`): all arrays that the tests make lie in a pool."""
import contextlib
import tempfile

import pytest

import softswap

LEFT_AT_THE_END = contextlib.ExitStack()


# Python's handler of faults, which pytest puts in force, must be there before the first pool.
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pool = softswap.Pool(memory="32M", swap=tempfile.gettempdir())
    LEFT_AT_THE_END.enter_context(config.pool.numpy(at_least=1))


def pytest_unconfigure(config):
    LEFT_AT_THE_END.close()
    stats = config.pool.stats()
    print(f"\nmapped {stats['mapped_bytes'] / 2**20:,.1f} MiB, {stats['faults']:,} touches waited")
    assert stats["faults"] > 1000, stats
