"""A member that sends other datagrams than it has announced ends the run, which names it and what it did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_runs import ALL_NODES, RealRun

pytestmark = pytest.mark.processes

# A channel that is `datagram`, but for the first process that sends in datagrams: it lies.
CHANNEL = """
import os, pathlib
from geomx.channels.block_classes import Alike
from geomx.channels.datagram import Datagram, DatagramConnection

class Liar(Datagram):
    def __init__(self, edge, *, lie):
        super().__init__(edge, Alike())
        self.lie = lie

    def new_connection(self, *arguments, dials):
        return LyingConnection(*arguments, self, dials=dials)

class LyingConnection(DatagramConnection):
    def _writes_beside(self, *arguments):
        if self._dials and self._end is not None and self._end.path.is_open and is_liar():
            sender = self._end.sender
            add = type(sender).add.__get__(sender)
            lie = LIES[self._channel.lie]
            sender.add = lambda number, head, blocks, *more: add(number, head, list(map(lie, blocks)), *more)
        return super()._writes_beside(*arguments)

def is_liar():
    path = pathlib.Path(__file__).with_name("liar")
    try:
        with path.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        pass
    return path.read_text() == str(os.getpid())

LIES = {
    "class": lambda block: block._replace(level=1),
    "bytes": lambda block: block._replace(data=memoryview(bytes(block.data) * 2)),
}
"""


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        ("class", r"block \d+ was announced as reliable, and came in class 1"),
        ("bytes", "a load has more bytes than were announced"),
    ],
)
def test_whoever_announces_one_thing_and_sends_another_is_named(tmp_path: Path, lie: str, what: str) -> None:
    run = RealRun(tmp_path, steps=1_000_000)
    (tmp_path / "liar.py").write_text(CHANNEL)
    (tmp_path / "secret").write_text("s" * 40)
    (tmp_path / "secret").chmod(0o600)
    try:
        run.start(ALL_NODES, f"run.secret_file={tmp_path / 'secret'}", f"wan.channel=liar:Liar lie={lie}")
        ended = run.wait(ALL_NODES)
        liars = {name for name in "AB" if str(run.processes[name].pid) == (tmp_path / "liar").read_text()}
    finally:
        run.close()
    (liar,) = liars
    for name, (status, output) in ended.items():
        assert status == 1, f"{name} ended with {status}:\n{output}"
    _, output = ended["global/0"]
    assert re.search(f"geomx: {liar} broke the protocol: {what}", output), output
