"""What cannot work as in plain PyTorch says so, and says what would work."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import Make, adam, batch, begin, descend, sgd, small_model, train
from torch import nn
from torch.utils.data import TensorDataset

from geomx.errors import (
    ConfigError,
    Disagreement,
    GeomxError,
    GradientEdited,
    Refused,
    Unsupported,
    WeightUnknown,
)
from geomx.train import LiveRun, Settings

X, Y = batch(0, 4)


def refused(
    error: type[GeomxError],
    message: str,
    script: Callable[[LiveRun], Any],
    settings: Settings | None = None,
    parties: tuple[int, ...] = (1,),
) -> None:
    with pytest.raises(error, match=message):
        train(parties, script, settings)


def attaching(make_model: Callable[[], nn.Module], make: Make, **options: Any) -> Callable[[LiveRun], None]:
    def script(run: LiveRun) -> None:
        model = make_model()
        run.attach(model, make(model), **options)

    return script


def training(
    body: Callable[[LiveRun, nn.Module, torch.optim.Optimizer], Any], **options: Any
) -> Callable[[LiveRun], None]:
    """`body` runs behind a backward that has pushed."""

    def script(run: LiveRun) -> None:
        model, optimizer = begin(run, **options)
        run.weight(4)
        F.mse_loss(model(X), Y).backward()
        body(run, model, optimizer)

    return script


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def expanded() -> nn.Module:
    model = nn.Linear(3, 3)
    model.bias = nn.Parameter(torch.zeros(1).expand(3))
    return model


def sharing_memory() -> nn.Module:
    """A tie by mistake: two parameters over one piece of memory."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


class Own(torch.optim.SGD):
    pass


SERVER = Settings(place="server")
ATTACHING: dict[str, tuple[str, Callable[[], nn.Module], Make, Settings | None]] = {
    "LBFGS": ("one gradient a step", small_model, lambda m: torch.optim.LBFGS(m.parameters()), None),
    "SparseAdam": (
        "sparse gradients alone", small_model, lambda m: torch.optim.SparseAdam(list(m.parameters())), None,
    ),
    "differentiable": (
        "leave it False", small_model, lambda m: torch.optim.SGD(m.parameters(), 0.1, differentiable=True), None,
    ),
    "capturable": (
        "leave it False", small_model, lambda m: torch.optim.Adam(m.parameters(), capturable=True), None,
    ),
    "foreign": ("ModuleDict", small_model, lambda m: torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1), None),
    "nothing": ("nothing is trained", small_model, lambda m: sgd(m.requires_grad_(False)), None),
    "a subclass": ("subclasses", small_model, lambda m: Own(m.parameters(), lr=0.1), SERVER),
    "lazy": ("run one forward", lazy, sgd, None),
    "an eighth": ("bfloat16 or wider", lambda: small_model().to(torch.float8_e4m3fn), sgd, None),
    "sparse": ("take SparseAdam", lambda: nn.Embedding(5, 3, sparse=True), adam, None),
    "meta": ("materialize", lambda: nn.Linear(3, 3, device="meta"), sgd, None),
    "max_norm": (
        "max_norm: its forward changes weights", lambda: nn.EmbeddingBag(5, 3, max_norm=1.0), sgd, None,
    ),
    "expanded": ("bias is an expanded tensor", expanded, sgd, None),
    "sharing memory": (r"0\.weight and 1\.weight share memory|1\.weight and 0\.weight", sharing_memory, sgd, None),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACHING)
def test_models_and_optimizers(name: str) -> None:
    message, make_model, make, settings = ATTACHING[name]
    refused(Unsupported, message, attaching(make_model, make), settings)


