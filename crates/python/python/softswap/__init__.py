"""More memory than DRAM.

A `Pool` is a budget of DRAM with swap space on disk; its arrays may be larger than the budget.
`softswap run`, the command in this package, runs whole programs that way; `%load_ext softswap`
shows the memory of such a program in a notebook.
"""
from ._command import command
from ._pool import Pool, SwapError

__all__ = ["Pool", "SwapError", "command", "load_ipython_extension"]


def load_ipython_extension(ipython):
    """Called by `%load_ext softswap`."""
    from ._magic import softswap

    ipython.register_magic_function(softswap, "line")
