#!/usr/bin/env bash
# Makes the screens of the documents anew, from real runs on an idle machine: the summary, `softswap
# top` in tmux, and the page of a report and `%softswap stats` of a notebook in Chromium. Needs both,
# python3 in which the wheel is installed, and softswap (SOFTSWAP_BIN_DIR, or on PATH).
set -euo pipefail
pictures=$(cd "$(dirname "$0")" && pwd)
softswap=${SOFTSWAP_BIN_DIR:+$SOFTSWAP_BIN_DIR/}softswap
work=$(mktemp -d)
socket=$work/tmux
trap 'tmux -S "$socket" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT

cat >"$work/analysis.py" <<'PROGRAM'
import random, sys, time
random.seed(1)
table = {n: str(n) * 20 for n in range(1_500_000)}
end = time.time() + float(sys.argv[1])
total = 0
while time.time() < end:
    total += len(table[int(random.paretovariate(0.5)) % 1_500_000])
print(total)
PROGRAM

export SOFTSWAP_SWAP=${SOFTSWAP_SWAP:-/var/tmp}
cd "$work"
"$pictures/summary.py" "$softswap"
"$softswap" run -q --memory 160M --report page.html -- python3 analysis.py 15 >/dev/null
screenshot() {
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size="$2" \
        --screenshot="$work/$1.png" "file://$work/$1.html" 2>/dev/null
    cp "$1.png" "$pictures/"
}
screenshot page 960,1320

"$softswap" run -q --memory 160M -- python3 - >notebook.html <<'PROGRAM'
from softswap import _magic
table = {n: str(n) * 20 for n in range(1_500_000)}
print("<meta charset=utf-8><body style='font-family:sans-serif'><pre>%softswap stats</pre>")
print(_magic.softswap("stats")._repr_html_())
PROGRAM
screenshot notebook 880,110

"$softswap" run -q --memory 160M -- python3 analysis.py 100 >/dev/null &
program=$!
tmux -u -f /dev/null -S "$socket" new-session -d -x 100 -y 24 "env -u NO_COLOR LANG=C.UTF-8 TERM=screen-256color $softswap top $program"
sleep 45
tmux -S "$socket" capture-pane -p -e >top.ansi
kill "$program"
wait "$program" || true
python3 - top.ansi >"$pictures/top.svg" <<'PROGRAM'
import re, sys
from html import escape
COLORS = {31: "#c0392b", 32: "#2e9e5b", 34: "#4a78d0", 35: "#b05fb8", 36: "#1f9fa8"}
lines = open(sys.argv[1], encoding="utf-8").read().rstrip("\n").split("\n")
wide, high = 8.4, 18
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {100 * wide + 20:.0f} {len(lines) * high + 20}" '
      f'font-family="ui-monospace,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="14">')
print('<rect width="100%" height="100%" rx="8" fill="#1b1e24"/>')
for row, line in enumerate(lines):
    column, color, bold, reverse = 0, "#d7dae0", False, False
    for part in re.split(r"(\x1b\[[\d;]*m)", line):
        if found := re.fullmatch(r"\x1b\[([\d;]*)m", part):
            codes = found[1] or "0"
            if basic := re.fullmatch(r"38;5;(\d)", codes):
                codes = f"3{basic[1]}"
            for code in map(int, codes.split(";")):
                if code == 0: color, bold, reverse = "#d7dae0", False, False
                elif code == 1: bold = True
                elif code == 7: reverse = True
                elif code == 27: reverse = False
                elif code == 39: color = "#d7dae0"
                elif code in COLORS: color = COLORS[code]
        elif part:
            x, y = 10 + column * wide, 10 + row * high
            width = len(part) * wide
            if reverse:
                print(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{high}" fill="{color}"/>')
            if part.strip():
                fill = "#1b1e24" if reverse else color
                weight = ' font-weight="bold"' if bold else ""
                print(f'<text x="{x:.1f}" y="{y + 14}" fill="{fill}"{weight} xml:space="preserve" '
                      f'textLength="{width:.1f}">{escape(part)}</text>')
            column += len(part)
print("</svg>")
PROGRAM
