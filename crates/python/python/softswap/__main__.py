"""`python -m softswap run ...`: executes the command `softswap`."""
import os
import sys

from ._command import command

if __name__ == "__main__":
    path = command()
    os.execv(path, [path, *sys.argv[1:]])
