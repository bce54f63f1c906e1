"""For pytest (`-p pool_plugin -p no:faulthandler`): all arrays that the tests make lie in a pool.

Some live until Python ends. pytest would disable Python's handler of faults before, and take
away the pool's with it."""
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
