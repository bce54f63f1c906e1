"""`%softswap stats` and `%softswap set`, for a notebook under `softswap run`."""
import json
import os
import subprocess
import sys

from ._command import command

COLOURS = {"resident": "#4c78a8", "pool": "#f58518", "disk": "#b0b0b0"}
MEANINGS = {"resident": "in DRAM", "pool": "compressed in DRAM", "disk": "in swap slots"}
USAGE = """usage: %softswap stats             where this process's memory is
       %softswap set memory 700M   another budget; `softswap ctl --help` lists all settings"""


def run(*arguments):
    """Returns the output of a `softswap` command, or its error message, and true if it
    succeeded."""
    finished = subprocess.run([command(), *arguments], capture_output=True, text=True)
    if finished.returncode == 0:
        print(finished.stderr, end="", file=sys.stderr)
        return finished.stdout.strip(), True
    failed = f"softswap {arguments[0]} failed with status {finished.returncode}"
    return finished.stderr.strip() or failed, False


def supervisor():
    """Returns the PID of the `softswap run` above this process, which has the budget; without
    one, its own PID."""
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            break
        if name == "softswap":
            return pid
        pid = int(rest.split()[1])
    return os.getpid()


class Bar:
    """The distribution of the memory, as a bar in a notebook and a line elsewhere."""

    def __init__(self, figures):
        self.budget = figures["budget_bytes"]
        self.budget_peak = figures["budget_peak_bytes"]
        self.sizes = sizes(figures)

    def _budget(self):
        # Processes share the budget, and `softswap stat` itself uses some of it during the query.
        peak = ""
        if self.budget_peak > self.budget:
            peak = f" (peak {self.budget_peak / 2**20:,.1f} MiB)"
        return f"budget {self.budget / 2**20:,.1f} MiB{peak}"

    def __repr__(self):
        parts = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in self.sizes.items())
        return f"{self._budget()}: {parts}"

    def _repr_html_(self):
        whole = sum(self.sizes.values()) or 1
        pieces = "".join(
            f'<div title="{name}" style="width:{100 * size / whole:.1f}%;'
            f'background:{COLOURS[name]};height:1.2em"></div>'
            for name, size in self.sizes.items()
        )
        legend = "".join(
            f'<span style="margin-right:1.2em"><span style="display:inline-block;width:.8em;'
            f'height:.8em;background:{COLOURS[name]}"></span> {name} ({MEANINGS[name]}) '
            f"{size / 2**20:,.1f} MiB</span>"
            for name, size in self.sizes.items()
        )
        return (
            f'<div style="display:flex;max-width:40em">{pieces}</div>'
            f"<div>{legend}</div><div>{self._budget()}</div>"
        )


def sizes(figures):
    """Returns DRAM for pages and tables, DRAM for compressed pages, and swap slots in use."""
    pool = figures["pool"]["used_bytes"]
    return {
        "resident": max(figures["used_bytes"] - pool, 0),
        "pool": pool,
        "disk": figures["disk_bytes"],
    }


def softswap(line):
    """`%softswap stats` shows the memory of this process, `%softswap set` changes a setting."""
    words = line.replace("=", " ").split()
    if words == ["stats"]:
        answer, succeeded = run("stat", "--json", str(os.getpid()))
        if succeeded:
            return Bar(json.loads(answer))
        print(answer)
    elif words[:1] == ["set"] and len(words) == 3:
        print(run("ctl", str(supervisor()), *words)[0])
    else:
        print(USAGE)
    return None
