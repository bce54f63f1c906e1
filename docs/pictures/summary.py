#!/usr/bin/env python3
"""Replaces the summary in README.md and docs/start.md by that of a run of the program there. Takes
the path of softswap. The machine must be idle, since the summary contains times."""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCUMENTS = Path(__file__).resolve().parent.parent
PROGRAM = re.compile(r"^```python table\.py\n(.*?)^```", re.M | re.S)
SUMMARY = re.compile(r"^\d+\nsoftswap: python3 finished in .*\n  budget .*\n  peaks .*\n", re.M)


def main(softswap):
    files = [DOCUMENTS.parent / "README.md", DOCUMENTS / "start.md"]
    program = PROGRAM.search(files[1].read_text())[1]
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "table.py").write_text(program)
        command = [softswap, "run", "--memory", "256M", "--", "python3", "table.py"]
        ended = subprocess.run(command, cwd=work, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    if ended.returncode or not SUMMARY.fullmatch(ended.stdout):
        sys.exit(f"the run printed something else than its answer and a summary:\n{ended.stdout}")
    for file in files:
        text = file.read_text()
        (old,) = SUMMARY.findall(text)
        file.write_text(text.replace(old, ended.stdout))
    print(f"{old}is now\n{ended.stdout}Correct the figures in the text of README.md, docs/start.md "
          "and docs/budget.md, too.")


if __name__ == "__main__":
    main(Path(shutil.which(sys.argv[1])).resolve(strict=True))
