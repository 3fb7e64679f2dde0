"""Who tells of losses and returns, and may not."""

from __future__ import annotations

from typing import Any

import pytest
from driven import Driven, attach, local_server, push, refused_by
from standings import stand
from trees import topology_of

from geomx.errors import ProtocolError
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.wire.messages import Attached, Beat
from geomx.wire.roster_messages import Asks, Held, Hold, Lost, Roster, Standing

GO_ON = Losses("continue", 60.0)
NOTHING: dict[str, Any] = {}


def region(losses: Losses = GO_ON) -> Driven:
    """A region's server with two parties, of which the first has closed nothing yet."""
    parties = {"A": ("A/0", "A/1"), "B": ("B/0",), "C": ("C/0",)}
    topology = Topology.of_parties("test", parties, regions={"R": ("A", "B")}, losses=losses)
    server = Driven("R", topology)
    server.reach(9, "global/0")
    for conn, name in enumerate(("A", "B"), 1):
        attach(name, server, conn)
    server.say(9, Attached())
    return server


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Lost("A", 1, NOTHING, ""), "tells of A, which does not hang on it"),
        (Lost("B/0", 1, NOTHING, ""), "tells of B/0, which does not hang on it"),
        (Lost("", 1, NOTHING, ""), "which does not hang on it"),
        (Lost("nobody", 1, NOTHING, ""), "tells of nobody, which does not hang on it"),
        (Lost("x" * 5000, 1, NOTHING, ""), "..., which does not hang on it"),
        (Lost("A/1", 1, stand({"": 9}), ""), "tells that turn 9 of '' has closed"),
        (Lost("A/1", 1, stand({"A": 2**64 - 1}), ""), f"tells that turn {2**64 - 1} of 'A' has closed"),
        (Lost("A/1", 1, stand({"A": -2}), ""), "tells that turn -2 of 'A' has closed"),
        (Lost("A/1", -1, NOTHING, ""), "tells of incarnation -1 of A/1"),
        (
            Asks("A/1", 1, stand({"": 0}, {"": (10**6, 3)})),
            "tells that '' stands at Standing(turn=0, step=1000000",
        ),
        (Asks("A/1", 1, stand({"x": 0})), "tells that turn 0 of 'x' has closed"),
        # Read in a turn that is still to come; less than nothing; more are absent than there are.
        (Asks("A/1", 1, {"A": Standing(3, 2, 3, 2, 4)}), "'A' stands at"),
        (Asks("A/1", 1, {"A": Standing(3, 2, 3, 2, 3, -1)}), "'A' stands at"),
        (Asks("A/1", 3, {"": Standing(1, absent=b"\xff")}), "'' stands at"),
        (Asks("A/1", 3, {"": Standing(1, absent=bytes(1000))}), "'' stands at"),
        (Lost("A/1", 1, stand({"C": 0}), ""), "tells that turn 0 of 'C' has closed"),
        (Asks("B/0", 1, NOTHING), "tells of B/0, which does not hang on it"),
        (Asks("A/1", 1, stand({"R": 1 << 60})), "of 'R' has closed"),
        (Roster(1, b"\x04"), "Roster was sent up to R"),
        (Hold(1, ("B/0",)), "Hold was sent up to R"),
        (Held(1, NOTHING), "Held was sent up to R"),
    ],
)
def test_a_server_below_tells_of_its_own_alone_and_of_turns_that_can_be(message: Any, reason: str) -> None:
    error = refused_by(region(), 1, message)
    assert isinstance(error, ProtocolError)
    assert "A broke the protocol" in str(error)
    assert reason in str(error)


def test_what_it_knows_is_passed_on() -> None:
    server = region()
    server.say(1, Lost("A/1", 3, stand({"": 1, "A": 70}), "gone"))
    (told,) = [message for message in server.written(9) if isinstance(message, Lost)]
    assert (told.node, told.incarnation, told.standings) == ("A/1", 3, stand({"": 1, "A": 70}))


@pytest.mark.parametrize("message", [Asks, Lost])
def test_of_others_a_server_below_tells_no_step_that_is_too_far_and_nothing_of_their_data(
    message: Any,
) -> None:
    """Else whoever comes back would go on there. The shards know that from what they have closed."""
    server, far = region(), Standing(2, 10**6, 2, 10**6, 2, 1 << 60, 1 << 60, b"\1", 1 << 60)
    more = ("gone",) if message is Lost else ()
    server.say(1, message("A/1", 3, {"": far, "A": far}, *more))
    (told,) = [each for each in server.written(9) if isinstance(each, message)]
    assert told.standings == {"": Standing(2, 2, 2), "A": far}


@pytest.mark.parametrize("losses", [Losses(), Losses("wait", 60.0)])
def test_where_nobody_goes_on_without_others_no_loss_is_told(losses: Losses) -> None:
    assert "which does not hang on it" in str(refused_by(region(losses), 1, Lost("A/1", 3, NOTHING, "gone")))


def test_a_worker_tells_of_nobody() -> None:
    server = local_server(topology_of([2, 1], losses=GO_ON))
    for message in (Lost("A/0", 1, NOTHING, ""), Asks("A/0", 1, NOTHING)):
        if not server.stopped:
            assert "A/0 tells of A/0, which does not hang on it" in str(refused_by(server, 1, message))


def test_nobody_is_told_twice_what_is_not_settled() -> None:
    """The server holds its rounds until a roster says who takes part."""
    server = local_server(topology_of([2, 1], losses=GO_ON))
    for _ in range(20):
        server.say(9, Beat(0, 0, 0.0), number=0)
        server.tick(1.0)
    lost = [message for message in server.written(9) if isinstance(message, Lost)]
    assert [message.node for message in lost] == ["A/0", "A/1"]
    server.say(1, push("A/0", turn=1))
    server.say(9, Roster(2, b"\x03", b"", stand({"": 0}), (("A/1", 1),)))  # overtakes the one before
    assert not server.noted("roster")
    server.say(9, Roster(1, b"\x01", b"", stand({"": 0}), (("A/0", 1),)))
    assert [fields["number"] for fields in server.noted("roster")] == [1, 2]
