"""`%softswap stats`: how the notebook's own process fares under `softswap run`."""
import json
import os
import subprocess

from ._command import command

COLOURS = {"resident": "#4c78a8", "pool": "#f58518", "disk": "#b0b0b0"}


def figures():
    """What `softswap stat` says of this process; a message where it does not run under softswap."""
    asked = subprocess.run(
        [command(), "stat", "--json", str(os.getpid())], capture_output=True, text=True
    )
    if asked.returncode:
        return asked.stderr.strip() or f"softswap stat ended with status {asked.returncode}"
    return json.loads(asked.stdout)


class Bar:
    """Where the memory is, as a bar in a notebook and a line elsewhere."""

    def __init__(self, figures):
        self.budget = figures["budget_bytes"]
        self.most = figures["budget_peak_bytes"]
        self.sizes = sizes(figures)

    def __repr__(self):
        parts = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in self.sizes.items())
        # Processes share it: while it is asked, `softswap stat` has some as well.
        once = f" ({self.most / 2**20:,.1f} MiB once)" if self.most > self.budget else ""
        return f"budget {self.budget / 2**20:,.1f} MiB{once}: {parts}"

    def _repr_html_(self):
        whole = sum(self.sizes.values()) or 1
        pieces = "".join(
            f'<div title="{name}" style="width:{100 * size / whole:.1f}%;'
            f'background:{COLOURS[name]};height:1.2em"></div>'
            for name, size in self.sizes.items()
        )
        return f'<div style="display:flex;max-width:40em">{pieces}</div><div>{self!r}</div>'


def sizes(figures):
    """DRAM for pages as they are and for tables, DRAM for compressed pages, and the swap files."""
    pool = figures["pool"]["used_bytes"]
    return {
        "resident": max(figures["used_bytes"] - pool, 0),
        "pool": pool,
        "disk": figures["swap_file_bytes"],
    }


def softswap(line):
    """`%softswap stats` shows where this process's memory is."""
    if line.strip() != "stats":
        print("usage: %softswap stats")
        return None
    found = figures()
    if isinstance(found, str):
        print(found)
        return None
    return Bar(found)
