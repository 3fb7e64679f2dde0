"""What the workers of `storm.py` train, until a moment that they are told of: a small GPT over pairs of bytes.

A tied embedding of 50,304 tokens is most of its 3,323,136 parameters. The text is that of Python's library, two bytes a
token, which occupies a ninth of the vocabulary; its last twentieth is held out, and each worker has a share of its own
of the rest. Batches are drawn with a seed of the worker's, so that one that was started again reads on where it was.

Started as `geomx worker RUN.toml --party A --rank 0 -- python storm_train.py FOLDER`, it writes a line of JSON into
FOLDER/A.0.contributions.jsonl when it has attached and behind each contribution: `t` (seconds of the monotonic clock,
which all processes share), `turn`, `samples`, `loss` (their mean) and `counted` (what the run's ledger says of this
worker by then). FOLDER/until has the moment at which the data ends, as soon as that is known. In the end, FOLDER gets
the weights.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch._dynamo  # which the first optimizer imports, if nothing has: so it is done with the other imports
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import geomx
from benchmarks import data
from benchmarks.workloads import CONTEXT, TRAINED_ON, Gpt

SHAPE, VOCABULARY = (2, 2, 64), 50_304  # layers, heads, width; tokens
BATCH, RATE = 2, 1e-3
JUDGED_ON = 128  # windows of what is held out
UNTIL = "until"


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """The text as [n] int64 below VOCABULARY: what trains, and what is held out."""
    text = torch.from_numpy(data.text()).long()
    pairs = text[: len(text) // 2 * 2].view(-1, 2)
    joined = (256 * pairs[:, 0] + pairs[:, 1]) % VOCABULARY
    return joined.tensor_split([round(TRAINED_ON * len(joined))])


def loss_of(model: torch.nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """The mean over all tokens but the first of each. `windows`: [n, CONTEXT + 1]."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


class Windows:
    """Batches of one worker, [BATCH, CONTEXT + 1]: the same again at each beginning, until the time is over."""

    def __init__(self, share: torch.Tensor, seed: int, until: Path) -> None:
        self._share, self._seed, self._until = share, seed, until

    def __iter__(self) -> Iterator[torch.Tensor]:
        order, end = torch.Generator().manual_seed(self._seed), None
        while end is None or time.monotonic() < end:
            starts = torch.randint(len(self._share) - CONTEXT, (BATCH,), generator=order).tolist()
            yield torch.stack([self._share[start : start + CONTEXT + 1] for start in starts])
            if end is None and self._until.exists():
                end = float(self._until.read_text())


class Log:
    """The lines of one worker; a process that was started again adds to those of the one before."""

    def __init__(self, folder: Path, run: geomx.LiveRun) -> None:
        self._run, self._place = run, run.workers.index(run.name)
        self._file = log_path(folder, run.name).open("a", buffering=1)

    def write(self, **told: Any) -> None:
        self._run.wait()  # for the ledger, which may come behind the weights
        ledger = self._run.ledger
        counted = None if ledger is None else int(ledger[self._place])
        self._file.write(json.dumps({"t": time.monotonic(), **told, "counted": counted}) + "\n")


def log_path(folder: Path, worker: str) -> Path:
    """Where a worker's lines are."""
    return folder / f"{worker.replace('/', '.')}.contributions.jsonl"


def weights_path(folder: Path, worker: str) -> Path:
    """Where a worker's last weights are."""
    return folder / f"{worker.replace('/', '.')}.safetensors"


def held_out_loss(path: Path) -> float:
    """Of weights that a worker has left."""
    model, (_, held_out) = Gpt(*SHAPE, VOCABULARY), tokens()
    model.load_state_dict(load_file(path))
    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, JUDGED_ON).long().tolist()
    windows = torch.stack([held_out[start : start + CONTEXT + 1] for start in starts])
    with torch.no_grad():
        losses = [float(loss_of(model.eval(), some)) for some in windows.split(8)]
    return sum(losses) / len(losses)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    run = geomx.join()
    torch.manual_seed(0)
    model = Gpt(*SHAPE, VOCABULARY)
    model, optimizer = run.attach(model, torch.optim.AdamW(model.parameters(), lr=RATE))
    log = Log(folder, run)
    log.write(attached=True)
    place = run.workers.index(run.name)
    share = tokens()[0].tensor_split(len(run.workers))[place]
    losses: list[float] = []
    for windows in run.shard(Windows(share, place, folder / UNTIL)):
        turn = run.turn
        optimizer.zero_grad()
        loss = loss_of(model, windows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if run.turn != turn:
            log.write(turn=turn, samples=BATCH * len(losses), loss=sum(losses) / len(losses))
            losses = []
    save_file(model.state_dict(), weights_path(folder, run.name))


if __name__ == "__main__":
    main()
