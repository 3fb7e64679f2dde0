"""Nothing hangs, in real processes: each fault ends in progress, or in a typed error that names the node."""

from __future__ import annotations

import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from fault_seen import named_by
from real_runs import ALL_NODES, BOUND_S, Proxy, RealRun

pytestmark = pytest.mark.processes


# What a node does about silence, it does after so long: no load makes one silent for as long.
SILENT = ("lan.timeout_s=60", "wan.timeout_s=60")


@pytest.mark.faults
def test_a_node_that_is_killed_or_stopped_is_named_by_all_others(tmp_path: Path, runs: list[RealRun]) -> None:
    """All at the same time, since silence takes its time."""
    fates = [
        ("B/0", signal.SIGKILL),
        ("B", signal.SIGKILL),
        ("global/0", signal.SIGKILL),
        ("B/0", signal.SIGSTOP),
    ]
    for victim, number in fates:
        folder = tmp_path / f"{victim.replace('/', '.')}-{number}"
        folder.mkdir()
        runs.append(RealRun(folder, steps=1_000_000))
        runs[-1].start(ALL_NODES, *SILENT)
    for run, (victim, number) in zip(runs, fates, strict=True):
        run.until("A/0", "step 10\n")
        run.signal(victim, number)
    for run, (victim, _) in zip(runs, fates, strict=True):
        for name, (status, output) in run.wait(name for name in ALL_NODES if name != victim).items():
            assert status == 1, f"{name} ended with {status}:\n{output}"
            assert named_by(output) == [victim], output


def test_a_script_that_raises_ends_the_run_and_is_named(tmp_path: Path, runs: list[RealRun]) -> None:
    run = RealRun(tmp_path)
    runs.append(run)
    run.start(ALL_NODES[:-1])
    run.start(["B/0"], script=["raise"])
    ended = run.wait(ALL_NODES)
    assert "ValueError: no such batch" in ended["B/0"][1]
    for name in ("global/0", "A", "B", "A/0"):
        status, output = ended[name]
        assert status == 1
        assert "failed at B/0" in output, output
        assert "no such batch" in output


@pytest.mark.parametrize(
    ("word", "status", "reason"),
    [
        ("exit", 3, "its script ended with status 3"),
        ("term", -signal.SIGTERM, "it was asked to end (SIGTERM)"),
    ],
)
def test_a_worker_that_ends_amid_the_run_tells_why(
    tmp_path: Path, runs: list[RealRun], word: str, status: int, reason: str
) -> None:
    run = RealRun(tmp_path)
    runs.append(run)
    run.start(ALL_NODES[:-1])
    run.start(["B/0"], script=[word])
    ended = run.wait(ALL_NODES)
    assert ended["B/0"][0] == status, ended["B/0"][1]
    for name in ("global/0", "A", "B", "A/0"):
        assert ended[name][0] == 1
        assert f"the run failed at B/0: {reason}" in ended[name][1], ended[name][1]


def test_a_server_that_is_asked_to_end_is_named_by_all_others(tmp_path: Path, runs: list[RealRun]) -> None:
    run = RealRun(tmp_path, steps=1_000_000)
    runs.append(run)
    run.start()
    run.until("A/0", "step 5\n")
    run.signal("global/0", signal.SIGTERM)
    ended = run.wait(ALL_NODES)
    assert ended["global/0"][0] == 128 + signal.SIGTERM
    assert "geomx: global/0 was asked to end (SIGTERM), and so the run ends" in ended["global/0"][1]
    for name in ("A", "B", "A/0", "B/0"):
        assert ended[name][0] == 1
        assert "the run failed at global/0: it was asked to end (SIGTERM)" in ended[name][1]


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


def test_start_order_does_not_matter(tmp_path: Path, runs: list[RealRun]) -> None:
    """Workers may come before their servers, and those before the global one; usually it is the other way round."""
    run = RealRun(tmp_path, steps=5)
    runs.append(run)
    run.start(["B/0", "A/0", "B", "A"])
    for name in ("A", "B"):
        run.until(name, "listening")
    run.start(["global/0"])
    assert all(status == 0 for status, _ in run.wait(ALL_NODES).values()), run.report()


