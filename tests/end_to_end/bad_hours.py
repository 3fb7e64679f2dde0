"""A long run on a bad day: workers, local servers and global servers die, links are cut, processes stand still.

    python tests/end_to_end/bad_hours.py [--minutes M] [--policy fsa|diloco] [--schedule FILE] [--seed N]

Two parties of four workers train on two global servers with a store: at the same time undisturbed, undisturbed on other
samples, and on a schedule. That is a list of seconds at which somebody dies (`- at: 45.0`, `fault: kill...`, as in the
files of torchft's storms), or of this script; who it is, the seed says. Two cuts of a party's link and two processes
that stand still come in between. Told is: rounds and contributions that counted, in relation to the first run; of the
contributions that were trained, which share counted; the time to the next round behind each fault; what the ledger
says; and the loss on samples that nobody trains on, at equally many contributions, of which the second run says how
much it differs by chance. `out/bad_hours.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
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
    "lan.heartbeat_s=0.3", "lan.timeout_s=2", "wan.heartbeat_s=0.3", "wan.timeout_s=3",
)  # fmt: skip
RUNS = "calm", "other", "bad"
TOLD = re.compile(r"trained (\d+) loss (\d+) (\S+)")
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
held_out = torch.randn(4096, 32)
target = teacher(held_out).detach()
target += 0.3 * torch.randn(target.shape)
life = sys.argv[0] + "." + run.name.replace("/", ".")
lives = os.path.getsize(life) if os.path.exists(life) else 0
open(life, "a").write("1")
seed = int(open(sys.argv[0] + ".seed").read())
generator = torch.Generator().manual_seed(1000 * seed + 100 * lives + run.workers.index(run.name))

def batches():
    while not os.path.exists(sys.argv[0] + ".over"):
        x = torch.randn(16, 32, generator=generator)
        y = teacher(x).detach()
        yield x, y + 0.3 * torch.randn(y.shape, generator=generator)

for step, (x, y) in enumerate(run.shard(batches(), over="run")):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.15)
    if step % 10 == 9:
        with torch.no_grad():
            far = (model(held_out) - target).square().mean().item()
        print("trained", step + 1, "loss", int(run.ledger.sum()), far, flush=True)
run.close()
print("closed", flush=True)
"""


def played(
    folder: Path, policy: str, seconds: float, faults: Sequence[tuple[float, str]], seed: int, data: int
) -> dict[str, Any]:
    """One run. `faults`: when, and what: `kill`, `stop`, `cut`."""
    run, chance = RealRun(folder, workers=(4, 4), shards=2), random.Random(f"bad hours {seed}")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "train.py.seed").write_text(str(data))
    settings = (*OWN, *POLICIES[policy], f"store.url=file://{folder}/store")
    with closing(run):
        links = [Proxy(run.ports[shard]) for shard in run.shards]
        dialled = [f"127.0.0.1:{link.port}" for link in links]
        behind = (*settings, f"global.addresses={json.dumps(dialled)}")  # party B's server
        of = {node: behind if node == "B" else settings for node in run.nodes}
        for node in run.nodes:
            run.start([node], *of[node])
        run.until("A/0", "trained 10")
        began, struck = time.monotonic(), []
        for at, fault in faults:
            time.sleep(max(0.0, began + at - time.monotonic()))
            whom = chance.choice([*run.workers, *run.servers]) if fault != "cut" else "B"
            since = time.monotonic()
            print(f"  {since - began:6.1f} s  {fault} {whom}", file=sys.stderr, flush=True)
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
    counting = [r for r in records if r.name == "round" and r.node == "global/0"]
    every = {(r.fields["cohort"], r.fields["turn"]) for r in counting}
    without = {
        name: {(r.fields["cohort"], r.fields["turn"]) for r in counting if name in _absent(r)}
        for name in gave
    }
    with_it = {name: len(every - missed) for name, missed in without.items()}
    always = [name for name in gave if not (run.former.get(name) or without[name])]
    wrong = [name for name in always if gave[name] != ledger[run.workers.index(name)]]
    unlike = {name: ledger[run.workers.index(name)] - with_it[name] for name in gave}
    lines = {
        name: [text for _, text in (*run.former.get(name, ()), *run.outputs[name])] for name in run.workers
    }
    told = {name: [found for text in lines[name] if (found := TOLD.match(text))] for name in run.workers}
    trained = [
        int(a[1])
        for of in told.values()
        for a, b in zip(of, [*of[1:], None], strict=True)
        if b is None or int(b[1]) < int(a[1])
    ]
    losses = sorted((int(found[2]), float(found[3])) for found in told["A/0"])
    rounds: dict[int, float] = {}  # when each was over on both servers
    for record in records:
        if record.name == "round" and record.fields["kind"] == "gradient":
            turn = record.fields["turn"]
            rounds[turn] = max(rounds.get(turn, 0.0), record.t)
    times = sorted(rounds.values())
    waits = []
    for place, (since, fault, whom) in enumerate(struck):
        until = min([since + 40.0, *(at for at, _, _ in struck[place + 1 :])])
        gaps = [min(b, until) - max(a, since) for a, b in pairwise(times) if b > since and a < until]
        waits.append((round(max(gaps), 2), fault, whom))
    return {
        "seconds": round(ended - began, 1), "rounds": len(rounds), "counted": sum(ledger),
        "trained_steps": sum(trained),
        "ledger_wrong": wrong, "always_there": always, "ledger_less_rounds": {n: d for n, d in unlike.items() if d},
        "ledgers": len({str(fields["ledger"]) for fields in finished.values()}),
        "weights": len({fields["parameters_sha256"] for fields in finished.values()}),
        "usual_s": round(statistics.median(b - a for a, b in pairwise(times)), 2), "longest_waits": waits,
        "losses": losses,
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
    parser.add_argument("--one", choices=RUNS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    if arguments.one:
        faults = schedule(arguments.schedule, seconds, arguments.seed) if arguments.one == "bad" else []
        with tempfile.TemporaryDirectory() as folder:
            data = 2 if arguments.one == "other" else 1
            found = played(Path(folder), arguments.policy, seconds, faults, arguments.seed, data)
        print(json.dumps(found))
        return
    of = {
        name: subprocess.Popen([sys.executable, *sys.argv, "--one", name], stdout=subprocess.PIPE)
        for name in RUNS
    }
    runs = {name: json.loads(process.communicate()[0].splitlines()[-1]) for name, process in of.items()}
    calm, other, bad = (runs[name] for name in RUNS)
    counted = min(each["counted"] for each in runs.values())
    losses = [loss_at(each["losses"], counted) for each in (calm, other, bad)]
    every = 10 if arguments.policy == "diloco" else 1
    told = {
        "rounds": bad["rounds"] / calm["rounds"], "contributions": bad["counted"] / calm["counted"],
        "of_those_trained": bad["counted"] * every / bad["trained_steps"],
        "ledger_is_exact": not bad["ledger_wrong"] and bad["ledgers"] == 1 and not bad["ledger_less_rounds"],
        "weights": bad["weights"], "losses": losses, "by_chance": losses[1] / losses[0] - 1.0,
        "by_faults": losses[2] / losses[0] - 1.0, "usual_s": bad["usual_s"], "longest_waits": bad["longest_waits"],
        "ended_with": bad["ended_with"],
    }  # fmt: skip
    for key, value in told.items():
        print(f"{key:18} {value}")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"told": told, **runs}, indent=1))


if __name__ == "__main__":
    main()
