"""Which setting for which model? What policies and codecs cost in loss and accuracy, with Adam and with SGD.

    python benchmarks/adam.py                       all of `adam.toml` on the small language model: hours on two cores
    python benchmarks/adam.py --missing --only dense slow-link --models gpt-10m --steps 1000
    python benchmarks/adam.py --models cnn-179k cnn-1m --optimizers Adam --shapes 2x2 --steps 940 --lr 1 2
    python benchmarks/adam.py --table               the rows that there are, for docs/settings.md

Equal samples for every setting. The nodes are the real ones, on the simulator's virtual clock: what a setting does to a
model does not depend on the network, and bytes are counted as they would leave for it. Leaves rows in
out/bench/adam.jsonl. Those that the page was made of lie in docs/data: copied to out/bench, `--missing` adds to them.
"""

import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from benchmarks import sweep, training, virtual
from geomx.codecs.spec import slices_wanted
from geomx.errors import NotFinite
from geomx.node.topology import Edge, Topology
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.sync.contract import GradientStep
from geomx.train import Settings

NETWORK = Network(rate_mbps=10_000.0, delay_ms=0.1)  # its times are not reported
SETTINGS = sweep.table_of("adam")
GPT_RATE, WARM_UP, LAST_RATE, CLIP = 2e-3, 10, 0.1, 1.0
SAMPLES = {"gpt": 32, "cnn": 128}  # of all workers together, in a step


def optimizer_of(kind: str, codec_up: str, model: torch.nn.Module, times: float) -> torch.optim.Optimizer:
    """AdamW, Adam, or SGD with momentum: where the codec has it (Deep Gradient Compression), the optimizer has none.

    `times`: the usual learning rate.
    """
    if kind == "AdamW":
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=times * GPT_RATE, betas=(0.9, 0.95))
    if kind == "Adam":
        return torch.optim.Adam(model.parameters(), lr=times * training.RATE)
    return torch.optim.SGD(
        model.parameters(), lr=times * training.SGD_RATE, momentum=0.0 if "momentum" in codec_up else 0.9
    )


def schedule_of(kind: str, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    """The language models warm up, then fall to a tenth; the CNNs fall to 0."""
    if kind != "AdamW":
        return CosineAnnealingLR(optimizer, steps)
    cosine = CosineAnnealingLR(optimizer, steps - WARM_UP, LAST_RATE * GPT_RATE)
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, WARM_UP), cosine], [WARM_UP])


def trained(
    setting: str, model: str, optimizer: str, shape: str, steps: int, seed: int, lr: float
) -> dict[str, Any]:
    """One run; its row."""
    chosen = SETTINGS[setting]
    policy, codec_up, codec_down = (chosen.get(key, default) for key, default in DEFAULTS.items())
    parties, workers = map(int, shape.split("x"))
    plan = Topology.of_parties(
        "adam", virtual.parties(workers, parties), wan=Edge(codec_up, codec_down), policy=policy
    )
    simulator, found = Simulator(seed, NETWORK), dict[str, Any]()
    rule = policies.make(policy)
    is_gradient = rule.plans is GradientStep
    batch = SAMPLES[model.partition("-")[0]] // (parties * workers)

    def loop(seat: virtual.Seat) -> None:
        task, clips = seat.task, optimizer == "AdamW"
        found["parameters"] = sum(p.numel() for p in task.model.parameters())
        own = optimizer_of(optimizer, codec_up, task.model, lr)
        clip_norm = CLIP if clips and is_gradient else None
        attached, shared = seat.run.attach(task.model, own, clip_norm=clip_norm)
        schedule = schedule_of(optimizer, shared, steps)
        for _ in range(steps):
            shared.zero_grad()
            task.loss(attached).backward()
            if clips and not is_gradient:
                torch.nn.utils.clip_grad_norm_(task.model.parameters(), CLIP)
            shared.step()
            schedule.step()
        if seat.run.is_first:
            if task.accuracy is not None:
                found["accuracy"] = task.accuracy()
            if task.validation_loss is not None:
                found["validation_loss"] = task.validation_loss()

    started = time.monotonic()
    settings = Settings(weight="equal", seed=seed, policy=rule, slices=slices_wanted(codec_up, codec_down))
    try:
        virtual.train(plan, simulator, settings, model, loop, batch=batch)
    except NotFinite:
        found["diverged"] = True
    row = {
        "setting": setting,
        "policy": policy,
        "lr": lr,
        "codec_up": codec_up,
        "codec_down": codec_down,
    }
    row |= {"model": model, "optimizer": optimizer, "shape": shape, "steps": steps, "seed": seed, **found}
    # The first weights cross once, up from the first party and down to each.
    up, down = virtual.wan_bytes(plan, simulator)
    first, dense = 4 * found["parameters"], 4 * found["parameters"] * parties * steps
    row |= {"wan_mb_up": up / 1e6, "wan_mb_down": down / 1e6}
    row |= {"fewer_up": dense / (up - first), "fewer_down": dense / (down - first * parties)}
    return row | {"took_s": time.monotonic() - started}


