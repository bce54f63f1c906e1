"""For pytest (`-p pool_plugin`): all arrays that the tests make lie in a pool."""
import tempfile

import softswap

POOL = softswap.Pool(memory="32M", swap=tempfile.gettempdir())
IN_FORCE = POOL.numpy(at_least=1)


def pytest_configure(config):
    IN_FORCE.__enter__()


def pytest_unconfigure(config):
    IN_FORCE.__exit__(None, None, None)
    stats = POOL.stats()
    print(f"\nmapped {stats['mapped_bytes'] / 2**20:,.1f} MiB, {stats['faults']:,} touches waited")
    assert stats["faults"] > 1000, stats
