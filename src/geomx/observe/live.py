"""What a user sees of a run: the nodes' output, how far each party is, and who is lost and back.

On a terminal a table stands below the output and is kept up to date; elsewhere there are plain lines, now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from geomx.config import Run
from geomx.observe.datagrams import UNKNOWN
from geomx.observe.members import Change
from geomx.observe.progress import Loading, PartyProgress, RunProgress
from geomx.observe.records import Record
from geomx.observe.sentences import counted

REDRAW_S = 0.25
PLAIN_S = 5.0
COLOURS = (
    "cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green",
    "bright_yellow", "bright_blue",
)  # fmt: skip
TRAINING = ("round", "loss", "samples/s")
LOADING = ("first weights", "", "MB", "left")
WAN = ("↑ Mbit/s", "↓ Mbit/s")
DATAGRAMS = ("↑ again", "↑ lost")
BAR_WIDTH = 20


class RunView(Protocol):
    """One way to show a run; a context in which it may draw."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def line(self, node: str, text: str, is_error: bool) -> None:
        """Show a line that a node wrote; `is_error`: to its stderr."""

    def say(self, text: str) -> None:
        """Show what geomx itself has to say."""

    def show(self, records: Iterable[Record], now: float) -> None:
        """Show where the run stands, if it is time to. `now`: on the records' clock, in seconds."""


def view_of(run: Run, console: Console, plain: bool) -> RunView:
    """The view that fits where `console` writes to."""
    return PlainView(run) if plain or not console.is_terminal else LiveView(run, console)


class LiveView:
    """A table below the nodes' output, for terminals."""

    def __init__(self, run: Run, console: Console) -> None:
        self._progress = RunProgress(run)
        self._title = title(run)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._prefixes = prefixes(run)
        self._spinner = Spinner("dots", style="cyan")
        self._started = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def line(self, node: str, text: str, is_error: bool) -> None:
        whole = Text.assemble(self._prefixes[node], " │ " if not is_error else " ┃ ", Text.from_ansi(text))
        self._console.print(whole, soft_wrap=True)

    def say(self, text: str) -> None:
        self._console.print(Text(f"geomx: {text}", style="bold"), soft_wrap=True)

    def show(self, records: Iterable[Record], now: float) -> None:
        for change in self._progress.take_all(records):
            style = "green" if change.kind == "back" else "yellow"
            self._console.print(Text(change_line(change, self._started), style=style), soft_wrap=True)
        if now - self._drawn >= REDRAW_S:
            self._drawn = now
            self._live.update(self._drawing(now), refresh=True)

    def _drawing(self, now: float) -> Group:
        return Group("", Padding(self._head(now), (0, 0, 0, 1)), self._table(now))

    def _head(self, now: float) -> Table:
        head = Table.grid(padding=(0, 1))
        done = Text(f"{clock(now - self._started)}  round {self._progress.rounds:,}", style="dim")
        head.add_row(self._spinner, self._title, done)
        return head

    def _table(self, now: float) -> Table:
        loads = self._progress.loads
        table = Table(box=None, pad_edge=True, padding=(0, 2, 0, 1), header_style="dim")
        datagrams = DATAGRAMS[: self._progress.datagram_figures]
        for heading in ("party", *(LOADING if loads else TRAINING), *WAN, *datagrams, "state"):
            is_text = heading in ("party", "state")
            table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
        for party in self._progress.parties.values():
            style = self._prefixes[party.name].style
            state = Text(party.standing, style="green" if party.is_calm else "yellow")
            loading = bar(party.loading), *loading_figures(party.loading, now)
            done = loading if loads else figures(party, now)
            shares = party.shares.figures(now)[: len(datagrams)]
            table.add_row(Text(party.name, style=style), *done, *wan_rates(party, now), *shares, state)
        return table


