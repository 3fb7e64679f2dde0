"""Nothing hangs, in real processes: each fault ends in progress, or in a typed error that names the node."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from real_runs import ALL_NODES, BOUND_S, Proxy, RealRun

pytestmark = pytest.mark.processes
Real = Callable[..., RealRun]


@pytest.mark.parametrize(
    ("who", "word", "status", "reason"),
    [
        ("B/0", "raise", 1, "ValueError: no such batch"),
        ("B/0", "exit", 3, "its script ended with status 3"),
        ("B/0", "term", -signal.SIGTERM, "it was asked to end (SIGTERM)"),
        ("global/0", "", 128 + signal.SIGTERM, "it was asked to end (SIGTERM)"),
    ],
)
def test_a_node_that_ends_amid_the_run_tells_why(
    real: Real, who: str, word: str, status: int, reason: str
) -> None:
    run = real(steps=1_000_000)
    run.start(ALL_NODES[:-1])
    run.start(["B/0"], script=[word])
    if not word:
        run.until("A/0", "step 5\n")
        run.signal(who, signal.SIGTERM)
    ended = run.wait(ALL_NODES)
    its_status, output = ended.pop(who)
    assert its_status == status, output
    assert word != "raise" or reason in output
    assert word or "geomx: global/0 was asked to end (SIGTERM), and so the run ends" in output
    for each, output in ended.values():
        assert each == 1
        assert f"the run failed at {who}: {reason}" in output


def test_another_description_is_refused_and_the_order_of_starts_does_not_matter(real: Real) -> None:
    """Workers may come before their servers, and those before the global one; usually it is the other way round."""
    run = real(steps=5)
    run.start(["B/0"], "sync.weight=equal")
    run.start(["A/0", "B", "A"])
    status, output = run.wait(["B/0"])["B/0"]
    assert status != 0
    assert "sync.weight" in output
    assert "Traceback" not in output.split("geomx:")[-1]
    run.start(["B/0"])  # the right one may still come
    for name in ("A", "B"):
        run.until(name, "listening")
    run.start(["global/0"])
    run.end_well()


def test_a_cut_is_survived(real: Real) -> None:
    """Whether it only holds what is sent, or ends the connections as well."""
    runs = [real(name) for name in ("calm", "held", "reset")]
    proxies = [Proxy(run.ports["global/0"]) for run in runs]
    for run, proxy in zip(runs, proxies, strict=True):
        run.start(ALL_NODES, f'global.addresses=["127.0.0.1:{proxy.port}"]', script=["gate=step 10"])
    runs[0].let_go()
    for run, proxy in zip(runs[1:], proxies[1:], strict=True):
        run.until("A/0", "step 10\n")
        proxy.cut(reset=run.folder.name == "reset")
        run.let_go()
        assert proxy.has_held.wait(BOUND_S)
        proxy.heal()
    for run, proxy in zip(runs, proxies, strict=True):
        run.end_well()
        proxy.close()
        assert len(run.weights()) == 1
    assert len(set.union(*(run.weights() for run in runs))) == 1


def test_a_worker_that_is_killed_and_restarted_catches_up(real: Real) -> None:
    run = real(steps=60)
    policy = "sync.policy=diloco every=6 fragments=2 overlap=2"
    settings = [policy, "wan.codec_up=int8", "wan.codec_down=int8"]
    run.start(ALL_NODES, *settings)
    run.until("B/0", "step 8\n")
    run.signal("B/0", signal.SIGKILL)
    run.processes["B/0"].join()
    run.start(["B/0"], *settings)
    run.end_well()
    assert "step 59" in run.printed("B/0")
    told = run.told(*settings)
    assert told["steps"] >= 60
    assert told["wan_bytes_up"] > 0
    assert told["parameters"] == 50 * 40 + 40 + 40 * 3 + 3
    assert run.weights()
    assert not any("nan" in value for value in run.weights())


def test_strangers_at_the_door_do_no_harm(real: Real) -> None:
    run = real(steps=30)
    run.start()
    run.until("A/0", "step 5\n")
    held = [greet_rudely(port, kind) for port in run.ports.values() for kind in range(5)]
    run.end_well()
    for sock in held:
        sock.close()
    assert len(run.weights()) == 1


def greet_rudely(port: int, kind: int) -> socket.socket:
    """Random bytes; a length of 2^62; half a frame and then nothing; a full buffer of zeros; silence."""
    sock = socket.create_connection(("127.0.0.1", port))
    prefix = struct.pack("<QIHH", 1, 0xFFFFFFFF, 0xFFFF, 0)
    push = b"\x95\xa4Push" + struct.pack(">BQ", 0xCF, 1 << 62)
    huge = struct.pack("<QIHH", 1, len(push), len(push), 0) + push
    rude = [os.urandom(4096), huge, prefix[:9], bytes(1 << 16), b""]
    with suppress(OSError):
        sock.sendall(rude[kind])
    return sock
