#!/usr/bin/env python3
"""What the documents name exists: each `a::b` in ARCHITECTURE.md and CONTRIBUTING.md is an
item, a field or a file in the crates, and each path of a file is there."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["ARCHITECTURE.md", "CONTRIBUTING.md"]
ITEM = re.compile(
    r"\b(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!)\s+(?:mut\s+)?(\w+)"
)
VARIANT = re.compile(r"^\s+([A-Z]\w*)(?:\s*[{(,]|$)", re.M)
FIELD = re.compile(r"^\s+(?:pub(?:\([^)]*\))?\s+)?(\w+): ", re.M)
PATH = re.compile(r"`((?:\w+::)+\w+)[`(]")
FILE = re.compile(r"`((?:crates|tests|docs|fuzz|examples)/[\w./-]+)`")


def names():
    found = set()
    for file in (ROOT / "crates").rglob("*.rs"):
        text = file.read_text()
        found |= {file.stem, file.parent.name} | set(ITEM.findall(text))
        found |= set(VARIANT.findall(text))
        found |= set(FIELD.findall(text))
    return found | {"sys", "engine", "runtime", "cli", "bench"}


def main():
    known, wrong = names(), []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for path in PATH.findall(text):
            wrong += [f"{document}: `{path}`: there is no {part}"
                      for part in path.split("::") if part not in known]
        wrong += [f"{document}: `{path}` is not there"
                  for path in FILE.findall(text) if not (ROOT / path).exists()]
    print("\n".join(sorted(set(wrong))) or "what the documents name is there")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
