"""Embeddings with sparse gradients: only the rows that a batch has touched travel, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import Faults, assert_alike, assert_close, assert_equal, dies, place_of, sleep, train, weights
from policy_runs import train_by
from torch import nn

from geomx.errors import Unsupported
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

# Of torch's own optimizers, where the workers run them.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

STEPS = 6
ROWS, BAGS = 700, 90
# Slices of 170 rows of the first table, which is cut into five.
CUT: dict[str, Any] = {"slice_elements": 128, "pack_below": 100}
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Words(nn.Module):
    """Two tables and a dense layer. `tied`: the first table is used densely as well."""

    def __init__(
        self, seed: int, sparse: bool = True, dtype: torch.dtype = torch.float64, tied: bool = False
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, 6, sparse=sparse)
        self.bags = nn.EmbeddingBag(BAGS, 6, mode="sum", sparse=sparse)
        self.head = nn.Linear(6, 3)
        self.tied = tied
        generator = torch.Generator().manual_seed(seed)
        self.to(dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words).sum(1) + self.bags(words % BAGS)
        if self.tied:
            x = x + self.words.weight.mean(0)
        return self.head(x)


def batch_of(step: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words [samples, 4], the same more than once, and classes; workers have batches of different sizes."""
    generator = torch.Generator().manual_seed(100 * step + place)
    samples = 3 + 2 * place
    return torch.randint(ROWS, (samples, 4), generator=generator) % 97 * 7, torch.randint(
        3, (samples,), generator=generator
    )


def descend(
    model: nn.Module,
    optimizer: Any,
    batch: tuple[torch.Tensor, torch.Tensor],
    edit: Callable[[nn.Module], None] = lambda model: None,
) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]).double(), batch[1]).backward()
    edit(model)
    optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """Moves every row that has ever had a gradient, so the workers run it."""
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.01)


class OwnAdagrad(torch.optim.Adagrad):
    """No rule of the servers': it runs on the workers."""


def own(model: nn.Module) -> torch.optim.Optimizer:
    return OwnAdagrad(model.parameters(), lr=0.1)


def script(
    make: Make,
    steps: range = range(STEPS),
    make_model: Callable[[int], nn.Module] = Words,
    clip: float | None = None,
    seconds: float = 0.0,
    edit: Callable[[int, nn.Module], None] = lambda step, model: None,
    **files: Path,
) -> Any:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        inner = make_model(place_of(run))
        model, optimizer = run.attach(inner, make(inner), clip_norm=clip)
        if "load" in files:
            run.load(files["load"])
        for step in steps[run.step - steps.start if "load" not in files else 0 :]:
            batch = batch_of(step, place_of(run))
            run.weight(len(batch[0]))
            sleep(run, seconds)
            descend(model, optimizer, batch, partial(edit, step))
        if "save" in files:
            run.save(files["save"])
        run.close()
        return weights(model)

    return main


def joined(step: int, places: int) -> tuple[torch.Tensor, torch.Tensor]:
    words, classes = zip(*(batch_of(step, place) for place in range(places)), strict=True)
    return torch.cat(words), torch.cat(classes)


def alone(make: Make, places: int, steps: int = STEPS, **of_model: Any) -> dict[str, torch.Tensor]:
    model = Words(0, **of_model)
    optimizer = make(model)
    for step in range(steps):
        descend(model, optimizer, joined(step, places))
    return weights(model)


CODECS: dict[str, dict[str, Any]] = {"dense": {}, "int4": {"wan": Edge("int4", "int4")}}


@pytest.mark.parametrize(
    ("make", "parties", "shards"),
    each_value([sgd, adagrad, own, momentum], [(1,), (2, 1), (1, 1, 1)], [1, 2]),
)
@pytest.mark.parametrize("push_at", ["backward", "step"])
def test_it_is_what_one_process_makes_of_all_batches(
    make: Make, parties: tuple[int, ...], shards: int, push_at: Any
) -> None:
    given = CUT | {"push_at": push_at}
    results, _ = train_by("fsa", parties, script(make), given, shards=shards)
    assert_alike(results)
    assert_close(results["A/0"], alone(make, sum(parties)))


