#!/usr/bin/env python3
"""Checks that all places have the same version: the workspace, the dependencies between its
crates, the newest numbered section of CHANGELOG.md, and the Debian package."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEBIAN = "packaging/debian/changelog"
SYMBOLS = "crates/capi/softswap_c.map"


def found(pattern, file):
    return re.findall(pattern, (ROOT / file).read_text(), re.M)


def main():
    (version,) = found(r'^version = "(.+)"$', "Cargo.toml")
    said = {
        "CHANGELOG.md": found(r"^## \[(\d[^]]*)\]", "CHANGELOG.md")[0],
        DEBIAN: found(r"^softswap \(([^)]+)\)", DEBIAN)[0],
    }
    for name, asked in found(r'^(softswap[\w-]*) = \{ path = .*version = "(.+?)"', "Cargo.toml"):
        said[f"Cargo.toml: {name}"] = asked
    for manifest in [*ROOT.glob("crates/*/Cargo.toml"), ROOT / "fuzz/Cargo.toml"]:
        own = found(r"^version(?:\.workspace)? = (.+)$", manifest)[0]
        said[manifest.relative_to(ROOT)] = version if own == "true" else own.strip('"')
    (newest,) = found(r"^SOFTSWAP_([\d.]+) \{", SYMBOLS)[-1:]
    if newest.split(".") != version.split(".")[:2]:
        said[SYMBOLS] = newest
    wrong = [f"{place} has {other}, the workspace {version}"
             for place, other in said.items() if other != version]
    print("\n".join(wrong) or f"all say {version}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