OPTIONS: list[tuple[str, Any]] = [
    ("clip_norm", 0.0), ("clip_norm", math.nan), ("clip_norm", "1"), ("overlap", "backward"), ("push_at", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_options_of_attach(option: str, value: Any) -> None:
    refused(Unsupported, option, attaching(small_model, sgd, **{option: value}))


def test_what_is_no_model_or_optimizer() -> None:
    model = small_model()
    scheduler = torch.optim.lr_scheduler.StepLR(sgd(model), 1)
    for given in ((sgd(model), model), (model, scheduler), (nn.Linear, torch.optim.SGD), (model, None)):
        refused(Unsupported, r"takes a torch\.nn\.Module", lambda run, given=given: run.attach(*given))


def test_an_optimizer_of_another_run() -> None:
    model, others = small_model(), list[torch.optim.Optimizer]()
    train([], lambda run: others.append(run.attach(model, sgd(model))[1]))
    refused(Unsupported, "belongs to another run", lambda run: run.attach(model, others[0]))


def test_workers_with_different_models_or_optimizers() -> None:
    def models(run: LiveRun) -> None:
        attaching(lambda: nn.Linear(3, 4 if run.is_first else 5), sgd)(run)

    def optimizers(run: LiveRun) -> None:
        begin(run, sgd if run.is_first else adam)

    refused(Refused, "model.fingerprint", models, parties=(2,))
    refused(Refused, "optimizer", optimizers, parties=(2,))


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def replace(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("edit", [clip, replace, nn.Module.zero_grad])
def test_edited_gradients(edit: Callable[[nn.Module], None]) -> None:
    def body(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        edit(model)
        optimizer.step()

    refused(GradientEdited, 'push_at="step"', training(body))


def moves_its_rate(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.2
    optimizer.step()


BEHIND_BACKWARD: dict[str, tuple[type[GeomxError], str, Any]] = {
    "a second backward": (Unsupported, r"run\.accumulate", lambda run, m, o: F.mse_loss(m(X), Y).backward()),
    "accumulate": (Unsupported, "only the last backward", lambda run, m, o: run.accumulate().__enter__()),
    "a schedule": (Disagreement, r"lr of parameter group 0.*after optimizer\.step", moves_its_rate),
    "add_param_group": (
        Unsupported, "before attach", lambda r, m, o: o.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    ),
    "save": (Unsupported, r"call step\(\) first", lambda run, m, o: run.save("never.safetensors")),
}  # fmt: skip


@pytest.mark.parametrize("what", BEHIND_BACKWARD)
def test_behind_a_backward_that_has_pushed(what: str) -> None:
    error, message, body = BEHIND_BACKWARD[what]
    refused(error, message, training(body))


def test_unfreezing_later() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        model[0].requires_grad_(False)
        model, optimizer = run.attach(model, sgd(model))
        model.requires_grad_(True)
        descend(model, optimizer, X, Y)

    refused(Unsupported, r"0\.weight was frozen", script)


def steps_too_early(run: LiveRun) -> None:
    _, optimizer = begin(run)
    with run.accumulate():
        optimizer.step()


CALLS: list[tuple[str, Any]] = [
    *(
        ("finite", lambda run, w=w: run.weight(w))
        for w in (-1.0, math.nan, math.inf, "many", None, torch.ones(2))
    ),
    *(("DataLoader", lambda run, given=given: run.shard(given)) for given in (None, 3, TensorDataset(X, Y))),
    ('"party".*"run"', lambda run: run.shard([], over="world")),
    *(
        ("takes a number or text", lambda run, value=value: run.log(loss=value))
        for value in (torch.ones(2), object(), [1.0])
    ),
    (r"before run\.attach", lambda run: run.accumulate()),
    (r"before run\.attach", lambda run: run.save("never.safetensors")),
    ("give several a name each", lambda run: [begin(run) for _ in range(2)]),
    ("after the block", steps_too_early),
]


def counts_nothing(run: LiveRun) -> None:
    F.mse_loss(begin(run)[0](X), Y).backward()


@pytest.mark.parametrize(("message", "call"), CALLS)
def test_calls_that_cannot_be_meant(message: str, call: Any) -> None:
    refused(Unsupported, message, call)


def test_a_weight_that_is_not_known() -> None:
    refused(WeightUnknown, r"run\.shard", counts_nothing, parties=(2,))
    refused(ConfigError, "dataset_size", lambda run: None, Settings(weight="dataset_size"))


def test_calls_after_close(tmp_path: Any) -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        run.close()
        calls: list[Callable[[], Any]] = [
            optimizer.step,
            optimizer.state_dict,
            run.wait,
            lambda: run.save(tmp_path / "c"),
            lambda: list(run.shard([(X, Y)])),
        ]
        for call in calls:
            with pytest.raises(Unsupported, match=r"before run\.close"):
                call()
        run.close()  # once more changes nothing
        model(X).sum().backward()  # the model is an ordinary one again

    train([1, 1], script)
