#!/usr/bin/env python3
"""Writes the licence texts of the crates and C libraries that are linked into the installed
files: nearly all licences require that. Fails if one has no text."""
import json
import subprocess
import sys
from pathlib import Path

INSTALLED = {"softswap-cli", "softswap-bench", "softswap-remote", "softswap-runtime",
             "softswap-capi", "softswap-python"}
TEXTS = ("LICENSE*", "LICENCE*", "COPYRIGHT*", "NOTICE*", "UNLICENSE*")
# Files that come with a C library and are not part of it.
NOT_LINKED = {"contrib", "examples", "programs", "tests"}


def linked(metadata):
    """Returns the external crates whose code is in the installed files."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    left = [key for key, package in packages.items() if package["name"] in INSTALLED]
    seen = set()
    while left:
        key = left.pop()
        kinds = {kind for target in packages[key]["targets"] for kind in target["kind"]}
        if key in seen or "proc-macro" in kinds:
            continue
        seen.add(key)
        left += [dependency["pkg"] for dependency in nodes[key]
                 if any(kind["kind"] is None for kind in dependency["dep_kinds"])]
    return sorted((packages[key] for key in seen if packages[key]["source"]),
                  key=lambda package: package["name"])


def texts(package):
    """Returns the licence texts in a package's source."""
    source = Path(package["manifest_path"]).parent
    found = sorted({path for name in TEXTS for path in source.rglob(name)})
    return [path.read_text(errors="replace").strip() for path in found
            if path.is_file() and not NOT_LINKED & set(path.relative_to(source).parts)]


metadata = json.loads(subprocess.check_output(
    ["cargo", "metadata", "--locked", "--format-version", "1",
     "--filter-platform", "x86_64-unknown-linux-gnu"]))
whose = {}
for package in linked(metadata):
    name = f"{package['name']} {package['version']} ({package['license']})"
    of_it = texts(package)
    if not of_it:
        sys.exit(f"{name} comes without the text of its licence")
    for text in dict.fromkeys(of_it):
        whose.setdefault(text, []).append(name)
print("softswap is linked with the following crates and C libraries.",
      "Each licence comes after the names of those that are under it.")
for text, names in whose.items():
    print("\n" + "=" * 80, *names, "-" * 80, text, sep="\n")
