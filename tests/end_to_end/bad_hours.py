"""A long run on a bad day: workers, local servers and global servers die, links are cut, processes stand still.

    python tests/end_to_end/bad_hours.py [--minutes M] [--policy fsa|diloco] [--schedule FILE] [--seed N]

Two parties of four workers train on two global servers with a store, once undisturbed and once on a schedule. That is a
list of seconds at which somebody dies (`- at: 45.0`, `fault: kill...`, as in the files of torchft's storms), or of this
script; who it is, the seed says. Two cuts of a party's link and two processes that stand still come in between. Told
is, of the two runs: rounds, contributions that counted, the longest time to the next round behind a fault, what the
ledger says, and the loss on samples that nobody trains on, at equally many contributions. `out/bad_hours.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from real_runs import Proxy, RealRun  # noqa: E402

from geomx.observe.records import Record, RecordFiles  # noqa: E402

OUT = Path("out/bad_hours.json")
POLICIES = {
    "fsa": ("wan.codec_up=int4", "wan.codec_down=int4"),
    "diloco": ("sync.policy=diloco every=10 lr=0.7 momentum=0.9",),
}
OWN = (
    "run.on_loss=continue", "run.ledger=true", "run.wait_s=120", "limits.start_s=120", "store.every_s=20",
    "lan.heartbeat_s=0.5", "lan.timeout_s=4", "wan.heartbeat_s=0.5", "wan.timeout_s=4",
)  # fmt: skip
AWAY_S, CUT_S, STOPPED_S = 1.0, 15.0, 20.0
SCRIPT = """
import os, sys, time, torch, geomx
torch.set_num_threads(1)
run = geomx.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.02))
teacher = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
torch.manual_seed(1)
for parameter in teacher.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
held_out = torch.randn(2048, 32)
target = teacher(held_out).detach()
generator = torch.Generator().manual_seed(1000 + run.workers.index(run.name) + os.getpid())

def batches():
    while not os.path.exists(sys.argv[0] + ".over"):
        x = torch.randn(16, 32, generator=generator)
        yield x, teacher(x).detach()

for step, (x, y) in enumerate(run.shard(batches(), over="run")):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.08)
    if run.ledger is not None and step % 10 == 9:
        with torch.no_grad():
            print("loss", int(run.ledger.sum()), (model(held_out) - target).square().mean().item(), flush=True)