@pytest.mark.parametrize("make", [sgd, own])
def test_a_table_may_be_used_densely_as_well(make: Make) -> None:
    tied = script(make, make_model=lambda seed: Words(seed, tied=True))
    results, _ = train_by("fsa", (1, 1), tied, CUT)
    assert_close(results["B/0"], alone(make, 2, tied=True))


@pytest.mark.parametrize(("make", "clip"), each_value([sgd, adagrad, own], [0.05, 1000.0]))
def test_gradients_are_clipped_by_the_norm_over_all_rows(make: Make, clip: float) -> None:
    def of(sparse: bool) -> dict[str, torch.Tensor]:
        main = script(make, make_model=lambda seed: Words(seed, sparse), clip=clip)
        return train_by("fsa", (1, 1), main, CUT)[0]["A/0"]

    assert_close(of(True), of(False))


@pytest.mark.parametrize(
    ("spec", "make"), each_value(["fsa", "hfa k1=2 k2=2", "diloco every=2"], [sgd, adagrad, own])
)
def test_policies_make_of_it_what_they_make_of_dense_gradients(spec: str, make: Make) -> None:
    def of(sparse: bool) -> dict[str, dict[str, torch.Tensor]]:
        main = script(make, range(8), lambda seed: Words(seed, sparse))
        return train_by(spec, (2, 1), main, CUT)[0]

    results = of(True)
    assert_alike(results)
    assert_close(results["A/0"], of(False)["A/0"])
    coarse, _ = train_by(spec, (2, 1), script(make, range(8)), CUT, **CODECS["int4"])
    assert_alike(coarse)


@pytest.mark.parametrize("make", [sgd, adagrad])
def test_local_steps_are_clipped_and_skipped_as_dense_ones_are(make: Make) -> None:
    def spoil(step: int, model: nn.Module) -> None:
        if step == 2:
            model.words.weight.grad.mul_(float("nan"))  # type: ignore[union-attr, operator]

    def of(sparse: bool) -> dict[str, torch.Tensor]:
        main = script(make, make_model=lambda seed: Words(seed, sparse), clip=0.05, edit=spoil)
        given = CUT | {"on_nonfinite": "skip", "push_at": "step"}
        return train_by("hfa k1=1 k2=1", (1, 1), main, given)[0]["A/0"]

    result = of(True)
    assert all(torch.isfinite(values).all() for values in result.values())
    assert_close(result, of(False))


@pytest.mark.parametrize("overlay", ["ring", "trees"])
def test_parties_may_add_for_each_other(overlay: str) -> None:
    results, _ = train_by("fsa", (1, 1, 1), script(adagrad), CUT, overlays={"": overlay})
    assert_alike(results)
    assert_close(results["A/0"], alone(adagrad, 3))


class Both(nn.Module):
    """What has sparse gradients is one model, the rest another."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        words = Words(seed)
        self.tables, self.head = nn.ModuleList([words.words, words.bags]), words.head

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.tables[0](words).sum(1) + self.tables[1](words % BAGS))


class OwnSparseAdam(torch.optim.SparseAdam):
    """No rule of the servers'."""


def of_both(rule: type[torch.optim.SparseAdam], model: Both) -> tuple[Any, Any]:
    return rule(list(model.tables.parameters()), lr=0.05), torch.optim.Adam(model.head.parameters(), lr=0.05)


