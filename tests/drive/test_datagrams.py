"""What the real driver records of datagrams: a whole run on loopback, with a relay between the party and the root."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
from relays import Relay, losing, relay
from trees import Loop, topology_of
from wires import ANY_PORT, PATIENCE_S, Records, run_on

from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram
from geomx.channels.tcp import Tcp
from geomx.config import Run
from geomx.drive.real import Driver, ListeningEdge, Wiring
from geomx.layout import Layout, Tensor
from geomx.node.contract import Called
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Left, Ready
from geomx.node.topology import Edge
from geomx.observe.datagrams import datagram_lines
from geomx.observe.records import Record
from geomx.observe.report import make_report
from geomx.observe.sentences import sentence
from geomx.wire.flow import path as path_module

# A run has the loop that is there; the channels' own tests have both.
pytestmark = pytest.mark.parametrize(
    "loop_name", ["uvloop", pytest.param("asyncio", marks=pytest.mark.grids)]
)
TOPOLOGY = topology_of([1], wan=Edge(channel="datagram deadline=1.0"), secret=b"s" * 32)
LAYOUT = Layout((Tensor("large", (300, 100), "float32"), Tensor("tiny", (40,), "float32")))


class Tree:
    """A worker and its local server, each with a driver, and a relay between them and the root."""

    def __init__(self, between: Relay, records: dict[str, Records]) -> None:
        self.relay = between
        self.records = records
        self._heard: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = Loop(LAYOUT, TOPOLOGY.tree.workers, 0)
        self._weights: dict[int, Any] = {}
        self._worker: Driver
        self.turn = 0

    def driver(self, name: str, wiring: Wiring, notify: Callable[[Any], None] = lambda item: None) -> Driver:
        self.records[name] = Records()
        return Driver(make_node(TOPOLOGY, name), wiring, self.records[name], notify)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        wan, lan = Datagram(EdgeSettings(), Alike(1.0)), Tcp()
        peers = {"global/0": (wan, self.relay.address)}
        tasks.create_task(self.driver("A", Wiring(ListeningEdge(lan, ANY_PORT), peers)).run())
        (listening,) = await self.records["A"].until("listening")
        self._worker = self.driver(
            "A/0", Wiring(None, {"A": (lan, listening["address"])}), self._heard.put_nowait
        )
        tasks.create_task(self._worker.run())
        await asyncio.sleep(0)
        self._call("attach", LAYOUT, self._loop.settings)
        await self._hear(Ready, 1)
        await self.step()

    async def step(self) -> None:
        for slice_ in LAYOUT.slices:
            self._call("contribute", self._loop.contribution(slice_.index, self.turn, 0, self._weights))
        for arrived in await self._hear(Arrived, len(LAYOUT.slices)):
            self._weights[arrived.update.slice] = arrived.values
        self.turn += 1

    async def leave(self) -> None:
        self._call("leave", {"": self.turn - 1})
        await self._hear(Left, 1)

    def _call(self, method: str, *arguments: Any) -> None:
        self._worker.deliver(Called(method, arguments))

    async def _hear(self, kind: type, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            item = await self._heard.get()
            found += [item] * isinstance(item, kind)
        return found

    async def until_datagrams(self, pass_: bool) -> None:
        """Wait until the local server has noted that datagrams pass, or do not."""
        records = self.records["A"]
        while [fields["passes"] for fields in records.named("datagrams")][-1:] != [pass_]:
            await records.until("datagrams", len(records.named("datagrams")) + 1)

    @property
    def sent(self) -> list[int]:
        """How many datagrams the local server had sent, by each of its records."""
        flows = [usage.get("flows", {}).get("global/0", {}) for usage in self.records["A"].named("usage")]
        return [flow.get("sent", {}).get("1", 0) for flow in flows]

    def told(self) -> list[Record]:
        return [
            Record(0.0, node, name, "debug", fields)
            for node, records in self.records.items()
            for name, fields in records.records
        ]


async def trained(train: Callable[[Tree], Any], address: str = ANY_PORT) -> Tree:
    """A run from its start to its end. `address`: where the root listens."""
    records = {"global/0": Records()}
    door = ListeningEdge(Datagram(EdgeSettings(), Alike(1.0)), address)
    root = Driver(make_node(TOPOLOGY, "global/0"), Wiring(door), records["global/0"])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(root.run())
        (listening,) = await records["global/0"].until("listening")
        async with contextlib.AsyncExitStack() as stack:
            between = await stack.enter_async_context(relay(listening["address"]))
            tree = Tree(between, records)
            async with asyncio.TaskGroup() as others:
                await tree.start(others)
                await train(tree)
                await tree.leave()
    return tree


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine stands still, TCP takes nothing over."""
    monkeypatch.setattr("geomx.wire.flow.ends.SILENT_S", PATIENCE_S)
    monkeypatch.setattr("geomx.wire.flow.path.LIMIT_S", PATIENCE_S)