def test_a_cut_is_survived(tmp_path: Path, runs: list[RealRun]) -> None:
    """Whether it only holds what is sent, or ends the connections as well."""
    for name in ("calm", "held", "reset"):
        folder = tmp_path / name
        folder.mkdir()
        runs.append(RealRun(folder))
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
        assert all(status == 0 for status, _ in run.wait(ALL_NODES).values()), run.report()
        proxy.close()
        assert len(run.weights()) == 1
    assert len(set.union(*(run.weights() for run in runs))) == 1


@pytest.mark.parametrize(
    ("policy", "codec"),
    [
        ("fsa", "int8"),
        ("diloco every=6 fragments=2 overlap=2", "dense"),
        pytest.param("mixed", "bisparse ratio=0.1", marks=pytest.mark.faults),
        pytest.param("hfa k1=3 k2=2", "dense", marks=pytest.mark.faults),
        pytest.param("diloco every=6", "int4", marks=pytest.mark.faults),
        pytest.param("esync", "dense", marks=pytest.mark.faults),
        pytest.param("downpour n_push=2 n_fetch=2", "fp16", marks=pytest.mark.faults),
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
    ]
    run.start(ALL_NODES, *settings)
    run.until("B/0", "step 8\n")
    run.signal("B/0", signal.SIGKILL)
    run.processes["B/0"].join()
    run.start(["B/0"], *settings)
    run.until("B/0", "step 8\n")
    for name, (status, output) in run.wait(ALL_NODES).items():
        assert status == 0, f"{name} ended with {status}:\n{output}"
    assert "step 59" in run.printed("B/0")
    told = run.told(*settings)
    assert told["steps"] >= 60
    assert told["wan_bytes_up"] > 0
    assert told["parameters"] == 50 * 40 + 40 + 40 * 3 + 3
    assert [value for value in run.weights() if "nan" in value] == []
    assert run.weights()


RESUMING = """
import fcntl, sys, torch, geomx
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
with geomx.join() as run:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(80, 50)
    loader = DataLoader(TensorDataset(x, x[:, :3]), batch_size=5, shuffle=True)
    model, optimizer = run.attach(model, optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    run.resume(scheduler)
    print("begins at", run.step, flush=True)
    for epoch in range(run.epoch, 5):
        for inputs, targets in run.shard(loader, over="run"):
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
            print("step", run.step, flush=True)
            if run.step == 13:
                fcntl.flock(open(sys.argv[0] + ".gate"), fcntl.LOCK_SH)
    print("weights", sum(p.double().sum().item() for p in model.parameters()).hex())
"""


@pytest.mark.faults
def test_a_worker_that_is_restarted_when_it_was_lost_ends_with_the_others(
    tmp_path: Path, runs: list[RealRun]
) -> None:
    """In the middle of an epoch and of a schedule; the weights are those of a run without a restart."""
    settings = ["lan.timeout_s=15", "run.on_loss=wait", "run.wait_s=600", "limits.stall_s=1"]
    for name in ("calm", "shaken"):
        folder = tmp_path / name
        folder.mkdir()
        run = RealRun(folder)
        runs.append(run)
        (folder / "train.py").write_text(RESUMING)
        run.start(ALL_NODES, *settings)
        run.until("B/0", "step 13\n")
        if name == "shaken":
            run.until("A/0", "step 13\n")
            run.signal("B/0", signal.SIGKILL)
            run.processes["B/0"].join()
            run.until("B", "B/0 is lost; waiting up to")
        run.let_go()
        if name == "shaken":
            run.start(["B/0"], *settings)
            run.until("B/0", "begins at 13\n")
        for node, (status, output) in run.wait(ALL_NODES).items():
            assert status == 0, f"{node} ended with {status}:\n{output}"
        assert "step 40\n" in run.printed("B/0")
    calm, shaken = (run.weights() for run in runs)
    assert len(calm) == 1
    assert shaken == calm


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
