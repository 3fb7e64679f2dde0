"""What becomes of a model? The same training with different settings: real nodes and gradients, on a virtual clock.

    python benchmarks/virtual.py adam                       which setting for which model: hours on two cores
    python benchmarks/virtual.py adam --only dense slow-link --model gpt-10m --steps 1000
    python benchmarks/virtual.py codec_accuracy --missing   what codecs cost in accuracy: the rest, after it was stopped
    python benchmarks/virtual.py lossy_accuracy             what channels that may lose cost in accuracy
    python benchmarks/virtual.py algorithms --seed 0        which sync policy where parties are unequal
    python benchmarks/virtual.py adam --table               the rows that there are, means over seeds

`virtual.toml` has the suites. A virtual clock's times do not depend on the machine, and bytes are counted as they would
leave for the network. Leaves rows in out/bench/SUITE.jsonl; docs/data has those that pages were made of: copied to
out/bench, `--missing` adds to them.
"""

import copy
import functools
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from benchmarks import sweep, training, workloads
from benchmarks.cells import Cell
from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs.spec import slices_wanted
from geomx.errors import NotFinite
from geomx.node.factory import make_node
from geomx.node.root import Root
from geomx.node.topology import Edge, Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.sync.contract import GradientStep
from geomx.train import LiveRun, Settings

SUITES = sweep.table_of("virtual")
RATES = {"AdamW": 2e-3, "Adam": training.RATE, "SGD": training.SGD_RATE, "Adagrad": 0.01}  # the usual ones
SAMPLES = {"gpt": 32, "cnn": 128}  # of all workers together, in a step
WARM_UP, LAST_RATE, CLIP = 10, 0.1, 1.0  # of AdamW's schedule: steps, and a share of the rate
JITTER, LOOK_EVERY = 0.1, 25  # of a step's time; steps
UNSEEN = {"rate_mbps": 10_000.0, "delay_ms": 0.1}  # a network whose times are not reported
DEFAULTS = {"policy": "fsa", "up": "dense", "down": "dense", "channel": "tcp", "compensation": "", "lr": 1.0}
DEFAULTS |= {"targets": [], "step_s": 0.0, "slower": {}, "network": UNSEEN, "links": {}}