def both(
    rule: type[torch.optim.SparseAdam], steps: range = range(STEPS), whole: bool = False, **files: Path
) -> Any:
    """`whole`: the model is attached once for each optimizer; else its parts are."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = Both(place_of(run))
        of_tables, of_head = of_both(rule, model)
        parts = (model, model) if whole else (model.tables, model.head)
        _, of_tables = run.attach(parts[0], of_tables, name="tables")
        _, of_head = run.attach(parts[1], of_head, name="head")
        if "load" in files:
            run.load(files["load"])
        for step in steps:
            batch = batch_of(step, place_of(run))
            run.weight(len(batch[0]))
            of_tables.zero_grad()
            of_head.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            of_tables.step()
            of_head.step()
        if "save" in files:
            run.save(files["save"])
        run.close()
        return weights(model)

    return main


@pytest.mark.parametrize("rule", [torch.optim.SparseAdam, OwnSparseAdam])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("whole", [False, True])
def test_sparse_adam_has_parameters_of_its_own(rule: Any, codec: str, whole: bool) -> None:
    results, _ = train_by("fsa", (1, 1), both(rule, whole=whole), CUT | {"push_at": "step"}, **CODECS[codec])
    assert_alike(results)
    model = Both(0)
    optimizers = of_both(rule, model)
    for step in range(STEPS):
        words, classes = joined(step, 2)
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(words), classes).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_close(results["A/0"], weights(model), rtol=1e-12 if codec == "dense" else 0.5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rule", [torch.optim.SparseAdam, OwnSparseAdam])
def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path: Path, rule: Any, codec: str) -> None:
    given, at = CUT | {"push_at": "step"}, tmp_path / "rows.safetensors"
    how: dict[str, Any] = CODECS[codec]
    undisturbed, _ = train_by("fsa", (1, 1), both(rule, range(6), whole=True), given, **how)
    train_by("fsa", (1, 1), both(rule, range(3), whole=True, save=at), given, **how)
    again, _ = train_by("fsa", (1, 1), both(rule, range(3, 6), whole=True, load=at), given, **how)
    assert_equal(again["B/0"], undisturbed["A/0"])


@pytest.mark.parametrize(("spec", "make"), [("fsa", momentum), ("fsa", adagrad), ("hfa k1=2 k2=1", momentum)])
def test_checkpoints_of_one_model_go_on(tmp_path: Path, spec: str, make: Make) -> None:
    """Also where a worker's momentum is a sparse tensor itself."""
    at = tmp_path / "rows.safetensors"
    whole, _ = train_by(spec, (1, 1), script(make, range(8)), CUT)
    train_by(spec, (1, 1), script(make, range(4), save=at), CUT)
    again, _ = train_by(spec, (1, 1), script(make, range(4, 8), load=at), CUT)
    if spec == "fsa":
        assert_close(again["B/0"], whole["A/0"])
    assert_alike(again)


