"""A member that sends other datagrams than it has announced ends the run, which names it and what it did."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from real_runs import ALL_NODES, RealRun

pytestmark = pytest.mark.processes

# A channel that is `datagram`, but for the first process that sends in datagrams: it lies.
CHANNEL = """
import os, pathlib
from geomx.channels.block_classes import Alike
from geomx.channels.datagram import Datagram, DatagramConnection

class Liar(Datagram):
    def __init__(self, edge):
        super().__init__(edge, Alike())

    def new_connection(self, *arguments, dials):
        return LyingConnection(*arguments, self, dials=dials)

class LyingConnection(DatagramConnection):
    def _writes_beside(self, *arguments):
        if self._dials and self._end is not None and self._end.path.is_open and is_liar():
            sender = self._end.sender
            add = type(sender).add.__get__(sender)
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

def lie(block):
    return block._replace(level=1)
"""


def test_whoever_announces_one_thing_and_sends_another_is_named(real: Callable[..., RealRun]) -> None:
    run = real(steps=1_000_000)
    (run.folder / "liar.py").write_text(CHANNEL)
    run.start(ALL_NODES, f"run.secret_file={run.folder / 'secret'}", "wan.channel=liar:Liar")
    ended = run.wait(ALL_NODES)
    (liar,) = (n for n in "AB" if str(run.processes[n].pid) == (run.folder / "liar").read_text())
    for name, (status, output) in ended.items():
        assert status == 1, f"{name} ended with {status}:\n{output}"
    _, output = ended["global/0"]
    what = r"block \d+ was announced as reliable, and came in class 1"
    assert re.search(f"geomx: {liar} broke the protocol: {what}", output), output
