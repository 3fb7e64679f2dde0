"""Nothing hangs, in real processes: each fault ends in progress, or in a typed error that names the node."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from real_runs import ALL_NODES, Proxy, RealRun

pytestmark = pytest.mark.processes


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[RealRun]]:
    started: list[RealRun] = []
    yield started
    for run in started:
        run.close()


@pytest.mark.parametrize("victim", ["B/0", "B", "global/0"])
def test_a_killed_node_is_named_by_all_others(tmp_path: Path, runs: list[RealRun], victim: str) -> None:
    run = RealRun(tmp_path, steps=100_000)
    runs.append(run)
    run.start()
    run.until("A/0", "step 10\n")
    run.signal(victim, signal.SIGKILL)
    others = [name for name in ALL_NODES if name != victim]
    for name, (status, output) in run.wait(others).items():
        assert status == 1, f"{name} ended with {status}:\n{output}"
        assert any(
            f"{victim} is lost" in line or f"failed at {victim}" in line for line in output.splitlines()
        ), output


def test_a_stopped_worker_is_named_by_all_others(tmp_path: Path, runs: list[RealRun]) -> None:
    run = RealRun(tmp_path, steps=100_000)
    runs.append(run)
    run.start()
    run.until("A/0", "step 10\n")
    run.signal("B/0", signal.SIGSTOP)
    for name, (status, output) in run.wait(["global/0", "A", "B", "A/0"]).items():
        assert status == 1, f"{name} ended with {status}:\n{output}"
        assert "B/0" in output.strip().splitlines()[-1], output


def test_a_script_that_raises_ends_the_run_and_is_named(tmp_path: Path, runs: list[RealRun]) -> None:
    run = RealRun(tmp_path)
    runs.append(run)
    run.start(script=["raise"])
    ended = run.wait(ALL_NODES)
    assert "ValueError: no such batch" in ended["B/0"][1]
    for name in ("global/0", "A", "B", "A/0"):
        status, output = ended[name]
        assert status == 1
        assert "failed at B/0" in output, output
        assert "no such batch" in output


def test_another_description_is_refused_and_harms_nobody(tmp_path: Path, runs: list[RealRun]) -> None:
    run = RealRun(tmp_path)
    runs.append(run)
    run.start(["global/0", "A", "B", "A/0"])
    run.start(["B/0"], "sync.weight=equal")
    status, output = run.wait(["B/0"])["B/0"]
    assert status != 0
    assert "sync.weight" in output
    assert "Traceback" not in output.split("geomx:")[-1]
    run.start(["B/0"])  # the right one may still come
    assert all(status == 0 for status, _ in run.wait(ALL_NODES).values()), run.report()


@pytest.mark.parametrize("last", ["global/0", "B", "A/0"])
def test_start_order_does_not_matter(tmp_path: Path, runs: list[RealRun], last: str) -> None:
    run = RealRun(tmp_path, steps=5)
    runs.append(run)
    run.start([name for name in ALL_NODES if name != last])
    run.until("A" if last != "A" else "B", "listens")
    run.start([last])
    assert all(status == 0 for status, _ in run.wait(ALL_NODES).values()), run.report()


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_of_five_seconds_is_survived(tmp_path: Path, runs: list[RealRun], reset: bool) -> None:
    calm = RealRun(tmp_path, steps=40)
    runs.append(calm)
    calm.start()
    calm.wait(ALL_NODES)

    folder = tmp_path / "shaken"
    folder.mkdir()
    shaken = RealRun(folder, steps=40, wan_through=1)
    proxy = Proxy(shaken.ports["global/0"])
    shaken.toml.write_text(shaken.toml.read_text().replace('"127.0.0.1:1"', f'"127.0.0.1:{proxy.port}"'))
    runs.append(shaken)
    shaken.start()
    shaken.until("A/0", "step 10\n")
    proxy.cut(reset)
    healed = threading.Timer(5.0, proxy.heal)
    healed.start()
    ended = shaken.wait(ALL_NODES)
    proxy.close()
    assert all(status == 0 for status, _ in ended.values()), shaken.report()
    assert len(shaken.weights()) == 1
    assert shaken.weights() == calm.weights()


@pytest.mark.parametrize(
    ("policy", "codec"),
    [
        ("fsa", "int8"),
        ("mixed", "bisparse ratio=0.1"),
        ("hfa k1=3 k2=2", "dense"),
        ("diloco every=6", "int4"),
        ("diloco every=6 fragments=2 overlap=2", "dense"),
        ("esync", "dense"),
        ("downpour n_push=2 n_fetch=2", "fp16"),
    ],
)
def test_a_worker_that_is_killed_and_restarted_catches_up(
    tmp_path: Path, runs: list[RealRun], policy: str, codec: str
) -> None:
    run = RealRun(tmp_path, steps=60)
    runs.append(run)
    settings = [
        f"sync.policy={policy}",
        f"wan.codec_up={codec}",
        f"wan.codec_down={codec}",
        "lan.timeout_s=60",
    ]
    run.start(ALL_NODES, *settings)
    run.until("B/0", "step 8\n")
    run.signal("B/0", signal.SIGKILL)
    run.processes["B/0"].join()
    run.start(["B/0"], *settings)
    run.until("B/0", "step 8\n")
    for name, (status, output) in run.wait(ALL_NODES, within_s=120.0).items():
        assert status == 0, f"{name} ended with {status}:\n{output}"
    assert "step 59" in "".join(run.outputs["B/0"])
    told = run.told(*settings)
    assert told["steps"] >= 60
    assert told["wan_bytes_up"] > 0
    assert told["parameters"] == 50 * 40 + 40 + 40 * 3 + 3
    assert all("nan" not in value for value in run.weights())


def test_strangers_at_the_door_do_no_harm(tmp_path: Path, runs: list[RealRun]) -> None:
    run = RealRun(tmp_path, steps=60)
    runs.append(run)
    run.start()
    run.until("A/0", "step 5\n")
    held = [greet_rudely(port, kind) for port in run.ports.values() for kind in range(5)]
    ended = run.wait(ALL_NODES)
    for sock in held:
        sock.close()
    assert all(status == 0 for status, _ in ended.values()), run.report()
    assert len(run.weights()) == 1


def greet_rudely(port: int, kind: int) -> socket.socket:
    """Random bytes; a length of 2^62; half a frame and then nothing; a full buffer of zeros; silence."""
    sock = socket.create_connection(("127.0.0.1", port))
    prefix = struct.pack("<QIHH", 1, 0xFFFFFFFF, 0xFFFF, 0)
    push = b"\x95\xa4Push" + struct.pack(">BQ", 0xCF, 1 << 62)
    rude = [
        os.urandom(4096),
        struct.pack("<QIHH", 1, len(push), len(push), 0) + push,
        prefix[:9],
        bytes(1 << 16),
        b"",
    ]
    with suppress(OSError):
        sock.sendall(rude[kind])
    return sock
