"""Several models in a run, each with an optimizer of its own: what plain PyTorch makes of all batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import (
    Faults,
    assert_alike,
    assert_close,
    assert_equal,
    cuts,
    dies,
    pauses,
    place_of,
    root_s,
    sleep,
    train,
    weights,
)
from policy_runs import settings, train_by
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from geomx.errors import GeomxError, NodeLost, RunFailed, Unsupported
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

STEPS = 4
CUT = Settings(slice_elements=64, pack_below=40, ledger=True)
Make = Callable[[nn.Module], torch.optim.Optimizer]
Batch = tuple[torch.Tensor, torch.Tensor]


def net(sizes: tuple[int, ...], seed: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(*sizes[:2]), nn.BatchNorm1d(sizes[1]), nn.Tanh(), nn.Linear(*sizes[1:])
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return model.eval()  # normalizations that every process has alike


def gan(seed: int) -> tuple[nn.Sequential, nn.Sequential]:
    return net((4, 16, 6), seed), net((6, 16, 1), seed + 1)


def batch_of(step: int, place: int, samples: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + place)
    samples = samples or 3 + 2 * place
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64) + 1.0
    return x, torch.randn(samples, 4, generator=generator, dtype=torch.float64)


def joined(step: int, places: int) -> Batch:
    xs, zs = zip(*(batch_of(step, place) for place in range(places)), strict=True)
    return torch.cat(xs), torch.cat(zs)


def descend(batch: Batch, models: tuple[nn.Module, nn.Module], optimizers: Any, critics: int = 2) -> None:
    """A GAN's step as users write it: gradients that the generator's backward leaves in the critic are thrown away."""
    for turn in range(critics):
        criticize(batch, models, optimizers, turn)
    generate(batch, models, optimizers)


def criticize(batch: Batch, models: tuple[nn.Module, nn.Module], optimizers: Any, turn: int) -> None:
    (x, z), (generator, critic) = batch, models
    optimizers[1].zero_grad()
    made = generator(z + turn).detach()
    (F.softplus(-critic(x)).mean() + F.softplus(critic(made)).mean()).backward()
    optimizers[1].step()


def generate(batch: Batch, models: tuple[nn.Module, nn.Module], optimizers: Any) -> None:
    (_, z), (generator, critic) = batch, models
    optimizers[0].zero_grad()
    F.softplus(-critic(generator(z))).mean().backward()
    optimizers[0].step()


class OwnAdam(torch.optim.Adam):
    """No rule of the servers'."""


OPTIMIZERS: dict[str, tuple[Make, Make]] = {
    "server": (
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
        lambda m: torch.optim.SGD(
            [{"params": [p for n, p in m.named_parameters() if "weight" in n]},
             {"params": [p for n, p in m.named_parameters() if "bias" in n], "lr": 0.02}],
            lr=0.05, momentum=0.9,
        ),
    ),
    "workers": (lambda m: OwnAdam(m.parameters(), lr=0.01), lambda m: OwnAdam(m.parameters(), lr=0.02)),
}  # fmt: skip


def attached(run: LiveRun, makes: tuple[Make, Make], **of_critic: Any) -> tuple[Any, Any]:
    models = gan(10 * place_of(run))
    generator, of_generator = run.attach(models[0], makes[0](models[0]), name="generator")
    critic, of_its = run.attach(models[1], makes[1](models[1]), name="critic", **of_critic)
    return (generator, critic), (of_generator, of_its)