class Tables(Words):
    """The dense layer is not trained."""

    def __init__(self, seed: int, sparse: bool = True, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(seed, sparse, dtype)
        self.head.requires_grad_(False)


def test_rows_are_exact_through_any_codec() -> None:
    main = script(sgd, make_model=Tables)
    exact, _ = train_by("fsa", (1, 1), main, CUT)
    coarse, _ = train_by("fsa", (1, 1), main, CUT, wan=Edge("bisparse ratio=0.1", "int4"))
    assert_equal(coarse["A/0"], exact["A/0"])


@pytest.mark.parametrize("make", [sgd, own])
def test_rows_in_half_precision(make: Make) -> None:
    """The root's weights are float32, and what travels is not."""

    def of(sparse: bool) -> dict[str, dict[str, torch.Tensor]]:
        main = script(make, make_model=lambda seed: Words(seed, sparse, torch.bfloat16))
        return train_by("fsa", (2, 1), main, CUT)[0]

    results, dense = of(True), of(False)
    assert_alike(results)
    for name, values in dense["A/0"].items():
        assert torch.allclose(results["A/0"][name].float(), values.float(), rtol=0.02, atol=4e-3)


def test_only_rows_that_were_touched_travel() -> None:
    def sent(sparse: bool, rows: int) -> tuple[int, int]:
        def main(run: LiveRun) -> None:
            model = nn.Embedding(rows, 32, sparse=sparse)
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for step in range(5):
                run.weight(1.0)
                optimizer.zero_grad()
                model(torch.arange(10) * 3 + step).sum().backward()
                optimizer.step()
            run.close()

        _, simulator = train((1, 1), main)
        return simulator.sent_bytes("A", "global/0"), simulator.sent_bytes("global/0", "A")

    up, down = sent(True, 4000)
    dense_up, dense_down = sent(False, 4000)
    table = 4 * 32 * 4000
    first = 2 * table  # all begin with the weights of the first worker
    assert dense_up > 6 * table
    assert dense_down > 6 * table
    assert up < first + 5 * (10 * 33 * 4 + 500)
    assert down < first + 5 * (20 * 33 * 4 + 500)


PATIENCE = Patience(heartbeat_s=0.1, timeout_s=0.4)


def shaken(faults: Faults, on_loss: Any, **how: Any) -> dict[str, Any]:
    main = script(adagrad, range(30), seconds=0.05)
    return train_by(
        "fsa",
        (2, 1),
        main,
        CUT | {"on_loss": on_loss},
        faults=faults,
        losses=Losses(on_loss, 60.0),
        patience=PATIENCE,
        **how,
    )[0]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("victims", [("B/0",), ("B", "B/0")])
def test_whoever_comes_back_has_the_rows_that_have_changed_since(
    victims: tuple[str, ...], codec: str
) -> None:
    results = shaken(dies(*victims, at_s=0.5, back_s=1.4), "continue", **CODECS[codec])
    assert_alike(results)


@pytest.mark.parametrize("victim", ["A", "B"])
def test_a_run_that_waits_for_a_server_ends_with_the_same_bits(victim: str) -> None:
    calm = shaken(lambda *_: None, "wait")
    assert_equal(shaken(dies(victim, at_s=0.62, back_s=1.4), "wait")["A/1"], calm["A/0"])


def attaching(make: Make, model: nn.Module | None = None) -> Any:
    def main(run: LiveRun) -> None:
        inner = model or Words(0)
        run.attach(inner, make(inner))

    return main


@pytest.mark.parametrize(
    ("make", "given", "policy", "told"),
    [
        (lambda m: torch.optim.Adam(m.parameters()), {}, "fsa", "take SparseAdam, SGD or Adagrad"),
        (lambda m: torch.optim.Adam(m.parameters()), {}, "diloco", "take SparseAdam, SGD or Adagrad"),
        (lambda m: torch.optim.SparseAdam(list(m.parameters())), {}, "fsa", "an optimizer of their own"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1), {}, "fsa", "leave it 0"),
        (momentum, {"place": "server"}, "fsa", 'optimizer.place = "server"'),
        (sgd, {}, "mixed", "miss the rows of the others"),
        (sgd, {}, "downpour", "miss the rows of the others"),
    ],
)
def test_what_cannot_be_is_refused_at_attach(
    make: Make, given: dict[str, Any], policy: str, told: str
) -> None:
    with pytest.raises(Unsupported, match=told):
        train_by(policy, (1, 1), attaching(make), given)


def test_momentum_that_comes_later_is_refused() -> None:
    def main(run: LiveRun) -> None:
        model = Words(0)
        model, optimizer = run.attach(model, sgd(model))
        for step in range(2):
            run.weight(1)
            descend(model, optimizer, batch_of(step, place_of(run)))
            optimizer.param_groups[0]["momentum"] = 0.9

    with pytest.raises(Unsupported, match="moves every row that has ever had one"):
        train_by("fsa", (1, 1), main, CUT | {"push_at": "step"})


def test_a_frozen_table_is_no_table_of_rows() -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = Words(0)
        model.words.weight.requires_grad_(False)
        model.bags.weight.requires_grad_(False)
        model, optimizer = run.attach(model, momentum(model))
        run.weight(1)
        descend(model, optimizer, batch_of(0, place_of(run)))
        return weights(model)

    assert len(train_by("mixed", (1, 1), main, CUT)[0]) == 2


def test_sparse_gradients_of_other_modules_are_refused() -> None:
    def main(run: LiveRun) -> None:
        table = nn.Parameter(torch.zeros(10, 2))
        model = nn.ParameterList([table])
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run.weight(1)
        F.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
        optimizer.step()

    with pytest.raises(Unsupported, match="which must be so at attach"):
        train((1,), main, Settings(push_at="step"))
