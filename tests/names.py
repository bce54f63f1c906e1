#!/usr/bin/env python3
"""Names in the documents exist: for each `a::b` in ARCHITECTURE.md and CONTRIBUTING.md there is a
file, folder or type `a` with an item `b` in the crates, and each file path exists."""
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from order import ITEM, ROOT

DOCUMENTS = ["ARCHITECTURE.md", "CONTRIBUTING.md"]
VARIANT = re.compile(r"^\s+([A-Z]\w*)(?:\s*[{(,]|$)", re.M)
FIELD = re.compile(r"^\s+(?:pub(?:\([^)]*\))?\s+)?(\w+): ", re.M)
EXTENDED = re.compile(r"^impl(?:<[^>]*>)?\s+(?:[^{]*\bfor\s+)?(?:\w+::)*(\w+)", re.M)
PATH = re.compile(r"`((?:\w+::)+\w+)[`(]")
FILE = re.compile(r"`((?:crates|tests|docs|fuzz|examples)/[\w./-]+)`")


def read_files():
    """Returns for each file its modules and types, and the names in them."""
    for file in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        crate, _, *modules = file.relative_to(ROOT / "crates").with_suffix("").parts
        text = file.read_text()
        modules = {crate, *modules} - {"mod", "lib"}
        items = set(ITEM.findall(text))
        names = modules | items | set(VARIANT.findall(text)) | set(FIELD.findall(text))
        yield modules | items | set(EXTENDED.findall(text)), names


def main():
    files, wrong = list(read_files()), []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for path in PATH.findall(text):
            parts = path.split("::")
            wrong += [f"{document}: `{path}`: in {holder} there is no {name}"
                      for holder, name in zip(parts, parts[1:])
                      if not any(holder in held and name in names for held, names in files)]
        wrong += [f"{document}: `{path}` does not exist"
                  for path in FILE.findall(text) if not (ROOT / path).exists()]
    print("\n".join(sorted(set(wrong))) or "every name in the documents exists")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
