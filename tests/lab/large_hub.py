"""A model of a gigabyte, a link of 100 ms there and back, and the global server killed in the middle of a round.

    python tests/lab/large_hub.py [--mb 1000] [--rate 1000] [--delay 50]

Needs root. A worker in a site of a lab trains on a global server in another one, which has a store; once undisturbed,
once killed with -9 while the contribution to the third step is on its way. Told are the phases of the recovery in
seconds since the kill, and whether the weights are the same bits.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
sys.path.append(str(Path(__file__).parents[1] / "end_to_end"))

from real_runs import RealRun  # noqa: E402

from geomx.observe.records import RecordFiles  # noqa: E402
from lab import Lab  # noqa: E402
from lab.describe import describe  # noqa: E402

STEPS = 4
SCRIPT = """
import sys, torch, geomx
torch.set_num_threads(1)
run = geomx.join()
torch.manual_seed(0)
wide = {elements} // 4 // 1024
model = torch.nn.ModuleList([torch.nn.Linear(1024, wide, bias=False) for _ in range(4)])
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
for step in range({steps}):
    run.weight(1)
    x = torch.full((1, 1024), 0.01 * (step + 1))
    loss = sum(layer(x).square().mean() for layer in model)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("step", step, flush=True)
run.wait()
print("weights", sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
run.close()
"""
SETTINGS = (
    "run.on_loss=wait",
    "run.wait_s=300",
    "limits.start_s=300",
    "wan.timeout_s=30",
    "limits.stall_s=120",
)


class HubRun(RealRun):
    """A worker, its local server and a global server, in the sites of a lab."""

    def __init__(self, lab: Lab, folder: Path, elements: int) -> None:
        self._lab = lab
        super().__init__(folder, STEPS, workers=(1,))
        (folder / "train.py").write_text(SCRIPT.format(elements=elements, steps=STEPS))
        secret = folder / "secret"
        self.settings = (*SETTINGS, f"run.secret_file={secret}", f"store.url=file://{folder}/store")

    def address(self, server: str) -> str:
        return f"{self._lab.address('hub') if server in self.shards else '127.0.0.1'}:{self.ports[server]}"

    def _namespace(self, name: str) -> str:
        return self._lab.namespace("hub" if name in self.shards else "A")


def trained(lab: Lab, folder: Path, elements: int, kills: bool) -> str:
    """What the weights come to; with a kill, the phases of the recovery are printed."""
    run = HubRun(lab, folder, elements)
    with closing(run):
        run.start(run.nodes, *run.settings)
        run.until("A/0", "step 1\n")
        steps = [at for at, line in run.outputs["A/0"] if line.startswith("step ")]
        if kills:
            time.sleep((steps[1] - steps[0]) / 4)  # the contribution to the third step is on its way
            wall, struck = time.time(), time.monotonic()
            run.signal("global/0", signal.SIGKILL)
            run.processes["global/0"].join()
            run.start(["global/0"], *run.settings)
        run.end_well()
        steps = [at for at, line in run.outputs["A/0"] if line.startswith("step ")]
        print("  steps after", " ".join(f"{b - a:.1f}" for a, b in pairwise(steps)), "s")
        if kills:
            _tell(run, wall, struck)
        (weights,) = run.weights()
        return weights


def _tell(run: HubRun, wall: float, struck: float) -> None:
    by_node = [record for record in RecordFiles(run.records).new() if record.node in ("global/0", "A")]
    offset = wall - struck
    for name, node, words in (
        ("away", "A", "the party has noticed"),
        (
            "restored",
            "global/0",
            "imports are there, the log is read (of which reading took {seconds:.1f} s)",
        ),
        ("listening", "global/0", "it listens"),
        ("joined", "global/0", "the party has joined"),
        ("round", "global/0", "the round that was under way has closed"),
    ):
        later = [
            r
            for r in by_node
            if r.name == name and r.node == node and r.t > min(wall, struck) and not r.fields.get("again")
        ]
        since = [r.t - (wall if r.t > offset / 2 else struck) for r in later]
        found = next(((s, r) for s, r in zip(since, later, strict=True) if s > 0), None)
        if found is not None:
            print(f"  {found[0]:6.2f} s  {words.format(**found[1].fields)}")
    steps = [at for at, line in run.outputs["A/0"] if line.startswith("step ") and at > struck]
    print(f"  {steps[0] - struck:6.2f} s  the worker has taken its step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=1000.0)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--delay", type=float, default=50.0)
    arguments = parser.parse_args()
    link = {"rate_mbps": arguments.rate, "delay_ms": arguments.delay, "queue_ms": 2 * arguments.delay}
    network = describe({"site": [{"name": "hub"}, {"name": "A"}], "default": link})
    found = {}
    with Lab(network) as lab:
        for name in ("calm", "killed"):
            print(name, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                found[name] = trained(lab, Path(folder), int(arguments.mb * 1e6 / 4), name == "killed")
    print("the same bits" if len(set(found.values())) == 1 else f"DIFFERENT: {found}")


if __name__ == "__main__":
    main()