def optimizer_of(told: sweep.Row, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Of that kind; SGD with momentum, but where the codec has it (Deep Gradient Compression)."""
    kind, rate = told["optimizer"], told["lr"] * RATES[told["optimizer"]]
    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.0 if "momentum" in told["up"] else 0.9)
    if kind != "AdamW":
        return getattr(torch.optim, kind)(model.parameters(), lr=rate)
    decays = {True: 0.1, False: 0.0}  # matrices, and the rest
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() >= 2) is is_matrix], "weight_decay": decay}
        for is_matrix, decay in decays.items()
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def schedule_of(told: sweep.Row, optimizer: Any, steps: int) -> LRScheduler:
    """The language models warm up, then fall to a tenth; the CNNs fall to 0."""
    if told["optimizer"] != "AdamW":
        return CosineAnnealingLR(optimizer, steps)
    cosine = CosineAnnealingLR(optimizer, steps - WARM_UP, LAST_RATE * RATES["AdamW"])
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, WARM_UP), cosine], [WARM_UP])


class World:
    """One run on the simulator. `found`: what has come of it so far, for its row."""

    def __init__(self, told: sweep.Row) -> None:
        self.told, self.found = told, dict[str, Any]()
        self.parties, self.workers = map(int, told["shape"].split("x"))
        self.steps = told.get("steps") or told.get("rounds") or told["most_steps"]
        batch = told.get("batch") or SAMPLES[told["model"][:3]] // (self.parties * self.workers)
        shape = {"parties": self.parties, "workers": self.workers, "batch": batch}
        self.cell = Cell("geomx", "", told["model"], 0, "", **shape)
        names = {site: [f"{site}/{rank}" for rank in range(self.workers)] for site in self.cell.sites}
        wan, of_policy = Edge(told["up"], told["down"], channel=told["channel"]), ("policy", "compensation")
        self.plan = Topology.of_parties("virtual", names, wan=wan, **{key: told[key] for key in of_policy})
        self.rule = policies.make(told["policy"])
        self.simulator = Simulator(told["seed"], Network(**told["network"], loss=told.get("loss", 0.0)))
        for party, link in told["links"].items():
            self.simulator.link(party, "global/0", Network(**link))
        self.roots: list[Root] = []

    def run(self) -> None:
        """Until all workers have ended, or all targets are reached. Raises what a worker has raised."""
        torch.set_num_threads(1)
        reuse_freed_blocks()
        nodes = [make_node(self.plan, name) for name in self.plan.tree.nodes]
        for node in nodes:
            self.simulator.add(node)
        self.roots = [node.sink for node in nodes if isinstance(getattr(node, "sink", None), Root)]
        programs = [self.simulator.program(worker, self.work) for worker in self.plan.tree.workers]
        self.simulator.run(while_=self.goes_on)
        for program in programs:
            if program.error is not None and self.goes_on():
                raise program.error

    def goes_on(self) -> bool:
        targets = self.told["targets"]
        return not targets or any(f"to_{target:.0%}_s" not in self.found for target in targets)

    def work(self, program: Program) -> None:
        """What a worker does."""
        torch.set_num_threads(1)
        told, slices = self.told, slices_wanted(self.told["up"], self.told["down"])
        settings = Settings(weight="equal", seed=told["seed"], policy=self.rule, slices=slices)
        keys = {"tree": self.plan.tree, "settings": settings, "clock": lambda: program.now}
        with LiveRun(program, name=program.name, **keys) as run:
            task = workloads.task(training.Job(self.cell, program.name), told["seed"])
            self.found["parameters"] = sum(values.numel() for values in task.model.parameters())
            self.train(run, task, program)
            if run.is_first:
                judged = {"accuracy": task.accuracy, "validation_loss": task.validation_loss}
                self.found |= {key: judge() for key, judge in judged.items() if judge is not None}

    def train(self, run: LiveRun, task: workloads.Task, program: Program) -> None:
        told, shown = self.told, copy.deepcopy(task.model)
        chance, slower = random.Random(f"{told['seed']} {run.name}"), told["slower"].get(run.name, 1.0)
        clips, is_gradient = told["optimizer"] == "AdamW", self.rule.plans is GradientStep
        clip_norm = CLIP if clips and is_gradient else None
        model, optimizer = run.attach(task.model, optimizer_of(told, task.model), clip_norm=clip_norm)
        schedule = None if told["targets"] else schedule_of(told, optimizer, self.steps)
        for step in range(1, self.steps + 1):
            optimizer.zero_grad()
            loss = task.loss(model)
            if told["step_s"]:
                program.sleep(told["step_s"] * slower * (1.0 + JITTER * chance.uniform(-1.0, 1.0)))
            loss.backward()
            if clips and not is_gradient:
                torch.nn.utils.clip_grad_norm_(task.model.parameters(), CLIP)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            if told["targets"] and run.is_first and step % LOOK_EVERY == 0:
                self.look(shown, step)

    @torch.no_grad()
    def look(self, shown: torch.nn.Module, step: int) -> None:
        """Show the test images to the weights that the global servers have now, in no time."""
        tensors = dict(shown.named_parameters())
        for root in self.roots:
            for name, part, values in root.parts():
                tensors[name].view(-1)[part.start : part.stop] = values
        accuracy = workloads.accuracy_of(shown)
        self.found |= {"best": max(self.found.get("best", 0.0), accuracy), "steps": step}
        for target in self.told["targets"]:
            if accuracy >= target:
                self.found.setdefault(f"to_{target:.0%}_s", self.simulator.now)
                self.found.setdefault(f"to_{target:.0%}_wan_bytes", sum(self.wan_bytes()))

    def wan_bytes(self) -> tuple[float, float]:
        """What all parties have sent to the global servers, and what came back."""
        sent = self.simulator.sent_bytes
        ways = [(party, shard) for party in self.plan.tree.parties for shard in self.plan.tree.shards]
        return sum(sent(party, shard) for party, shard in ways), sum(sent(shard, p) for p, shard in ways)


def trained(suite: str, **point: Any) -> sweep.Row:
    """One run; its row. Bytes are a step and party; `fewer` beside dense ones, without the first weights."""
    started, table = time.monotonic(), SUITES[suite]
    scenario = table.get("scenarios", {}).get(point.get("scenario"), {})
    told = DEFAULTS | table.get("shared", {}) | scenario | table["of"][point[table["compares"]]] | point
    world = World(told)
    row = point | {"policy": told["policy"], "codec_up": told["up"], "codec_down": told["down"]}
    row |= {"channel": told["channel"], "optimizer": told["optimizer"]}
    try:
        world.run()
    except NotFinite:
        row["diverged"] = True
    if told["targets"]:
        names = [f"to_{target:.0%}_{what}" for target in told["targets"] for what in ("s", "wan_bytes")]
        return row | dict.fromkeys(names) | world.found | {"took_s": time.monotonic() - started}
    (up, down), first = world.wan_bytes(), 4 * world.found["parameters"]
    dense = first * world.parties * world.steps  # the first weights go up once, and down to each party
    row |= world.found | {"wan_bytes_up": up / world.steps / world.parties}
    row |= {"wan_bytes_down": down / world.steps / world.parties}
    row |= {"fewer_up": dense / (up - first), "fewer_down": dense / (down - first * world.parties)}
    return row | {"took_s": time.monotonic() - started}


def means(rows: list[sweep.Row], grid: list[str]) -> list[sweep.Row]:
    """What there is of each point over its seeds: figures are means, of those that have them."""
    lines, keys = [], [key for key in grid if key != "seed"]
    for point in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        same = [row for row in rows if tuple(row[key] for key in keys) == point]
        line = dict(zip(keys, point, strict=True)) | {"seeds": len(same)}
        for key in ("accuracy", "validation_loss", "fewer_up", "fewer_down", "to_80%_s", "to_88%_s"):
            found = [row[key] for row in same if row.get(key) is not None]
            line |= {key: statistics.fmean(found) if len(found) == len(same) else "–"}
        lines.append(line)
    return lines


def main() -> None:
    suite = sys.argv[1] if sys.argv[1:2] and sys.argv[1] in SUITES else None
    parser = sweep.parser_of(__doc__, suite or "SUITE")
    parser.add_argument("suite", choices=SUITES)
    table = SUITES[suite or "adam"]
    for key, values in table["grid"].items():
        parser.add_argument(f"--{key}", nargs="+", type=type(values[0]), default=values)
    parser.add_argument("--only", nargs="+", choices=table["of"], default=list(table["of"]), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--missing", action="store_true", help="only what has no row yet")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    grid = {key: getattr(options, key) for key in table["grid"]} | {table["compares"]: options.only}
    if options.table:
        sweep.show(options.suite, means(sweep.rows_of(options.out), list(grid)))
    else:
        sweep.run(functools.partial(trained, options.suite), grid, options)


if __name__ == "__main__":
    main()
