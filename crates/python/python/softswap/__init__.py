"""More memory than DRAM.

A `Pool` is a budget of DRAM with disk behind it, whose arrays may be larger than that. Whole
programs run so by `softswap run`, the command that this package brings; `%load_ext softswap`
shows in a notebook how such a program fares.
"""
from ._command import command
from ._pool import Pool, SwapError

__all__ = ["Pool", "SwapError", "command", "load_ipython_extension"]


def load_ipython_extension(ipython):
    """What `%load_ext softswap` does."""
    from ._magic import softswap

    ipython.register_magic_function(softswap, "line")
