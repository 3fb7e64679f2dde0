"""One node, driven by hand: events go in, and everything that it does is kept."""

from __future__ import annotations

from typing import Any

import torch
from trees import SGD, layout_of, topology_of

from geomx.errors import GeomxError, ProtocolError
from geomx.node.contract import (
    Called,
    Closed,
    Effect,
    Event,
    Fired,
    Hangup,
    Job,
    JobDone,
    Note,
    Notify,
    Opened,
    Received,
    Started,
    Stop,
    Timer,
    Write,
)
from geomx.node.factory import make_node
from geomx.node.slices.payloads import pack_layout
from geomx.node.topology import Edge, Topology
from geomx.wire.messages import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Challenge,
    Hello,
    Hyper,
    Push,
    Reading,
    Refuse,
    Welcome,
    payload_size,
)
from geomx.wire.proof import NONCE_BYTES, proof
from geomx.wire.roster_messages import Message

torch.set_num_threads(1)
TOPOLOGY = topology_of([2, 1])
IN_DATAGRAMS = topology_of([2, 1], lan=Edge(channel="datagram"))
LAYOUT = layout_of(3)
Nonces = tuple[bytes, bytes]
NONCES = (b"l" * NONCE_BYTES, b"d" * NONCE_BYTES)  # of the side that listens, and of the one that dials
SETTINGS = {"optimizer": "torch.optim.SGD", "clip_norm": None}


def hello(
    node: str, incarnation: int = 1, secret: bytes = b"", nonces: Nonces = NONCES, **more: Any
) -> Hello:
    """With a right proof; `nonces`: of the node that listens, and of whoever says this."""
    fields = {"version": PROTOCOL_VERSION, "run": "test", "manifest": {}, "received": 0} | more
    proved = proof(secret, "dials", fields["run"], node, incarnation, nonces)
    return Hello(node=node, incarnation=incarnation, nonce=nonces[1], **{"proof": proved} | fields)


def welcome(
    node: str,
    incarnation: int = 1,
    received: int = 0,
    nonces: Nonces = NONCES,
    secret: bytes = b"",
    term: int = 0,
) -> Welcome:
    """With a right proof; `nonces`: of the node that says this, and of the one that has dialled."""
    proved = proof(secret, "listens", "test", node, incarnation, nonces)
    return Welcome(node, incarnation, received, proved, term)


def push(origin: str, turn: int = 1, index: int = 0, incarnation: int = 1, **more: Any) -> Push:
    fields = {
        "kind": "gradient",
        "operation": "step()",
        "weight": 1.0,
        "origins": {origin: incarnation},
        "present": None,
        "hyper": b"sgd",
        "reading": Reading(),
    } | more
    if "size" not in fields:
        fields["size"] = LAYOUT.slices[index].size_bytes
    return Push(turn=turn, slice=index, **fields)


