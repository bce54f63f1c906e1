"""For pytest (`-p pool_plugin -p no:faulthandler`): allocates all arrays of the tests in a pool.

Some arrays live until Python exits. Before that, pytest would disable Python's fault handler,
and the pool's with it."""
import contextlib
import tempfile

import softswap

LEFT_AT_THE_END = contextlib.ExitStack()


def pytest_configure(config):
    config.pool = softswap.Pool(memory="32M", swap=tempfile.gettempdir())
    LEFT_AT_THE_END.enter_context(config.pool.numpy(at_least=1))


def pytest_unconfigure(config):
    LEFT_AT_THE_END.close()
    stats = config.pool.stats()
    print(f"\nmapped {stats['mapped_bytes'] / 2**20:,.1f} MiB, {stats['faults']:,} touches waited")
    assert stats["faults"] > 1000, stats
