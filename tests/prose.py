#!/usr/bin/env python3
"""Comments and documents are in plain English: finds phrases of which a reader has to guess the
actor or the meaning. A file may have 5 in 1,000 lines of prose, and one in any case.
"""
import re
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from order import ROOT

SUFFIXES = {".rs", ".md", ".py", ".sh", ".c", ".h"}
HISTORY = ("docs/experiments/", "CHANGELOG.md")
MOST_PER_1000 = 5
PHRASES = re.compile(
    "|".join(
        [
            # A clause without an actor as the subject.
            r"(?:^|[.:;!?] +)(?:Who(?:ever|se)?|What(?:ever)?|Others) (?!if\b)[a-z]",
            r"^Whether ",
            r"\b(?:nobody|somebody|whoever|whatever)\b",
            r"\b[Ss]o (?:many|much|long)\b(?! as| that)",
            # Verbs of persons and places for data.
            r"\b(?:lies?|lay|lying)\b",
            r"\b(?:is|are|was|were|be) told\b|\btells?\b",
            r"\b(?:go|goes|went) on\b",
            r"\b(?:is|are) to (?:be|go|stay|leave|have|come)\b",
            r"\blets? go\b|\bgive(?:n|s)? up\b",
            r"\b[Bb]eside\b|\bin the midst\b|\bfor good\b|\bin vain\b|\bof (?:ours|theirs)\b",
        ]
    )
)


def prose(path, text):
    """Yields the number and text of each line of prose: of documents, or in comments."""
    if path.suffix == ".md":
        text = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=re.S | re.M)
        pattern = r"(.*)"
    else:
        pattern = r"\s*//[/!]?\s?(.*)" if path.suffix in {".rs", ".c", ".h"} else r"\s*#\s?(.*)"
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(pattern, re.sub(r"`[^`]*`", "``", line))
        if found and found[1].strip():
            yield number, found[1].strip()


def main():
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed if not name.startswith(HISTORY)]
    wrong, total = [], 0
    for path in paths:
        if path.suffix not in SUFFIXES and path.name != "Makefile" or path == Path(__file__).resolve():
            continue
        if not path.exists():
            continue
        lines = list(prose(path, path.read_text(errors="replace")))
        total += len(lines)
        found = [(number, hit[0]) for number, line in lines if (hit := PHRASES.search(line))]
        if len(found) > max(1, MOST_PER_1000 * len(lines) // 1000):
            wrong += [f"{path.relative_to(ROOT)}:{number}: \"{phrase}\"" for number, phrase in found]
    print("\n".join(wrong) or f"{total} lines of prose are plain")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