@pytest.mark.usefixtures("_patient")
def test_what_was_lost_is_recorded_at_both_ends(loop_name: str) -> None:
    async def train(tree: Tree) -> None:
        await tree.until_datagrams(True)
        tree.relay.passes = losing(0.2)
        for _ in range(5):
            await tree.step()

    tree = run_on(loop_name, lambda: trained(train))
    usage = tree.records["A"].named("usage")[-1]
    report = make_report(Run.parse('[[party]]\nname = "A"\nworkers = 1\n', "one.toml"), tree.told(), 1.0)
    classes = report["datagrams"]["wan"]["A"]["classes"]
    assert list(classes) == ["reliable", "class 1"]  # what is not in blocks is reliable
    reliable = classes["reliable"]
    assert 0 < reliable["came"] <= reliable["sent"] + reliable["again"]  # others are rebuilt
    counts = classes["class 1"]
    assert counts["given"] == counts["answered"] == counts["sent"] == usage["flows"]["global/0"]["sent"]["1"]
    assert counts["again"] > 0
    assert counts["returned"] > 0
    assert counts["came"] >= counts["sent"] - counts["returned"]
    assert usage["sent"]["global/0"] > 1400 * counts["sent"] / 2  # bytes of datagrams are bytes
    assert report["datagram_paths"] == []


@pytest.mark.usefixtures("_patient")
def test_counts_go_on_over_connections_that_broke(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was resumed has a flow of its own."""
    monkeypatch.setattr("geomx.drive.real.USAGE_EVERY_S", 0.05)

    async def train(tree: Tree) -> None:
        for connection in range(2):
            before = tree.sent[-1] if connection else 0
            while tree.sent[-1] == before:
                await tree.step()
                await tree.records["A"].until("usage", len(tree.sent) + 1)
            if not connection:
                tree.relay.break_connections()
                await tree.records["A"].until("usage", len(tree.sent) + 2)

    tree = run_on(loop_name, lambda: trained(train))
    assert "global/0" in [fields["peer"] for fields in tree.records["A"].named("away")]
    assert tree.sent == sorted(tree.sent)
    assert len(tree.records["A"].named("datagrams")) == 1
    blocks = tree.records["A"].named("usage")[-1]["blocks"]
    assert blocks["given"] == blocks["answered"]


def test_where_datagrams_do_not_pass_is_recorded_once_and_when_they_pass_again(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)
    monkeypatch.setattr(path_module, "RETRY_S", 0.3)
    monkeypatch.setattr("geomx.wire.flow.ends.SILENT_S", 0.3)

    async def train(tree: Tree) -> None:
        await tree.until_datagrams(True)
        await tree.step()
        tree.relay.passes = lambda datagram: 0
        await tree.step()
        await tree.until_datagrams(False)
        await tree.step()
        tree.relay.passes = losing(0.0)
        await tree.until_datagrams(True)
        await tree.step()

    tree = run_on(loop_name, lambda: trained(train))
    told = tree.records["A"].named("datagrams")
    assert {fields["peer"] for fields in told} == {"global/0"}
    assert [fields["passes"] for fields in told] == [not place % 2 for place in range(len(told))]
    assert len(told) >= 3
    blocks = tree.records["A"].named("usage")[-1]["blocks"]
    assert blocks["given"] == blocks["answered"]


def test_where_another_program_has_the_port_each_end_says_so_once(loop_name: str) -> None:
    async def train(tree: Tree) -> None:
        await tree.until_datagrams(False)
        tree.relay.break_connections()
        await tree.records["A"].until("resumed")
        await tree.step()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        tree = run_on(loop_name, lambda: trained(train, f"127.0.0.1:{port}"))
    (listener,) = tree.records["global/0"].named("no_datagrams")
    said = f"UDP port {port} is in use by another program, so TCP carries everything"
    assert sentence("no_datagrams", listener) == said
    assert not tree.records["global/0"].named("refused")
    (party,) = tree.records["A"].named("datagrams")
    assert sentence("datagrams", party) == (
        "datagrams do not pass to global/0, so TCP carries everything: its UDP port cannot be used; its log says why"
    )
    report = make_report(Run.parse('[[party]]\nname = "A"\nworkers = 1\n', "one.toml"), tree.told(), 1.0)
    assert report["datagram_paths"] == [{"node": "A", **party}]
    row = datagram_lines(report["datagrams"].get("wan", {}), report["datagram_paths"])
    assert row.splitlines()[-1] == "do not pass from A to global/0: TCP carries everything"
