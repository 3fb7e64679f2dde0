"""A worker by itself: what it keeps, what it tells of its slices, and how it looks for its local server."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from driven import LAYOUT, Driven, welcome, worker
from trees import SGD, topology_of

from geomx.node.contract import Called, Closed, Timer, Write
from geomx.node.port import Contribution
from geomx.node.same_data import DIGEST_BYTES
from geomx.node.topology import Edge
from geomx.node.uplink import priority_of
from geomx.wire.messages import Push, Reading, Sampled, Update

DENSE = LAYOUT.slices[2]


def contribute(node: Driven, turn: int, value: float) -> torch.Tensor:
    """A gradient of slice 2, the same everywhere; returns the payload that leaves."""
    values = torch.full((DENSE.elements,), value)
    call = Contribution.of(turn, DENSE.index, "gradient", "step()", 1.0, values, None, dict(SGD))
    (sent,) = [
        e for e in node(Called("contribute", (call,))) if isinstance(e, Write) and e.payload is not None
    ]
    assert isinstance(sent.message, Push)
    return sent.payload


def told_of_samples(name: str, secret: bytes = b"", **plan_fields: Any) -> Sampled:
    """What leaves a worker that begins with one sample, whose digest is the same everywhere."""
    node, party = Driven(name, topology_of([1, 1], secret=secret, **plan_fields)), name.partition("/")[0]
    node.knock(1, party)
    node.say(1, welcome(party, secret=secret), number=0)
    (sent,) = [e.message for e in node(Called("sampled", ({4: b"digest" * 5},))) if isinstance(e, Write)]
    assert isinstance(sent, Sampled)
    return sent


def test_digests_of_samples_are_keyed_by_the_run() -> None:
    """The same for all workers of a run; without its secret nobody can compute them."""
    secret, manifest = b"known to few", {"run.seed": 1}
    digests = told_of_samples("A/0", secret, manifest=manifest).digests
    assert [(place, len(digest)) for place, digest in digests.items()] == [(4, DIGEST_BYTES)]
    assert told_of_samples("B/0", secret, manifest=manifest).digests == digests
    assert told_of_samples("B/0", b"another", manifest=manifest).digests != digests
    assert told_of_samples("B/0", secret, manifest={"run.seed": 2}).digests != digests
    assert told_of_samples("A/0").digests == told_of_samples("B/0").digests != digests


def update(node: Driven, turn: int) -> None:
    values = torch.zeros(DENSE.elements)
    node.say(
        1,
        Update(turn, DENSE.index, "gradient", 1.0, None, Reading(), size=values.nbytes),
        values.view(torch.uint8),
    )


def test_what_a_codec_holds_back_outlasts_an_update() -> None:
    """Half of the elements leave in one step, the others in the next."""
    node = worker(topology_of([1], lan=Edge("topk ratio=0.5", "dense")))
    codec = node.node._uplink._up
    first = codec.decode(DENSE, contribute(node, 1, 1.0))
    update(node, 1)
    second = codec.decode(DENSE, contribute(node, 2, 0.0))
    assert torch.equal(first + second, torch.ones(DENSE.elements))
    assert first.count_nonzero() == DENSE.elements // 2


def test_the_trace_has_a_span_from_the_push_of_a_slice_to_its_update() -> None:
    node = worker()
    node.now = 2.0
    contribute(node, 1, 1.0)
    node.now = 5.0
    update(node, 0)  # of what another incarnation has pushed
    assert node.noted("span") == []
    update(node, 1)
    assert node.noted("span") == [{"track": "slice 2", "label": "gradient 1", "start": 2.0, "stop": 5.0}]


def test_who_cannot_be_reached_is_dialled_again_after_pauses_that_grow_up_to_a_second() -> None:
    node = Driven("A/0")

    def pauses(times: int) -> list[float]:
        effects = [effect for _ in range(times) for effect in node(Closed(1, "A", "refused"))]
        return [effect.delay_s for effect in effects if isinstance(effect, Timer) and effect.key == "dial A"]

    assert pauses(7) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    node.reach(1, "A")
    assert pauses(2) == [0.05, 0.1]


def test_slices_give_way_to_what_is_no_slice_and_have_as_many_lanes_as_there_are() -> None:
    slices = [msgspec.structs.replace(LAYOUT.slices[0], index=index) for index in (0, 3, 1 << 20)]
    assert [priority_of(slice_) for slice_ in slices] == [1, 4, 65_535]
