#!/usr/bin/env python3
"""The order of modules: in every crate a file uses only what is declared before it.

The order is that of the `mod` lines, from lib.rs (or main.rs) down. A file may use:

- the files before it, and the files in their folders;
- its own files, those in the folder of its mod.rs (for lib.rs: all files);
- a mod.rs or lib.rs above it, unless that uses it, directly or indirectly: a parent
  and a child that use each other are a cycle.

`mod child;` and `pub use child::Name;` in a parent are declarations, not uses. A path
through such a name counts as a use of the file to which it resolves. A parent whose own
code names an item that it re-exports uses that item.

Code that is only built for tests or for loom does not count. Only paths are checked:
the name of a method does not show the file that defines it.
"""
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TESTS = re.compile(r"(^|_)(tests|model)$")
# Comments, strings and characters (but not lifetimes), which are removed.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\br(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\[^']+|[^'\\\n]|\\')'""", re.S
)
# Attribute of items that are built only for tests or loom.
UNBUILT = re.compile(r"""#\[cfg\((?:all\((?:[\w= ]+,\s*)*)?(?:test\b|feature = "loom")[^\]]*\]""")
ITEM = re.compile(
    r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)"
)
MOD_LINE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod (\w+);", re.M)
MOD_BODY = re.compile(r"\b(?:pub(?:\([^)]*\))?\s+)?mod (\w+)\s*\{")
USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]*);")
PATH = re.compile(r"(?<![\w:.'])([a-z_]\w*(?:::\w+)+)")


@dataclass
class Module:
    """One module: a file, or a `mod name { … }` in one."""

    name: tuple
    code: str
    # The file that contains the module, by name.
    file: tuple
    # Local names introduced by `use`, with their paths.
    names: dict = field(default_factory=dict)
    # Paths of `use path::*`.
    globs: list = field(default_factory=list)
    # Paths of `use` lines that are not re-exports.
    used: list = field(default_factory=list)
    items: set = field(default_factory=set)
    children: list = field(default_factory=list)


def end_of(code, start):
    """Returns the end of the item that begins at `start`: after its `;` or its braces."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] in "{([") - (code[at] in "})]")
        if depth == 0 and code[at] in ";}":
            return at + 1
        if depth < 0 or depth == 0 and code[at] == ",":
            return at
    return len(code)


def code_of(text):
    """Removes comments, strings and code that is not built for a program."""
    code = NO_CODE.sub(
        lambda found: found[0] if found[0] == '"loom"' else '""' if found[0][0] in "\"'r" else " ",
        text,
    )
    while found := UNBUILT.search(code):
        code = code[: found.start()] + code[end_of(code, found.end()) :]
    return code


def expand(tree):
    """Yields the paths of one `use` and their names: `a::{b, c as d}` is a::b, a::c called d."""
    tree = tree.strip()
    opening = tree.find("{")
    if opening < 0:
        path, _, name = re.sub(r"\s+", " ", tree).partition(" as ")
        path = path.replace(" ", "").split("::")
        if path[-1] == "self":
            path.pop()
        return [(path, name or path[-1])] if path and path[0] else []
    prefix, depth, start, paths = tree[:opening], 0, 0, []
    inner = tree[opening + 1 : tree.rindex("}")]
    for at, char in enumerate(inner + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part := inner[start:at].strip():
                paths += expand(prefix + part)
            start = at + 1
    return paths


def read_crate(source):
    """Returns all modules of a crate by name."""
    root = source / "lib.rs" if (source / "lib.rs").exists() else source / "main.rs"
    modules = {}
    for path in sorted(source.rglob("*.rs")):
        name = path.relative_to(source).with_suffix("").parts
        if path == root or name[-1] == "mod":
            name = name[:-1]
        elif name == ("main",) or name[0] == "bin":
            continue
        if not (name and TESTS.search(name[-1])):
            add_module(modules, name, code_of(path.read_text()), name)
    for module in modules.values():
        read_uses(modules, module)
    return modules


def add_module(modules, name, code, file):
    module = modules[name] = Module(name, code, file)
    while found := MOD_BODY.search(module.code):
        end = end_of(module.code, found.start())
        add_module(modules, name + (found[1],), module.code[found.end() : end - 1], file)
        module.code = module.code[: found.start()] + module.code[end:]
        module.names[found[1]] = name + (found[1],)
    module.children = [name + (child,) for child in MOD_LINE.findall(module.code)]
    module.items = set(ITEM.findall(module.code))


def read_uses(modules, module):
    module.names |= {child[-1]: child for child in module.children}
    own = dict(module.names)
    for exported, tree in USE.findall(module.code):
        for path, name in expand(tree):
            glob = path[-1] == "*"
            found = absolute(path[:-1] if glob else path, module, own)
            if found is None:
                continue
            if glob:
                module.globs.append(found)
            elif name != "_":
                module.names[name] = found
            if not (exported and found[: len(module.name)] == module.name):
                module.used.append(found)


def absolute(path, module, names):
    """Resolves a path from the crate's root; None for a path of another crate."""
    head, *rest = path
    if head in ("crate", "$crate"):
        return tuple(rest)
    if head == "self":
        return module.name + tuple(rest)
    if head == "super":
        base = module.name[:-1]
        while rest and rest[0] == "super":
            base, rest = base[:-1], rest[1:]
        return base + tuple(rest)
    return names[head] + tuple(rest) if head in names else None