run.close()
print("closed", flush=True)
"""


def played(
    folder: Path, policy: str, seconds: float, faults: Sequence[tuple[float, str]], seed: int
) -> dict[str, Any]:
    """One run. `faults`: when, and what: `kill`, `stop`, `cut`."""
    run, chance = RealRun(folder, workers=(4, 4), shards=2), random.Random(f"bad hours {seed}")
    (folder / "train.py").write_text(SCRIPT)
    settings = (*OWN, *POLICIES[policy], f"store.url=file://{folder}/store")
    with closing(run):
        links = [Proxy(run.ports[shard]) for shard in run.shards]
        dialled = [f"127.0.0.1:{link.port}" for link in links]
        behind = (*settings, f"global.addresses={json.dumps(dialled)}")  # party B's server
        of = {node: behind if node == "B" else settings for node in run.nodes}
        for node in run.nodes:
            run.start([node], *of[node])
        run.until("A/0", "loss ")
        began, struck = time.monotonic(), []
        for at, fault in faults:
            time.sleep(max(0.0, began + at - time.monotonic()))
            whom = chance.choice([*run.workers, *run.servers]) if fault != "cut" else "B"
            since = time.monotonic()
            print(f"  {since - began:6.1f} s  {fault} {whom}", flush=True)
            if fault == "kill":
                run.signal(whom, signal.SIGKILL)
                run.processes[whom].join()
                time.sleep(AWAY_S)
                run.start([whom], *of[whom])
            elif fault == "stop":
                run.signal(whom, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                run.signal(whom, signal.SIGCONT)
            else:
                for link in links:
                    link.cut()
                time.sleep(CUT_S)
                for link in links:
                    link.heal()
            struck.append((since, fault, whom))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        ended = time.monotonic()
        run.end_data()
        statuses = {node: status for node, (status, _) in run.wait(run.nodes, 180.0).items()}
        for link in links:
            link.close()
        return seen(run, began, ended, struck) | {"ended_with": {n: s for n, s in statuses.items() if s}}


def seen(
    run: RealRun, began: float, ended: float, struck: Sequence[tuple[float, str, str]]
) -> dict[str, Any]:
    """What came of it."""
    records = RecordFiles(run.records).new()
    finished = {record.node: record.fields for record in records if record.name == "finished"}
    ledger = finished[next(iter(finished))]["ledger"]
    gave = {name: fields["contributions"] for name, fields in finished.items()}
    with_it = {
        name: len({(r.fields["cohort"], r.fields["turn"]) for r in counting if name not in _absent(r)})
        for counting in [[r for r in records if r.name == "round" and r.node == "global/0"]]
        for name in gave
    }
    always = [name for name in gave if name not in run.former and with_it[name] == max(with_it.values())]
    wrong = [name for name in always if gave[name] != ledger[run.workers.index(name)]]
    unlike = {name: ledger[run.workers.index(name)] - with_it[name] for name in gave}
    moments = sorted(
        at
        for worker in run.workers
        for at, line in (*run.former.get(worker, ()), *run.outputs[worker])
        if line.startswith("loss ")
    )
    losses = sorted(
        (int(count), float(loss))
        for at, line in run.outputs["A/0"] + run.former.get("A/0", [])
        if (found := re.match(r"loss (\d+) (\S+)", line)) and (count := found[1]) and (loss := found[2])
    )
    rounds = {
        record.fields["turn"]
        for record in records
        if record.name == "round" and record.fields["kind"] == "gradient"
    }
    waits = []
    for since, fault, whom in struck:
        pauses = [b - since for a, b in pairwise(moments) if b > since]
        waits.append((round(pauses[0], 2) if pauses else None, fault, whom))
    return {
        "seconds": round(ended - began, 1), "rounds": len(rounds), "counted": sum(ledger),
        "ledger_wrong": wrong, "always_there": always, "ledger_less_rounds": {n: d for n, d in unlike.items() if d},
        "ledgers": len({str(fields["ledger"]) for fields in finished.values()}),
        "weights": len({fields["parameters_sha256"] for fields in finished.values()}),
        "until_a_loss_is_printed": waits, "losses": losses,
    }  # fmt: skip


def _absent(record: Record) -> list[str]:
    return str(record.fields.get("absent", "")).split(", ")


def loss_at(losses: Sequence[tuple[int, float]], counted: int) -> float:
    """Around so many contributions: a mean of the nearest."""
    near = sorted(losses, key=lambda each: abs(each[0] - counted))[:5]
    return sum(loss for _, loss in near) / len(near)


def schedule(path: str, seconds: float, seed: int) -> list[tuple[float, str]]:
    """Kills of the file, stretched to the run's length, or about one a minute; two cuts and two stops."""
    chance = random.Random(seed)
    if path:
        times = [
            float(at)
            for at, fault in re.findall(r"- at: ([\d.]+)\s+fault: (\w+)", Path(path).read_text())
            if fault.startswith("kill")
        ]
        kills = [at * seconds / 360.0 for at in times if at < 350.0]
    else:
        kills = [chance.uniform(5.0, seconds - 40.0) for _ in range(int(seconds / 60))]
    more = [
        (seconds * share, fault)
        for share, fault in ((0.2, "cut"), (0.4, "stop"), (0.65, "cut"), (0.8, "stop"))
    ]
    return sorted([*((at, "kill") for at in kills), *more])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--policy", choices=POLICIES, default="diloco")
    parser.add_argument("--schedule", default="")
    parser.add_argument("--seed", type=int, default=2)
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    faults = schedule(arguments.schedule, seconds, arguments.seed)
    found = {}
    for name, given in (("calm", []), ("bad", faults)):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = played(Path(folder), arguments.policy, seconds, given, arguments.seed)
    calm, bad = found["calm"], found["bad"]
    counted = min(calm["counted"], bad["counted"])
    losses = [loss_at(each["losses"], counted) for each in (calm, bad)]
    told = {
        "rounds": bad["rounds"] / calm["rounds"], "contributions": bad["counted"] / calm["counted"],
        "ledger_is_exact": not bad["ledger_wrong"] and bad["ledgers"] == 1, "weights": bad["weights"],
        "loss": losses, "loss_differs_by": losses[1] / losses[0] - 1.0, "waits": bad["until_a_loss_is_printed"],
        "ended_with": bad["ended_with"],
    }  # fmt: skip
    for key, value in told.items():
        print(f"{key:18} {value}")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"told": told, **found}, indent=1))


if __name__ == "__main__":
    main()
