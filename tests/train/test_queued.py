"""Values that a device is still to compute when they are contributed: how GPUs are fed, here with the CPU as device.

What a GPU alone can show (streams, page-locked memory) is in `test_gpu.py`.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import finite_runs
import pytest
import torch
import torch.nn.functional as F
from finite_runs import Script, assert_same_runs, told
from live_runs import assert_alike, assert_equal, begin, drawn, own, sgd, train, weights
from policy_runs import train_by
from torch.utils._python_dispatch import TorchDispatchMode

from geomx.codecs.pack import native
from geomx.errors import NotFinite
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses, Quorum
from geomx.sync import policies
from geomx.train import LiveRun

STEPS = 8
INT4 = {"lan": Edge("int4 size_lower_bound=1", "dense"), "wan": Edge("int4", "int4")}


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whether the CPU is a device that queues."""

    def to(does: bool) -> None:
        for module in ("geomx.train.model.model_slices", "geomx.train.model.finite"):
            monkeypatch.setattr(f"{module}.queues", lambda device: does)

    to(True)
    return to


def script(make: Any = sgd, within: Any = nullcontext, steps: bool = False, **options: Any) -> Any:
    """`within()`: around what may not wait for a device: `backward()`, and with `steps` what follows as well."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make, **options)
        for step in range(STEPS):
            x, y = drawn(run, step)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            with within():
                loss.backward()
                if steps:
                    optimizer.step()
            if not steps:
                optimizer.step()
        return weights(model)

    return main


def _spoiled(value: float, policy: str = "fsa", on_nonfinite: str = "skip") -> Any:
    """A gradient of A/1 holds this."""
    given = finite_runs.settings("dense", on_nonfinite, policy=policies.make(policy))
    return train([2, 1], Script(value), given, policy=policy, skips=on_nonfinite == "skip")


@pytest.mark.parametrize("edges", [{}, INT4], ids=["dense", "int4"])
@pytest.mark.parametrize(
    "spec",
    ["fsa", "hfa k1=2 k2=2", "diloco every=2", "diloco every=4 fragments=2 overlap=1", "downpour", "mixed"],
)
def test_a_run_has_the_bits_of_one_whose_values_are_there_at_once(
    spec: str, edges: dict[str, Edge], queued: Any
) -> None:
    ours, _ = train_by(spec, (2, 1), script(), **edges)
    queued(False)
    theirs, _ = train_by(spec, (2, 1), script(), **edges)
    for name, found in theirs.items():
        assert_equal(ours[name], found)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"clip_norm": 0.1}, {}),
        ({"overlap": "forward"}, {}),
        ({"make": own}, {}),
        ({}, {"overlays": {"": "trees"}}),
        ({}, {"losses": Losses("continue", quorum=Quorum(0.75))}),
    ],
    ids=["clipped", "overlap", "optimizer of the workers", "overlay", "quorum"],
)
def test_the_same_with_whatever_is_added_on_the_way(
    options: dict[str, Any], how: dict[str, Any], queued: Any
) -> None:
    ours, _ = train_by("fsa", (1, 1), script(**options), **how)
    assert_alike(ours)
    queued(False)
    theirs, _ = train_by("fsa", (1, 1), script(**options), **how)
    assert_equal(ours["A/0"], theirs["A/0"])


class _Reads(TorchDispatchMode):
    """Raises where this thread reads a number of a tensor, for which it would wait for a device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default, "the loop reads a number"
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("queued")
@pytest.mark.parametrize("spec", ["fsa", "diloco every=20"])
def test_a_loop_reads_no_number_of_a_device(spec: str) -> None:
    """No kernel of ours reads one either: there are none for a device."""
    with native.switched_off():
        train_by(spec, (1, 1), script(within=_Reads, steps=spec != "fsa"))


@pytest.mark.usefixtures("queued")
@pytest.mark.parametrize("policy", ["fsa", "hfa k1=2 k2=2", "downpour"])
def test_what_is_not_finite_is_found_and_named(policy: str) -> None:
    with pytest.raises(NotFinite, match=r"A/1: the gradient of 2.bias holds NaN in step 2 "):
        _spoiled(math.nan, policy, "stop")


def test_or_counts_nothing(queued: Any) -> None:
    ours, simulator = _spoiled(math.nan)
    assert [(node, fields["part"]) for node, fields in told(simulator)] == [("A/1", "1 slice")]
    queued(False)
    assert_same_runs(ours, _spoiled(math.nan)[0])