class PlainView:
    """Plain lines, for files, pipes and `--plain`."""

    def __init__(self, run: Run) -> None:
        self._progress = RunProgress(run)
        self._prefixes = prefixes(run)
        self._title = title(run)
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        print(self._title.plain, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def line(self, node: str, text: str, is_error: bool) -> None:
        stream = sys.stderr if is_error else sys.stdout
        print(f"{self._prefixes[node].plain} │ {Text.from_ansi(text).plain}", file=stream, flush=True)

    def say(self, text: str) -> None:
        print(f"geomx: {text}", file=sys.stderr, flush=True)

    def show(self, records: Iterable[Record], now: float) -> None:
        for change in self._progress.take_all(records):
            print(change_line(change, self._started), flush=True)
        if now - self._shown >= PLAIN_S:
            self._shown = now
            for party in self._progress.parties.values():
                print(f"{clock(now - self._started)}  {plain_line(party, now)}", flush=True)


def plain_line(party: PartyProgress, now: float) -> str:
    """A party's row as one line of text."""
    up, down = wan_rates(party, now)
    if party.loads and party.loading is not None:
        done = loading_line(party.loading, now)
    else:
        done = "round {}, loss {}, {} samples/s".format(*figures(party, now))
    shares = party.shares.words(now)
    return f"{party.name}: {done}, WAN up {up} down {down} Mbit/s{shares}, {party.standing}"


def change_line(change: Change, started: float) -> str:
    """An entry of the list of members. `started`: the view, on the records' clock."""
    return f"{clock(max(0.0, change.t - started))}  {change.text}"


def figures(party: PartyProgress, now: float) -> tuple[str, str, str]:
    """Round, loss, samples/s, as text."""
    samples = party.samples_rate.at(now)
    return (
        f"{party.rounds:,}" if party.rounds else UNKNOWN,
        UNKNOWN if party.loss is None else f"{party.loss:.4f}",
        f"{samples:,.0f}" if samples else UNKNOWN,
    )


def wan_rates(party: PartyProgress, now: float) -> tuple[str, str]:
    """WAN Mbit/s up and down, as text."""
    up, down = party.up_rate.at(now) * 8e-6, party.down_rate.at(now) * 8e-6
    return f"{up:.1f}" if up else UNKNOWN, f"{down:.1f}" if down else UNKNOWN


def loading_line(loading: Loading, now: float) -> str:
    """`first weights 40%, 2.1 of 5.2 MB, 0:12 left`."""
    share, megabytes, left = loading_figures(loading, now)
    return f"first weights {share}, {megabytes} MB" + (f", {left} left" if left != UNKNOWN else "")


def loading_figures(loading: Loading | None, now: float) -> tuple[str, str, str]:
    """How far the first weights are: the share, MB of MB, and for how long they will still travel, as text."""
    if loading is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    left_s = loading.left_s(now)
    megabytes = f"{loading.arrived_mb:,.1f} of {loading.of_mb:,.1f}"
    return f"{loading.share:.0%}", megabytes, UNKNOWN if left_s is None else clock(left_s)


def bar(loading: Loading | None) -> ProgressBar:
    """The same as a bar."""
    return ProgressBar(total=1.0, completed=loading.share if loading else 0.0, width=BAR_WIDTH)


def title(run: Run) -> Text:
    """`geomx  cnn  fsa, dense ↑ dense ↓  2 parties, 4 workers, 2 shards`."""
    counts = [(len(run.regions), "region")] if run.regions else []
    counts += [(len(run.parties), "party"), (len(run.workers), "worker")]
    counts += [(run.run.shards, "shard")] if run.run.shards > 1 else []
    return Text.assemble(
        ("geomx", "bold cyan"),
        ("  " + run.run.name, "bold"),
        f"  {run.sync.policy}, {run.wan.codec_up} ↑ {run.wan.codec_down} ↓  ",
        (", ".join(counted(*count) for count in counts), "dim"),
    )


def prefixes(run: Run) -> dict[str, Text]:
    """Each node's name in a colour of its own, all of one width."""
    nodes = run.tree.nodes
    width = max(map(len, nodes))
    return {
        node: Text(node.ljust(width), style=COLOURS[number % len(COLOURS)])
        for number, node in enumerate(nodes)
    }


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
