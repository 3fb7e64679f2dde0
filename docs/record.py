"""Records a command on a terminal as an animated SVG, for README.md.

    python docs/record.py docs/pictures/demo.svg -- make demo
    python docs/record.py docs/pictures/demo.svg --still -- make demo     its last screen alone

The command runs on a pseudo-terminal; what it writes is played back as it came, waits shortened.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyte

COLUMNS, LINES = 88, 26
READ_S = 0.1  # what comes within it is one picture
LONGEST_S, PLAYED_S, HELD_S = 1.0, 24.0, 6.0  # a wait at most; all at most; the last picture
CHARACTER, LINE, MARGIN, BAR = 8.4, 18, 16, 28  # pixels
BACKGROUND, FOREGROUND = "#0d1117", "#e6edf3"
NBSP = "\u00a0"  # spaces would be drawn as one
COLOURS = {
    "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922", "blue": "#58a6ff",
    "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#b1bac4", "brightblack": "#6e7681", "brightred": "#ffa198",
    "brightgreen": "#56d364", "brightbrown": "#e3b341", "brightblue": "#79c0ff", "brightmagenta": "#d2a8ff",
    "brightcyan": "#56d4dd", "brightwhite": "#ffffff",
}  # fmt: skip

Style = tuple[str, bool, bool]  # colour, bold, dim
Row = tuple[tuple[str, Style], ...]


class Screen(pyte.Screen):
    """pyte's, which drops `dim` (SGR 2): it is kept as italics, which nothing here writes."""

    def select_graphic_rendition(self, *attributes: int, **more: bool) -> None:
        known = [{2: 3, 22: 23}.get(attribute, attribute) for attribute in attributes]
        super().select_graphic_rendition(*known, *([22] if 22 in attributes else []), **more)


@dataclass(frozen=True, slots=True)
class Picture:
    """What stands on the screen from a time on."""

    at: float
    rows: tuple[Row, ...]


def recorded(command: list[str]) -> list[Picture]:
    """Run a command, and return what it showed."""
    screen = Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    process, terminal = pty.fork()
    if process == 0:
        environment = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execvpe(command[0], command, os.environ | environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    pictures: list[Picture] = []
    began = time.monotonic()
    for written in _written(terminal):
        stream.feed(written)
        rows = tuple(_row(screen, line) for line in range(LINES))
        if not pictures or pictures[-1].rows != rows:
            pictures.append(Picture(time.monotonic() - began, rows))
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return pictures


def _written(terminal: int) -> Iterator[bytes]:
    """What the command writes, in pieces of `READ_S`; to its end."""
    while True:
        piece, until = b"", time.monotonic() + READ_S
        while (left := until - time.monotonic()) > 0:
            if not select.select([terminal], [], [], left)[0]:
                break
            try:
                read = os.read(terminal, 1 << 16)
            except OSError:  # Linux's way to say that nobody has the other end any more
                read = b""
            if not read:
                if piece:
                    yield piece
                return
            piece += read
        if piece:
            yield piece


def _row(screen: pyte.Screen, line: int) -> Row:
    """Runs of characters of one style, without blanks at the end."""
    cells = [screen.buffer[line][column] for column in range(COLUMNS)]
    styled = [(cell.data, (str(cell.fg), bool(cell.bold), bool(cell.italics))) for cell in cells]
    while styled and styled[-1][0] == " ":
        styled.pop()
    return tuple(
        ("".join(text for text, _ in run), style) for style, run in groupby(styled, key=lambda one: one[1])
    )


def played(pictures: list[Picture]) -> list[Picture]:
    """The same with waits shortened, from 0 on; then everything faster, if it still takes long."""
    at, before, times = 0.0, pictures[0].at, []
    for picture in pictures:
        at += min(LONGEST_S, picture.at - before)
        before = picture.at
        times.append(at)
    faster = max(1.0, at / PLAYED_S)
    return [Picture(at / faster, picture.rows) for at, picture in zip(times, pictures, strict=True)]


def drawn(pictures: list[Picture], title: str) -> str:
    """An SVG of them all. A row that stays as it is for several pictures is drawn once."""
    whole = pictures[-1].at + HELD_S
    used = max((line for picture in pictures for line, row in enumerate(picture.rows) if row), default=0) + 1
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, used * LINE + 2 * MARGIN + BAR
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        *(
            f'<circle cx="{20 + 18 * place}" cy="18" r="5.5" fill="{colour}"/>'
            for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        f'<text x="{width / 2:g}" y="22" fill="#8b949e" text-anchor="middle" font-size="13" '
        f'font-family="ui-sans-serif, sans-serif">{html.escape(title)}</text>',
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" fill="{FOREGROUND}" '
        'xml:space="preserve">',
    ]
    for line in range(used):
        shown = [(picture.at, picture.rows[line]) for picture in pictures]
        spans = [(row, [at for at, _ in same]) for row, same in groupby(shown, key=lambda one: one[1])]
        ends = [times[0] for _, times in spans[1:]] + [whole]
        for (row, times), end in zip(spans, ends, strict=True):
            if row:
                parts.append(_text(row, MARGIN + BAR + (line + 0.75) * LINE, times[0], end, whole))
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _text(row: Row, y: float, start: float, end: float, whole: float) -> str:
    runs, column = [], 0
    for text, (colour, is_bold, is_dim) in row:
        place = f'x="{MARGIN + column * CHARACTER:g}" textLength="{len(text) * CHARACTER:g}"'
        fill = f' fill="{COLOURS.get(colour, colour)}"' if colour != "default" else ""
        weight, opacity = ' font-weight="600"' if is_bold else "", ' opacity="0.6"' if is_dim else ""
        if text.strip():
            runs.append(
                f"<tspan {place}{fill}{weight}{opacity}>{html.escape(text).replace(' ', NBSP)}</tspan>"
            )
        column += len(text)
    times = [(0.0, "visible" if start <= 0.0 else "hidden"), (start, "visible"), (end, "hidden")]
    times = [(at, what) for at, what in times if at < whole]
    times = times[1:] if len(times) > 1 and times[1][0] <= 0.0 else times
    values, keys = ";".join(what for _, what in times), ";".join(f"{at / whole:.4f}" for at, _ in times)
    animated = (
        f'<animate attributeName="visibility" values="{values}" keyTimes="{keys}" calcMode="discrete" '
        f'dur="{whole:.1f}s" repeatCount="indefinite"/>'
    )
    first = (
        ' visibility="hidden"' if end < whole else ""
    )  # what stands still where nothing moves is the last picture
    return f'<text y="{y:g}"{first}>{"".join(runs)}{animated if len(times) > 1 else ""}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path)
    parser.add_argument("--still", action="store_true", help="draw the last screen alone")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    pictures = played(recorded(options.command))
    if options.still:
        pictures = [Picture(0.0, pictures[-1].rows)]
    options.picture.write_text(drawn(pictures, f"$ {' '.join(options.command)}"))


if __name__ == "__main__":
    main()