class Driven:
    """A node and its peers, each of which numbers what it sends. Jobs are done at once."""

    def __init__(self, name: str, topology: Topology = TOPOLOGY) -> None:
        self.node: Any = make_node(topology, name)
        self.now = 0.0
        self.effects: list[Effect] = []
        self._numbers: dict[int, int] = {}
        self._timers: dict[str, float] = {}
        self(Started())

    def __call__(self, event: Event) -> list[Effect]:
        before = len(self.effects)
        for effect in self.node.handle(event, self.now):
            self.effects.append(effect)
            if isinstance(effect, Timer):
                self._timers[effect.key] = self.now + effect.delay_s
            if isinstance(effect, Job):
                try:
                    done = JobDone(effect, effect.function())
                except Exception as error:
                    done = JobDone(effect, error=error)
                self(done)
        return self.effects[before:]

    def tick(self, seconds: float, step_s: float = 1.0) -> None:
        """Let time pass; at the end of each `step_s` the node is woken, if it has asked to be by then."""
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            for key in [key for key, due_at in self._timers.items() if due_at <= self.now]:
                del self._timers[key]
                self(Fired(key))

    def say(
        self, conn: int, message: Message, payload: Any = None, number: int | None = None
    ) -> list[Effect]:
        """A whole message comes on a connection, as a channel would bring it."""
        self.node.admit(conn, message)
        if payload is None and payload_size(message):
            payload = torch.zeros(message.size, dtype=torch.uint8)  # type: ignore[attr-defined]
        if number is None:
            number = self._numbers[conn] = self._numbers.get(conn, 0) + 1
        return self(Received(conn, number, message, payload))

    def greet(self, conn: int, message: Hello) -> list[Effect]:
        """Somebody dials and says Hello."""
        self(Opened(conn, "", NONCES[0]))
        return self.say(conn, message, number=0)

    def reach(self, conn: int, peer: str) -> None:
        """A dialled peer answers."""
        self.knock(conn, peer)
        self.say(conn, welcome(peer), number=0)

    def knock(self, conn: int, peer: str) -> None:
        """A dialled peer lets us say Hello."""
        self(Opened(conn, peer, NONCES[1]))
        self.say(conn, Challenge(NONCES[0]), number=0)

    def written(self, conn: int) -> list[Message]:
        """What has been sent on a connection."""
        return [e.message for e in self.effects if isinstance(e, Write) and e.conn == conn]

    def hung_up(self) -> list[int]:
        return [effect.conn for effect in self.effects if isinstance(effect, Hangup)]

    def noted(self, name: str) -> list[dict[str, Any]]:
        return [effect.fields for effect in self.effects if isinstance(effect, Note) and effect.name == name]

    def notified(self) -> list[Any]:
        """What the local program got."""
        return [effect.item for effect in self.effects if isinstance(effect, Notify)]

    @property
    def stopped(self) -> bool:
        return any(isinstance(effect, Stop) for effect in self.effects)

    @property
    def error(self) -> GeomxError | None:
        """What the node has ended with; where it waits for those who are to be told of it, when that is over."""
        if self.noted("failed") and not self.stopped:
            self.tick(self.node.limits.stop_s)
        (stop,) = [effect for effect in self.effects if isinstance(effect, Stop)]
        return stop.error

    def refusal(self, conn: int) -> Refuse:
        (refusal,) = [message for message in self.written(conn) if isinstance(message, Refuse)]
        return refusal


def attach(node: str, driven: Driven, conn: int, settings: dict[str, Any] | None = None) -> None:
    """A child greets and brings the model."""
    driven.greet(conn, hello(node))
    bring_model(driven, conn, settings)


def bring_model(driven: Driven, conn: int, settings: dict[str, Any] | None = None) -> None:
    """A child that has greeted brings the model."""
    body = pack_layout(LAYOUT)
    driven.say(conn, Attach(LAYOUT.fingerprint, settings or SETTINGS, body.numel()), body)


def local_server(topology: Topology = TOPOLOGY, make: type[Driven] = Driven) -> Any:
    """A, to which A/0 (1), A/1 (2) and the global server (9) are connected, all with the model."""
    server = make("A", topology)
    server.reach(9, "global/0")
    for conn, name in enumerate(topology.tree.children("A"), 1):
        attach(name, server, conn)
    server.say(9, Attached())
    return server


def global_server(settings: dict[str, Any] | None = None) -> Driven:
    """The root, to which A (1) and B (2) are connected, with the model, its weights and hyper-parameters."""
    server = Driven("global/0")
    for conn, node in enumerate(("A", "B"), 1):
        attach(node, server, conn, settings)
        server.say(conn, Hyper(b"sgd", dict(SGD)))
    for slice_ in LAYOUT.slices:
        assigned = {"turn": 0, "index": slice_.index, "kind": "assign", "operation": "attach()", "hyper": b""}
        server.say(1, push("A/0", **assigned, origins={"A/0": 1, "A/1": 1}))
        server.say(2, push("B/0", **assigned))
    return server


def worker(
    topology: Topology = TOPOLOGY, attached: Attached | None = None, make: type[Driven] = Driven
) -> Any:
    """A/0, connected to A (1), with the model."""
    node = make("A/0", topology)
    node.reach(1, "A")
    node(Called("attach", (LAYOUT, SETTINGS)))
    node.say(1, attached or Attached())
    return node


def refused_by(driven: Driven, *said: Any) -> GeomxError | None:
    """Say it as a channel would: what `admit` refuses closes the connection, which the node then hears."""
    try:
        driven.say(*said)
    except ProtocolError as error:
        driven(Closed(said[0], "", str(error)))
    return driven.error
