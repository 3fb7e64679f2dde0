"""What a training loop and its node's thread wait for."""

from __future__ import annotations

import threading

from geomx.drive.threads import SoloThread, ThreadPort
from geomx.node.contract import Called
from geomx.observe.records import Recorder


def test_a_loop_that_has_left_waits_for_its_nodes_last_word() -> None:
    port = ThreadPort("A/0", Recorder(None, "A/0"), stall_s=30.0)
    order, returned = list[str](), threading.Event()

    def node() -> None:
        while not (port._changed._waiters or returned.is_set()):  # type: ignore[attr-defined]
            pass
        order.append("the node ends")
        port.ended(None)

    thread = threading.Thread(target=node)
    thread.start()
    port.end()
    order.append("the loop goes on")
    returned.set()
    thread.join()
    assert order == ["the node ends", "the loop goes on"]


def test_a_node_that_has_ended_may_still_be_told_of_its_loop() -> None:
    """Which waits until it hears of that end, and a moment longer."""
    thread = SoloThread(Recorder(None, "solo/0"))
    thread.start()
    thread.port.call("fail", "enough")
    thread.stop()
    call = thread.port._call
    assert call is not None
    call(Called("waits", (False,)))
