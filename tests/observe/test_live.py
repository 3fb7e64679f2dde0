from __future__ import annotations

import io

import pytest
from recorded import roster
from rich.console import Console

from geomx.config import Run
from geomx.observe.live import PLAIN_S, LiveView, PlainView, clock, plain_line, view_of
from geomx.observe.progress import RunProgress
from geomx.observe.records import Record

TOML = """
[[party]]
name = "A"
workers = 1
[[party]]
name = "Berlin"
workers = 1
"""
RECORDS = [
    Record(0.0, "A", "joined", "info", {"peer": "A/0"}),
    Record(1.0, "A", "round", "debug", {"turn": 1, "seconds": 0.1}),
    Record(1.0, "A/0", "log", "debug", {"loss": 0.5}),
    Record(1.0, "A", "usage", "debug", {"sent": {"global/0": 0}, "received": {"global/0": 0}}),
    Record(2.0, "A", "usage", "debug", {"sent": {"global/0": 1_000_000}, "received": {"global/0": 250_000}}),
]


@pytest.fixture
def run() -> Run:
    return Run.parse(TOML, "demo.toml")


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=110, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_fits_the_terminal(run: Run) -> None:
    assert isinstance(view_of(run, terminal(), plain=False), LiveView)
    assert isinstance(view_of(run, terminal(), plain=True), PlainView)
    assert isinstance(view_of(run, Console(file=io.StringIO()), plain=False), PlainView)


def test_the_live_view_shows_lines_above_a_table(run: Run) -> None:
    console = terminal()
    with LiveView(run, console) as view:
        view.show(RECORDS, now=2.5)
        view.line("A/0", "hello [bold]you[/bold]", is_error=False)
        view.say("stopping [all]")
    text = written(console)
    for expected in ("demo", "2 parties, 2 workers ", "0.5000", "8.0", "2.0", "starting, 0 of 1 workers"):
        assert expected in text
    assert "A/0      │ hello [bold]you[/bold]" in text
    assert "geomx: stopping [all]" in text


def test_the_live_view_has_columns_for_datagrams_where_there_are_some(run: Run) -> None:
    console = terminal()
    with LiveView(run, console) as view:
        view.show(RECORDS, now=2.5)
        assert "↑ lost" not in written(console)
        sendings = {"flows": {"global/0": {"sent": {"1": 991}, "again": {"1": 10}}}}
        blocks = {"blocks": {"given": {"1": 990}, "answered": {"1": 1000}, "returned": {"1": 32}}}
        first = {"flows": {"global/0": {"sent": {"1": 1}}}}
        fields = [RECORDS[-1].fields | told for told in (first, sendings | blocks)]
        view.show([Record(2.0 + t, "A", "usage", "debug", told) for t, told in enumerate(fields)], now=3.5)
    text = written(console)
    assert all(expected in text for expected in ("↑ again", "↑ lost", "1.0%", "3.2%"))


def test_the_live_view_draws_no_oftener_than_it_must(run: Run) -> None:
    console = terminal()
    with LiveView(run, console) as view:
        view.show(RECORDS, now=2.5)
        before = written(console)
        view.show([], now=2.51)
        assert written(console) == before
        view.show([], now=3.5)
        assert written(console) != before


def test_plain_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView(run) as view:
        view.line("A/0", "\x1b[31mred\x1b[0m", is_error=False)
        view.line("Berlin", "trouble", is_error=True)
        view.say("stopping every process")
        view.show(RECORDS, now=2.5)
        view.show([], now=1e9 + PLAIN_S)
    out, err = capsys.readouterr()
    assert "A/0      │ red\n" in out
    assert err == "Berlin   │ trouble\ngeomx: stopping every process\n"
    assert "A: round 1, loss 0.5000, · samples/s, WAN up · down · Mbit/s, training" in out
    assert "Berlin: round ·, loss ·" in out


NODES = ("global/0", "A", "Berlin")
LOST = [
    Record(3.0, "A", "lost", "warning", {"peer": "A/0", "reason": "silence"}),
    *[roster(3.1, "A/0", node=node, lost={"A/0": "silence"}) for node in NODES],
]
BACK = [roster(5.0, "", "A/0", node=node) for node in NODES]
LINES = [
    "A/0 is lost (silence); 1 of 2 workers takes part from turn 7 on",
    "A/0 is back; 1 of 2 workers takes part from turn 7 on",
]


def test_the_live_view_says_once_who_is_lost_and_who_is_back(run: Run) -> None:
    console = terminal()
    with LiveView(run, console) as view:
        view.show([*RECORDS, *LOST], now=3.5)
        drawn = written(console)
        view.show(BACK, now=3.6)  # too soon to be drawn again
        text = written(console)
    assert [text.count(line) for line in LINES] == [1, 1]
    (row,) = [line for line in drawn.splitlines() if line.lstrip().startswith("A ")]
    assert row.split()[-1] == "out"


def test_so_do_plain_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView(run) as view:
        view.show([*RECORDS, *LOST], now=0.0)
        view.show(BACK, now=0.0)
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == [f"0:00  {line}" for line in LINES]
    assert err == ""


WEIGHTS = [
    Record(0.0, "A", "first_weights", "debug", {"share": 0.0, "arrived_mb": 0.0, "of_mb": 5.2}),
    Record(2.0, "A", "first_weights", "debug", {"share": 0.4, "arrived_mb": 2.08, "of_mb": 5.2}),
]
ALL_THERE = Record(5.0, "A", "first_weights", "debug", {"share": 1.0, "arrived_mb": 5.2, "of_mb": 5.2})


def test_bars_show_how_far_the_first_weights_are_until_training_begins(run: Run) -> None:
    console = terminal()
    with LiveView(run, console) as view:
        view.show(WEIGHTS, now=2.5)
        drawn = written(console)
        view.show([ALL_THERE], now=5.5)
    (row,) = [line for line in drawn.splitlines() if line.lstrip().startswith("A ")]
    assert row.split() == f"A {8 * '━'} 40% 2.1 of 5.2 0:03 · · starting, 0 of 1 workers".split()
    assert "first weights" in drawn
    assert "samples/s" not in drawn
    assert "samples/s" in written(console).removeprefix(drawn)


def test_plain_lines_tell_how_far_the_first_weights_are(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView(run) as view:
        view.show([*WEIGHTS, RECORDS[0]], now=1e9)
        view.show([ALL_THERE], now=1e9 + 2 * PLAIN_S)
    out = capsys.readouterr().out
    assert (
        "A: first weights 40%, 2.1 of 5.2 MB, WAN up · down · Mbit/s, starting" in out
    )  # too long ago for a rate
    assert "A: round ·, loss ·, · samples/s, WAN up · down · Mbit/s, starting" in out
    progress = RunProgress(run)
    for record in WEIGHTS:
        progress.take(record)
    assert plain_line(progress.parties["A"], 2.5).startswith(
        "A: first weights 40%, 2.1 of 5.2 MB, 0:03 left, WAN"
    )


def test_clock() -> None:
    assert [clock(7.9), clock(750), clock(3723)] == ["0:07", "12:30", "1:02:03"]
