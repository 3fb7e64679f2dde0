"""Writes the table of algorithms and codecs into docs/measurements.md, from what tests/simulation/test_matrix.py left.

python -m pytest -m grids tests/simulation/test_matrix.py && python docs/make_matrix.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
OUTCOME = DOCS.parent / "out" / "matrix.json"
BEGIN, END = "<!-- matrix: made by docs/make_matrix.py -->\n", "<!-- end of matrix -->"


def table(cells: list[dict[str, Any]]) -> str:
    """A row for each algorithm, alone and with an overlay, a column for each codec; one cell for all shards."""
    codecs = list(dict.fromkeys(cell["codec"] for cell in cells))
    lines = ["| | " + " | ".join(f"`{codec}`" for codec in codecs) + " |", "|---" * (len(codecs) + 1) + "|"]
    for algorithm, overlay in dict.fromkeys((cell["algorithm"], cell["overlay"]) for cell in cells):
        mine = [cell for cell in cells if (cell["algorithm"], cell["overlay"]) == (algorithm, overlay)]
        row = []
        for codec in codecs:
            here = (cell for cell in mine if cell["codec"] == codec)
            row.append("; ".join(sorted({": ".join(filter(None, (c["result"], c["reason"]))) for c in here})))
        if len(set(row)) == 1 and row[0].startswith("refused"):
            row = [row[0], *("" for _ in row[1:])]
        name = f"{algorithm}, overlay `{overlay}`" if overlay else algorithm
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    if not OUTCOME.exists():
        print(f"make_matrix: no {OUTCOME.name}: run `make grids` first", file=sys.stderr)
        return 1
    cells = json.loads(OUTCOME.read_text(encoding="utf-8"))["cells"]
    page = DOCS / "measurements.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(cells)}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
