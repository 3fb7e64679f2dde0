"""What was received stays as it came, what is kept for a resend does not change, and answers keep their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch
from driven import LAYOUT, Driven, global_server, local_server, push, worker
from trees import topology_of

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.node.contract import Effect, Event, Job, JobDone, Write
from geomx.node.port import Arrived
from geomx.node.topology import Edge
from geomx.wire.messages import Fetch, Push, Reading, State, Update

SLICE = LAYOUT.slices[0]
INT8 = topology_of([2, 1], wan=Edge(codec_down="int8"), lan=Edge(codec_down="dense"))


def values(number: float) -> torch.Tensor:
    return torch.full((SLICE.elements,), number).view(torch.uint8)


def step(server: Driven, turn: int) -> list[torch.Tensor]:
    """One round of slice 0 at a shard; returns the payloads that were received."""
    of_a, of_b = values(1.0), values(3.0)
    server.say(1, push("A/0", turn, origins={"A/0": 1, "A/1": 1}, weight=2.0), of_a)
    server.say(2, push("B/0", turn), of_b)
    return [of_a, of_b]


@pytest.mark.parametrize("make", [global_server, local_server])
def test_a_received_payload_is_not_written_into(make: Callable[[], Driven]) -> None:
    server = make()
    if make is global_server:
        received = step(server, 1)
    else:
        received = [values(1.0), values(3.0)]
        for conn, payload in enumerate(received, 1):
            server.say(conn, push(f"A/{conn - 1}"), payload)
        assert any(isinstance(message, Push) for message in server.written(9))
    assert [payload.view(torch.float32)[0].item() for payload in received] == [1.0, 3.0]


def test_what_a_session_keeps_for_a_resend_does_not_change() -> None:
    """Weights change in place in the next round; what was sent of them may have to be sent again."""
    server = global_server()
    step(server, 1)
    sent = [e for e in server.effects if isinstance(e, Write) and isinstance(e.message, Update)]
    before = [None if write.payload is None else write.payload.clone() for write in sent]
    step(server, 2)
    for write, payload in zip(sent, before, strict=True):
        assert (payload is None and write.payload is None) or torch.equal(write.payload, payload)
    assert any(payload is not None for payload in before)


class Pool(Driven):
    """A node whose jobs run in a pool in which the last to come is the first to run."""

    pooled = False

    def __call__(self, event: Event) -> list[Effect]:
        if not self.pooled:
            return super().__call__(event)
        before = len(self.effects)
        self.effects += self.node.handle(event, self.now)
        self._jobs.extend(e for e in self.effects[before:] if isinstance(e, Job))
        return self.effects[before:]

    def pool(self) -> None:
        self.pooled, self._jobs = True, deque[Job]()

    def work(self) -> None:
        while self._jobs:
            job = self._jobs.pop()
            self(JobDone(job, job.function()))


def updates(codec: str) -> list[tuple[Update, torch.Tensor]]:
    """Weights of 1, and then two deltas of 0.5 through a codec."""
    given = Update(0, 0, "assign", 0.0, None, Reading(), "", SLICE.size_bytes)
    encoder = make_codec(codec, RngKey())
    deltas = [encoder.encode(SLICE, turn, torch.full((SLICE.elements,), 0.5)) for turn in (1, 2)]
    answers = [
        Update(turn, 0, "gradient", 2.0, None, Reading(), "", d.nbytes, base=turn - 1)
        for turn, d in enumerate(deltas, 1)
    ]
    return [(given, values(1.0)), *zip(answers, deltas, strict=True)]


def test_a_worker_takes_the_answers_to_a_slice_in_their_order() -> None:
    node = worker(topology_of([2, 1], wan=Edge(codec_down="int8")), make=Pool)
    node.pool()
    for update, payload in updates("int8"):
        node.say(1, update, payload)
    node.work()
    arrived = [item for item in node.notified() if isinstance(item, Arrived)]
    assert [item.update.turn for item in arrived] == [0, 1, 2]
    assert [item.values[0].item() for item in arrived] == pytest.approx([1.0, 1.5, 2.0], rel=0.01)


def test_a_local_server_takes_the_answers_to_a_slice_in_their_order() -> None:
    server = local_server(INT8, Pool)
    server.pool()
    for update, payload in updates("int8"):
        server.say(9, update, payload)
    server.say(9, Update(3, 0, "gradient", 0.0, None, Reading()))  # without values: nothing to be done for it
    server.work()
    sent = [
        e for e in server.effects if isinstance(e, Write) and e.conn == 1 and isinstance(e.message, Update)
    ]
    assert [write.message.turn for write in sent] == [0, 1, 2, 3]
    down = [write.payload.view(torch.float32)[0].item() for write in sent[:3]]
    assert down == pytest.approx([1.0, 1.5, 2.0], rel=0.01)


def test_what_a_checkpoint_keeps_of_a_slice_is_found_behind_the_jobs_that_change_it() -> None:
    server = local_server(INT8, Pool)
    first, second, _ = updates("int8")
    server.say(9, *first)
    server.pool()
    server.say(9, *second)  # its job waits
    server.say(1, Fetch(7, 0, "server", "A"))
    server.work()
    (answer,) = [e for e in server.effects if isinstance(e, Write) and isinstance(e.message, State)]
    assert answer.message.planes == ("@A/anchor",)
    assert answer.payload.view(torch.float32)[0].item() == pytest.approx(1.5, rel=0.01)
