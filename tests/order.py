#!/usr/bin/env python3
"""The order of rooms: in each crate named here a file uses only what is declared before it.

The order is that of the `mod` lines, from lib.rs down. A file may use its own files,
the files before it, and what holds them; never one that comes after it.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ["engine"]
TESTS = re.compile(r"(^|_)(tests|model)$")


def name_of(file, source):
    parts = list(file.relative_to(source).with_suffix("").parts)
    if parts[-1] in ("mod", "lib"):
        parts.pop()
    return tuple(parts)


def code_of(file):
    """Without comments, and without what is only built for tests."""
    text = re.sub(r"//[^\n]*", "", file.read_text())
    return re.split(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*mod \w+ \{", text)[0]


def expand(tree):
    """The paths of one `use`: `a::{b, c::{d}}` is a::b and a::c::d."""
    opening = tree.find("{")
    if opening < 0:
        return [tree.split(" as ")[0]]
    prefix, inner, depth, start, paths = tree[:opening], tree[opening + 1 : -1], 0, 0, []
    for at, char in enumerate(inner + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            paths += [prefix + path for path in expand(inner[start:at]) if path]
            start = at + 1
    return paths


def paths_of(module, is_folder, code):
    here = module if is_folder else module[:-1]
    for tree in re.findall(r"\buse\s+((?:crate|super|self)::[^;]*);", code):
        for path in expand(re.sub(r"\s+", "", tree)):
            yield absolute(path.split("::"), module, here)
    for path in re.findall(r"(?<![\w:])(crate::[a-z_:]+)", code):
        yield absolute(path.strip(":").split("::"), module, here)


def absolute(path, module, here):
    head = path.pop(0)
    base = () if head == "crate" else module
    if head == "super":
        base = module[:-1]
        while path and path[0] == "super":
            base, path = base[:-1], path[1:]
    return base + tuple(path)


def order_of(module, codes):
    for child in re.findall(r"^\s*(?:pub(?:\([a-z]+\))? )?mod (\w+);", codes[module], re.M):
        found = module + (child,)
        if found in codes and not TESTS.search(child):
            yield found
            yield from order_of(found, codes)


def main():
    faults = []
    for crate in CRATES:
        source = ROOT / "crates" / crate / "src"
        files = {name_of(file, source): file for file in sorted(source.rglob("*.rs"))}
        codes = {module: code_of(file) for module, file in files.items()}
        order = list(dict.fromkeys(order_of((), codes)))
        place = {module: at for at, module in enumerate(order)}
        missing = [m for m in codes if m and m not in place and not TESTS.search(m[-1])]
        faults += [f"{crate}: {'::'.join(m)} is declared nowhere" for m in missing]
        for module in order:
            is_folder = files[module].stem == "mod"
            for path in paths_of(module, is_folder, codes[module]):
                while path and path not in codes:
                    path = path[:-1]
                if path in place and place[path] > place[module] and path[: len(module)] != module:
                    faults.append(f"{crate}: {'::'.join(module)} uses {'::'.join(path)}, "
                                  "which comes after it")
        if len(order) < 10:
            faults.append(f"{crate}: only {len(order)} files were found")
    print("\n".join(sorted(set(faults))) or f"the order holds in: {', '.join(CRATES)}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
