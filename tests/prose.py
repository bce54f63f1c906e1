#!/usr/bin/env python3
"""Comments, documents, and the messages and test texts of Rust code are in plain English: finds
phrases of which a reader has to guess the actor or the meaning. A file may have 5 in 1,000 lines of
prose, and one in any case. The same limit holds for its texts. `--all` prints every phrase.
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

# A text of a test is read alone, so it must name its subject.
TEST_TEXTS = re.compile(PHRASES.pattern + r"|^(?:[Ii]t|[Tt]hey|[Ww]ho|[Ww]hat|[Ss]omething) [a-z]+ ")
TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.[^'\n]*)'"
    r"|\bb?c?r(?P<hashes>#*)\".*?\"(?P=hashes)|[bc]?\"(?P<text>(?:[^\"\\]|\\.)*)\"",
    re.S,
)
NOT_TEXT = re.compile(r"\\\n\s*|`[^`]*`|\{[^}]*\}|\S*/\S*")
WORDS = re.compile(r"[A-Za-z]{2,}")


def texts(path, source):
    """Yields the line number and content of each string literal of at least three words, and the
    pattern for it. Raw literals are programs and data.
    """
    is_test_file = "tests" in path.parts or path.stem.endswith("tests") or path.stem == "model"
    tests_begin = 0 if is_test_file else source.find("#[cfg(test)]\nmod ")
    for token in TOKENS.finditer(source):
        plain = re.sub(r"\\.", " ", NOT_TEXT.sub("", token["text"] or ""))
        if len(WORDS.findall(plain)) >= 3:
            is_test = 0 <= tests_begin <= token.start()
            number = source.count("\n", 0, token.start()) + 1
            yield number, plain, TEST_TEXTS if is_test else PHRASES


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
        source = path.read_text(errors="replace")
        lines = [(number, line, PHRASES) for number, line in prose(path, source)]
        literals = list(texts(path, source)) if path.suffix == ".rs" else []
        total += len(lines) + len(literals)
        for kind in (lines, literals):
            found = [(number, hit[0]) for number, line, phrases in kind if (hit := phrases.search(line))]
            limit = 0 if "--all" in sys.argv else max(1, MOST_PER_1000 * len(kind) // 1000)
            if len(found) > limit:
                name = path.relative_to(ROOT)
                wrong += [f'{name}:{number}: "{phrase}"' for number, phrase in found]
    print("\n".join(wrong) or f"{total} lines and texts are plain")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
