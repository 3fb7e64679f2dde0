"""What a training loop and its node's thread wait for."""

from __future__ import annotations

import threading

from geomx.drive.threads import ThreadPort
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