def resolve(modules, path, depth=0):
    """Returns the module that declares the item of a path."""
    at = path
    while at not in modules:
        at = at[:-1]
    module, rest = modules[at], path[len(at) :]
    if not rest or depth > 20 or rest[0] in module.items:
        return module
    target = module.names.get(rest[0])
    if target is not None and target != path:
        return resolve(modules, target + rest[1:], depth + 1)
    for glob in module.globs:
        opened = resolve(modules, glob, depth + 1)
        if opened is not module and (rest[0] in opened.items or rest[0] in opened.names):
            return resolve(modules, opened.name + rest, depth + 1)
    return module


def uses_of(modules, module):
    """Returns the files that a module uses, by name."""
    paths = list(module.used)
    body = USE.sub(" ", module.code).replace("$crate", "crate")
    for path in PATH.findall(body):
        if (found := absolute(path.split("::"), module, module.names)) is not None:
            paths.append(found)
    for name, target in module.names.items():
        is_child_module = target in modules
        if not is_child_module and re.search(rf"(?<![\w.:'])(?<!fn ){name}\b(?!\s*:[^:])", body):
            paths.append(target)
    return {resolve(modules, path).file for path in paths} - {module.file}


def graph_of(modules):
    graph = {}
    for module in modules.values():
        graph.setdefault(module.file, set()).update(uses_of(modules, module))
    return graph


def order_of(modules, name=()):
    """Returns all files in the order of declaration."""
    yield name
    for child in modules[name].children:
        if child in modules:
            yield from order_of(modules, child)


def is_within(name, parent):
    return name[: len(parent)] == parent


def components(graph):
    """Returns the sets of files of which each reaches each other (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(set(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [part for part in found if len(part) > 1]


def shortest_cycle(graph, part):
    """Returns a shortest path from a file of this set back to itself."""
    best = None
    for start in sorted(part):
        ways, seen = [[start]], set()
        while ways:
            way = ways.pop(0)
            if start in graph[way[-1]]:
                if best is None or len(way) < len(best):
                    best = way
                break
            for other in sorted((graph[way[-1]] & part) - seen):
                seen.add(other)
                ways.append(way + [other])
    return best + best[:1]


def shown(name):
    return "::".join(name) or "lib.rs"


def cycles_of(graph):
    """Returns one line for each set of files that use each other in a cycle."""
    for part in components(graph):
        way = shortest_cycle(graph, part)
        others = sorted(part - set(way))
        rest = f" ({len(part)} files, with {', '.join(map(shown, others))})" if others else ""
        yield f"cycle: {' -> '.join(map(shown, way))}{rest}"


def faults_of(source):
    """Returns the errors in one crate, a line for each."""
    if not any((source / root).exists() for root in ("lib.rs", "main.rs")):
        return ["there is neither lib.rs nor main.rs"]
    modules = read_crate(source)
    order = list(dict.fromkeys(order_of(modules)))
    place = {name: at for at, name in enumerate(order)}
    faults = [
        f"{shown(name)} is declared nowhere"
        for name in {module.file for module in modules.values()} - set(place)
    ]
    graph = {}
    for name, uses in graph_of(modules).items():
        graph[name] = uses & set(place)
        faults += [
            f"{shown(name)} uses {shown(other)}, which comes after it"
            for other in graph[name]
            if place.get(name, 0) < place[other] and not is_within(other, name)
        ]
    return sorted(faults) + list(cycles_of(graph))


def main():
    failed = False
    sources = sorted(ROOT.glob("crates/*/src"))
    for source in sources:
        crate = source.parent.name
        faults = faults_of(source)
        failed |= bool(faults)
        for fault in faults or ["in order"]:
            print(f"{crate}: {fault}")
    return failed or not sources


if __name__ == "__main__":
    sys.exit(main())