def of_both(models: tuple[nn.Module, nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{place}.{name}": value
        for place, model in enumerate(models)
        for name, value in weights(model).items()
    }


def script(
    makes: tuple[Make, Make], steps: range = range(STEPS), clip: float | None = None, **files: Path
) -> Any:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        models, optimizers = attached(run, makes, clip_norm=clip)
        if "load" in files:
            run.load(files["load"])
        for step in steps:
            batch = batch_of(step, place_of(run))
            run.weight(len(batch[0]))
            descend(batch, models, optimizers)
        if "save" in files:
            run.save(files["save"])
        run.close()
        if run.ledger is not None:
            assert run.ledger.tolist() == [3 * len(steps)] * len(run.workers)
        return of_both(models)

    return main


class Clipped(torch.optim.SGD):
    """Which clips what it steps by."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.2)
        super().step()


def alone(makes: tuple[Make, Make], places: int, steps: int = STEPS) -> dict[str, torch.Tensor]:
    models = gan(0)
    optimizers = [make(model) for make, model in zip(makes, models, strict=True)]
    for step in range(steps):
        descend(joined(step, places), models, optimizers)
    return of_both(models)


@pytest.mark.parametrize(
    ("place", "tree"), each_value(OPTIMIZERS, [([2], 1), ([1, 1], 1), ([2, 1], 2), ([1, 1, 1], 3)])
)
def test_a_gan_equals_plain_pytorch(place: str, tree: tuple[list[int], int]) -> None:
    """The critic steps twice for each step of the generator."""
    parties, shards = tree
    results, _ = train(parties, script(OPTIMIZERS[place]), CUT, shards)
    assert_alike(results)
    assert_close(results["A/0"], alone(OPTIMIZERS[place], sum(parties)))


@pytest.mark.parametrize("shards", [1, 2])
def test_each_has_its_own_bound(shards: int) -> None:
    def sgd(cls: type[torch.optim.SGD]) -> Make:
        return lambda m: cls(m.parameters(), lr=0.3)

    results, _ = train([1, 1], script((OPTIMIZERS["server"][0], sgd(torch.optim.SGD)), clip=0.2), CUT, shards)
    theirs = alone((OPTIMIZERS["server"][0], sgd(Clipped)), 2)
    assert_close(results["B/0"], theirs)
    unbound = alone((OPTIMIZERS["server"][0], sgd(torch.optim.SGD)), 2)
    assert not torch.allclose(theirs["1.0.weight"], unbound["1.0.weight"])


@pytest.mark.parametrize("place", OPTIMIZERS)
def test_shares_may_be_unequal(place: str) -> None:
    """Whoever has no data left takes part in what the others step, in passes to come as well."""
    counts = {0: 7, 1: 4, 2: 5}

    def data(of: int) -> TensorDataset:
        xs, zs = zip(*(batch_of(step, of, 3) for step in range(counts[of])), strict=True)
        return TensorDataset(torch.cat(xs), torch.cat(zs))

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        models, optimizers = attached(run, OPTIMIZERS[place])
        shares = run.shard(DataLoader(data(run.parties.index(run.party)), batch_size=3), train=True)
        for _ in range(2):
            for number, batch in enumerate(shares):
                descend(batch, models, optimizers, critics=1 + number % 2)
        run.close()
        return of_both(models)

    def batches() -> Iterator[tuple[int, Batch]]:
        for number in range(max(counts.values())):
            there = [of for of in counts if number < counts[of]]
            xs, zs = zip(*(batch_of(number, of, 3) for of in there), strict=True)
            yield number, (torch.cat(xs), torch.cat(zs))

    results, _ = train([1, 1, 1], main, CUT, 2)
    models = gan(0)
    optimizers = [make(model) for make, model in zip(OPTIMIZERS[place], models, strict=True)]
    for _ in range(2):
        for number, batch in batches():
            descend(batch, models, optimizers, critics=1 + number % 2)
    assert_alike(results)
    assert_close(results["A/0"], of_both(models))


@pytest.mark.parametrize("place", OPTIMIZERS)
@pytest.mark.parametrize("spec", ["fsa", "hfa k1=2 k2=2", "diloco every=2"])
def test_a_checkpoint_has_both(tmp_path: Path, spec: str, place: str) -> None:
    at = tmp_path / "both.safetensors"
    if spec != "fsa":
        results, _ = train_by(spec, [1, 1], script(OPTIMIZERS[place], range(3), save=at))
        again, _ = train_by(spec, [1, 1], script(OPTIMIZERS[place], range(0), load=at))
        assert_alike(results)
        assert_alike(again)
        saved = {name: value for name, value in load_file(at).items() if name.startswith("model.")}
        names = {f"model.{model}": str(which) for which, model in enumerate(("generator", "critic"))}
        for prefix, which in names.items():
            for name, value in saved.items():
                if name.startswith(prefix):
                    assert torch.equal(again["B/0"][name.replace(prefix, which)], value), name
        return
    whole, _ = train([1, 1], script(OPTIMIZERS[place], range(4)), CUT)
    train([1, 1], script(OPTIMIZERS[place], range(2), save=at), CUT)
    again, _ = train([1, 1], script(OPTIMIZERS[place], range(2, 4), load=at), CUT)
    assert_equal(again["A/0"], whole["A/0"])
    assert_equal(again["B/0"], whole["A/0"])


def test_local_steps_of_each_are_counted_for_themselves() -> None:
    """The critic's weights are averaged after every batch, in which it steps twice, and the generator's after two."""
    makes = (lambda m: torch.optim.SGD(m.parameters(), lr=0.05),) * 2
    results, _ = train_by("hfa k1=2 k2=1", [1, 1], script(makes))
    both = [gan(0), gan(0)]
    optimizers = [[make(model) for make, model in zip(makes, models, strict=True)] for models in both]

    def average(which: int) -> None:
        columns = zip(*(models[which].parameters() for models in both), strict=True)
        with torch.no_grad():
            for one, other in columns:
                one.copy_((3 * one + 5 * other) / 8)
                other.copy_(one)

    for step in range(STEPS):
        batches = [batch_of(step, place) for place in range(2)]
        for turn in range(2):
            for place in range(2):
                criticize(batches[place], both[place], optimizers[place], turn)
        average(1)
        for place in range(2):
            generate(batches[place], both[place], optimizers[place])
        if step % 2:
            average(0)
    assert_alike(results)
    assert_close(results["A/0"], of_both(both[0]))


@pytest.mark.parametrize("spec", ["mixed", "downpour n_push=2", "diloco every=4 fragments=2 overlap=1"])
def test_other_policies_train_both(spec: str) -> None:
    before = of_both(gan(0))
    results, _ = train_by(spec, [2, 1], script(OPTIMIZERS["server"], range(6)))
    if spec.startswith("diloco"):
        assert_alike(results)
    for name, value in results["A/0"].items():
        if "weight" in name:
            assert torch.isfinite(value).all()
            assert not torch.equal(value, before[name])


@pytest.mark.parametrize("spec", ["fsa", "hfa k1=2 k2=2", "diloco every=2"])
def test_codecs_hold_back_of_each_what_is_its_own(spec: str) -> None:
    """Replicas are alike, and near those of a run without a codec; each model has a scale of its own."""
    makes = (lambda m: torch.optim.SGD(m.parameters(), lr=0.05),) * 2
    edge = Edge("int4 size_lower_bound=1", "int4 size_lower_bound=1")
    ours, _ = train_by(spec, [2, 1], script(makes, range(8)), wan=edge)
    theirs, _ = train_by(spec, [2, 1], script(makes, range(8)))
    assert_alike(ours)
    start = of_both(gan(0))
    for name, values in theirs["A/0"].items():
        if "weight" in name:
            assert 0 < (ours["A/0"][name] - values).norm() < 0.2 * (values - start[name]).norm(), name


@pytest.mark.parametrize("spec", ["hfa k1=2 k2=1", "diloco every=4", "downpour", "mixed"])
def test_passes_over_shares_end(spec: str) -> None:
    """Which are unequal where no worker waits for the others' batches."""
    more = 4 if spec in ("downpour", "mixed") else 0

    def main(run: LiveRun) -> tuple[int, int]:
        models, optimizers = attached(run, OPTIMIZERS["server"])
        loader = run.shard(
            DataLoader(TensorDataset(*batch_of(0, 0, 12 + more * place_of(run))), 2), train=True
        )
        for _ in range(3):
            for x, z in loader:
                descend((x, z), models, optimizers)
        run.close()
        return run.epoch, len(loader)

    results, _ = train_by(spec, [1, 1], main)
    assert results == {"A/0": (3, 6), "B/0": (3, 6 + more // 2)}


def test_weights_that_are_read_are_those_of_the_first() -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        (generator, critic), _ = attached(run, OPTIMIZERS["server"])
        target = copy.deepcopy(critic)
        assert_equal(weights(generator), weights(gan(0)[0]))
        return weights(target)

    results, _ = train([1, 1], main)
    assert_equal(results["B/0"], weights(gan(0)[1]))


def refused(
    match: str, main: Any, how: dict[str, Any] | None = None, error: type[GeomxError] = Unsupported
) -> None:
    with pytest.raises(error, match=match):
        train([1, 1], main, settings(**(how or {})))


def test_refusals() -> None:
    makes = OPTIMIZERS["server"]

    def late(run: LiveRun) -> None:
        models = gan(0)
        run.attach(models[0], makes[0](models[0]), name="generator")
        weights(models[0])
        run.attach(models[1], makes[1](models[1]), name="critic")

    def nameless(run: LiveRun) -> None:
        models = gan(0)
        run.attach(models[0], makes[0](models[0]), name="generator")
        run.attach(models[1], makes[1](models[1]))

    def same(run: LiveRun) -> None:
        models = gan(0)
        for model, make in zip(models, makes, strict=True):
            run.attach(model, make(model), name="generator")

    def shared(run: LiveRun) -> None:
        models = gan(0)
        run.attach(models[0], makes[0](models[0]), name="generator")
        both = nn.ModuleList(models)
        run.attach(both, torch.optim.SGD(both.parameters(), lr=0.1), name="critic")
        run.close()

    def elsewhere(run: LiveRun) -> None:
        attached(run, (makes[0], OPTIMIZERS["workers"][1]))
        run.close()

    def backward(run: LiveRun) -> None:
        attached(run, makes, push_at="backward")

    def both(run: LiveRun) -> None:
        attached(run, makes)
        run.close()

    refused("before you read a weight", late)
    refused("each model has its own", nameless)
    refused("each model has its own", same)
    refused("in the optimizers of two models", shared)
    refused("OwnAdam cannot run on the global servers", elsewhere, {"place": "server"})
    refused('leave it "step"', backward)
    refused("go on from a checkpoint", both, {"on_loss": "wait"})
    refused("go on from a checkpoint", both, {"on_loss": "continue", "spec": "mixed"})
    refused("leave the overlay out", both, {"has_overlay": True})
    refused("take fsa", both, {"spec": "esync"})


def test_workers_that_step_others_are_told_apart() -> None:
    def main(run: LiveRun) -> None:
        models, optimizers = attached(run, OPTIMIZERS["server"])
        F.softplus(models[1](models[0](batch_of(0, 0)[1]))).mean().backward()
        run.weight(1)
        optimizers[place_of(run)].step()

    refused(
        r"step\(\) of (generator|critic) where .* called step\(\) of (generator|critic)",
        main,
        error=RunFailed,
    )


PATIENCE = Patience(heartbeat_s=0.1, timeout_s=0.4)


def returning(
    faults: Faults, epochs: int, critics: int = 2, parties: Any = (2, 1)
) -> tuple[dict[str, Any], Any, dict[str, list[int]]]:
    """A GAN on shares of 24 samples, and how many of its own steps each worker has taken."""
    began: dict[str, list[int]] = {}

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        models, optimizers = attached(run, OPTIMIZERS["server"])
        data = TensorDataset(*batch_of(0, 0, 24))
        loader = run.shard(DataLoader(data, 2, shuffle=True), over="run", train=True)
        while run.epoch < epochs:
            began.setdefault(run.name, []).append(run.epoch)
            for x, z in loader:
                sleep(run, 0.02)
                descend((x, z), models, optimizers, critics)
        run.close()
        return of_both(models)

    given = {"on_loss": "continue", "ledger": True}
    how: dict[str, Any] = {"losses": Losses("continue", 60.0), "patience": PATIENCE}
    results, simulator = train_by("fsa", parties, main, given, faults=faults, **how)
    return results, simulator, began


@pytest.mark.parametrize(
    ("faults", "critics"),
    [
        pytest.param(dies("B/0", at_s=0.3, back_s=1.0), 1, id="killed"),
        pytest.param(dies("B", "B/0", at_s=0.37, back_s=1.1), 2, id="with its server"),
        pytest.param(pauses("B/0", 0.3, 1.0), 5, id="stood still"),
        pytest.param(cuts("B", "global/0", 0.3, 1.0), 2, id="cut off"),
        pytest.param(dies("A/1", at_s=0.31, back_s=0.9), 2, id="one of two"),
    ],
)
def test_whoever_comes_back_takes_the_steps_that_the_others_take(faults: Faults, critics: int) -> None:
    results, simulator, began = returning(faults, 24 if critics < 5 else 12, critics)
    assert_alike(results)
    assert any(fields["joined"] for fields in root_s(simulator, "roster"))
    assert len(results) == 3
    assert max(began["B/0"]) == max(began["A/0"])


def test_it_comes_back_as_the_others_end() -> None:
    """What it finds is the end of the last pass, or nobody any more."""
    ends = []
    for at_s in (1.0, 1.1, 1.2, 1.25, 1.3, 1.35):
        try:
            results, _, _ = returning(dies("B/0", at_s=0.3, back_s=at_s), 9)
        except NodeLost:  # the run has ended
            ends.append(False)
        else:
            assert_alike(results)
            ends.append(True)
    assert ends == sorted(ends, reverse=True)
    assert ends[0]


def test_without_shares_nobody_comes_back() -> None:
    def main(run: LiveRun) -> None:
        models, optimizers = attached(run, OPTIMIZERS["server"])
        for step in range(40):
            batch = batch_of(step, place_of(run))
            run.weight(len(batch[0]))
            sleep(run, 0.05)
            descend(batch, models, optimizers)
        run.close()

    how: dict[str, Any] = {"losses": Losses("continue", 60.0), "patience": PATIENCE}
    with pytest.raises(RunFailed, match=r"by the batches of run\.shard"):
        train_by(
            "fsa", (1, 1), main, {"on_loss": "continue"}, faults=dies("B/0", at_s=0.3, back_s=0.9), **how
        )


def test_parameters_in_no_optimizer_are_told() -> None:
    def main(run: LiveRun) -> None:
        model = gan(0)[0]
        run.attach(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
        run.close()

    _, simulator = train([2, 1], main)
    told = [
        (node, fields["text"]) for name in ("advice", "advised") for _, node, fields in simulator.noted(name)
    ]
    assert {node for node, _ in told} >= {"A/0", "B/0"}
    assert all("no attached optimizer has 1.weight, 1.bias, 3.weight and 1 more" in text for _, text in told)