DEFAULTS = {"policy": "fsa", "up": "dense", "down": "dense"}
TASK = ("model", "optimizer", "shape", "steps")


def table(rows: list[sweep.Row]) -> str:
    """Markdown: for each task a table of settings, means over seeds; losses fall, and accuracies rise."""
    text = []
    for task in dict.fromkeys(tuple(row[key] for key in TASK) for row in rows):
        of_task = [row for row in rows if tuple(row[key] for key in TASK) == task]
        text += [
            f"**{', '.join(map(str, task))}**",
            "",
            "| setting | learning rate | result | of seeds | fewer bytes, up / down |",
        ]
        text.append("|---|---|---:|---|---:|")
        for setting, lr in dict.fromkeys((row["setting"], row["lr"]) for row in of_task):
            found = sorted(
                (row for row in of_task if (row["setting"], row["lr"]) == (setting, lr)),
                key=lambda row: row["seed"],
            )
            shown = [result_of(row) for row in found]
            values = [value for value in map(value_of, found) if value is not None]
            mean = told_as(found[0], sum(values) / len(values)) if len(values) == len(found) else "diverged"
            fewer = f"{found[0]['fewer_up']:,.0f} / {found[0]['fewer_down']:,.0f}"
            text.append(f"| {setting} | {lr:g} × | {mean} | {', '.join(shown)} | {fewer} |")
        text.append("")
    return "\n".join(text)


def value_of(row: sweep.Row) -> float | None:
    return row.get("validation_loss", row.get("accuracy"))


def result_of(row: sweep.Row) -> str:
    value = value_of(row)
    return "diverged" if value is None else told_as(row, value)


def told_as(row: sweep.Row, value: float) -> str:
    return f"{value:.3f}" if "validation_loss" in row else f"{value:.2%}"


def main() -> None:
    parser = sweep.parser_of(__doc__, "adam")
    parser.add_argument("--models", nargs="+", default=["gpt-1m"])
    parser.add_argument("--optimizers", nargs="+", default=["AdamW"])
    parser.add_argument("--shapes", nargs="+", default=["2x1"], help="parties x workers of each")
    parser.add_argument("--steps", nargs="+", type=int, default=[240])
    parser.add_argument("--lr", nargs="+", type=float, default=[1.0], help="times the usual learning rate")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=SETTINGS, metavar="SETTING")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    if options.table:
        print(table(sweep.rows_of(options.out)))
        return
    grid = {
        "model": options.models,
        "optimizer": options.optimizers,
        "shape": options.shapes,
        "steps": options.steps,
        "lr": options.lr,
        "seed": options.seeds,
        "setting": options.only,
    }
    sweep.run(trained, grid, options)


if __name__ == "__main__":
    main()
