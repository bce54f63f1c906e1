"""`python -m softswap run ...`: becomes the command."""
import os
import sys

from ._command import command

if __name__ == "__main__":
    path = command()
    os.execv(path, [path, *sys.argv[1:]])
