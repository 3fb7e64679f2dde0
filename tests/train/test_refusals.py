"""What cannot work as in plain PyTorch says so, and says what would work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import batch, parts_of, place_of, small_model, train
from torch import nn
from torch.utils.data import TensorDataset

from geomx.errors import (
    ConfigError,
    Disagreement,
    GeomxError,
    GradientEdited,
    Refused,
    RunFailed,
    Unsupported,
    WeightUnknown,
)
from geomx.train import LiveRun, Settings

X, Y = batch(0, 4)
Make = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


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
        model = small_model()
        model, optimizer = run.attach(model, sgd(model), **options)
        run.weight(4)
        F.mse_loss(model(X), Y).backward()
        body(run, model, optimizer)

    return script


OPTIMIZERS: dict[str, tuple[Make, str]] = {
    "LBFGS": (lambda model: torch.optim.LBFGS(model.parameters()), "one gradient a step"),
    "SparseAdam": (lambda model: torch.optim.SparseAdam(list(model.parameters())), "torch.optim.Adam"),
    "differentiable": (lambda m: torch.optim.SGD(m.parameters(), 0.1, differentiable=True), "leave it False"),
    "capturable": (lambda m: torch.optim.Adam(m.parameters(), capturable=True), "leave it False"),
    "foreign": (lambda model: torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1), "ModuleDict"),
    "nothing": (lambda model: sgd(model.requires_grad_(False)), "nothing is trained"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    make, message = OPTIMIZERS[name]
    refused(Unsupported, message, attaching(small_model, make))


def test_a_subclass_on_the_server() -> None:
    class Own(torch.optim.SGD):
        pass

    script = attaching(small_model, lambda model: Own(model.parameters(), lr=0.1))
    refused(Unsupported, "subclasses", script, Settings(place="server"))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def half() -> nn.Module:
    return small_model(dtype=torch.bfloat16)


def sparse() -> nn.Module:
    return nn.Embedding(5, 3, sparse=True)


def meta() -> nn.Module:
    return nn.Linear(3, 3, device="meta")


def max_norm() -> nn.Module:
    return nn.EmbeddingBag(5, 3, max_norm=1.0)


def expanded() -> nn.Module:
    model = nn.Linear(3, 3)
    model.bias = nn.Parameter(torch.zeros(1).expand(3))
    return model


def sharing_memory() -> nn.Module:
    """A tie by mistake: two parameters over one piece of memory."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


MODELS: dict[Callable[[], nn.Module], str] = {
    lazy: "run one forward",
    half: "autocast",
    sparse: "sparse=True",
    meta: "materialize",
    max_norm: "max_norm: its forward changes weights",
    expanded: "bias is an expanded tensor",
    sharing_memory: r"0\.weight and 1\.weight share memory|1\.weight and 0\.weight share memory",
}


@pytest.mark.parametrize(("make_model", "message"), MODELS.items())
def test_models(make_model: Callable[[], nn.Module], message: str) -> None:
    refused(Unsupported, message, attaching(make_model, sgd))


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.0},
        {"clip_norm": float("nan")},
        {"clip_norm": "1"},
        {"overlap": "backward"},
        {"push_at": "x"},
    ],
)
def test_options_of_attach(options: dict[str, Any]) -> None:
    refused(Unsupported, next(iter(options)), attaching(small_model, sgd, **options))


def test_what_is_no_model_or_optimizer() -> None:
    model = small_model()
    scheduler = torch.optim.lr_scheduler.StepLR(sgd(model), 1)
    for given in ((sgd(model), model), (model, scheduler), (nn.Linear, torch.optim.SGD), (model, None)):
        refused(Unsupported, r"takes a torch\.nn\.Module", lambda run, given=given: run.attach(*given))


def test_an_optimizer_of_another_run() -> None:
    model, others = small_model(), list[torch.optim.Optimizer]()
    train([], lambda run: others.append(run.attach(model, sgd(model))[1]))
    refused(Unsupported, "belongs to another run", lambda run: run.attach(model, others[0]))


def test_a_second_attach() -> None:
    def script(run: LiveRun) -> None:
        for _ in range(2):
            attaching(small_model, sgd)(run)

    refused(Unsupported, "ModuleDict", script)


def test_workers_with_different_models() -> None:
    def script(run: LiveRun) -> None:
        model = nn.Linear(3, 4 if run.is_first else 5)
        run.attach(model, sgd(model))

    refused(Refused, "model.fingerprint", script, parties=(2,))


def test_workers_with_different_optimizers() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        run.attach(model, sgd(model) if run.is_first else torch.optim.Adam(model.parameters()))

    refused(Refused, "optimizer", script, parties=(2,))


def test_workers_with_different_learning_rates() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        optimizer.param_groups[0]["lr"] = 0.1 if run.is_first else 0.2
        run.weight(4)
        F.mse_loss(model(X), Y).backward()
        optimizer.step()

    for place in ("server", "workers"):
        refused(GeomxError, "have different hyper-parameters", script, Settings(place=place), parties=(1, 1))


def edit(optimizer: torch.optim.Optimizer, change: Callable[[torch.Tensor], Any]) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            change(parameter.grad)
    optimizer.step()


def test_edited_gradients() -> None:
    def clip(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    def replace(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    def clear(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        optimizer.step()

    for body in (clip, replace, clear):
        refused(GradientEdited, 'push_at="step"', training(body))


def test_a_second_backward() -> None:
    refused(
        Unsupported, r"run\.accumulate", training(lambda run, model, o: F.mse_loss(model(X), Y).backward())
    )


def test_accumulate_behind_a_push() -> None:
    def body(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with run.accumulate():
            pass

    refused(Unsupported, "only the last backward", training(body))


def test_step_within_accumulate() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        with run.accumulate():
            optimizer.step()

    refused(Unsupported, "after the block", script)


def test_a_schedule_that_moves_before_step() -> None:
    def body(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.2
        optimizer.step()

    refused(Disagreement, r"lr of parameter group 0.*after optimizer\.step", training(body))


def test_unfreezing_later() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        model[0].requires_grad_(False)
        model, optimizer = run.attach(model, sgd(model))
        model.requires_grad_(True)
        F.mse_loss(model(X), Y).backward()
        optimizer.step()

    refused(Unsupported, r"0\.weight was frozen", script)


def test_add_param_group() -> None:
    def body(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})

    refused(Unsupported, "before attach", training(body))


@pytest.mark.parametrize("unscale", [True, False])
def test_grad_scaler(unscale: bool) -> None:
    def script(run: LiveRun) -> None:
        model = small_model(dtype=torch.float32)
        model, optimizer = run.attach(model, sgd(model))
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(F.mse_loss(model(X.float()), Y.float())).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)

    refused(Unsupported, "bfloat16", script)


def test_save_between_backward_and_step(tmp_path: Any) -> None:
    refused(
        Unsupported, r"call step\(\) first", training(lambda run, m, o: run.save(tmp_path / "c.safetensors"))
    )


def test_no_samples_counted() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        model, _ = run.attach(model, sgd(model))
        F.mse_loss(model(X), Y).backward()

    refused(WeightUnknown, r"run\.shard", script, parties=(2,))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), "many", None, torch.ones(2)])
def test_impossible_weights(weight: Any) -> None:
    refused(Unsupported, "finite", lambda run: run.weight(weight))


@pytest.mark.parametrize("loader", [None, 3, TensorDataset(X, Y)])
def test_what_is_no_loader(loader: Any) -> None:
    refused(Unsupported, "DataLoader", lambda run: run.shard(loader))


def test_a_share_of_the_world() -> None:
    refused(Unsupported, '"party".*"run"', lambda run: run.shard([], over="world"))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [torch.ones(2), object(), [1.0]])
def test_what_cannot_be_logged(value: Any) -> None:
    refused(Unsupported, "takes a number or text", lambda run: run.log(loss=value))


def test_dataset_size_without_a_size() -> None:
    refused(ConfigError, "dataset_size", lambda run: None, Settings(weight="dataset_size"))


def test_calls_before_attach(tmp_path: Any) -> None:
    refused(Unsupported, r"before run\.attach", lambda run: run.accumulate())
    refused(Unsupported, r"before run\.attach", lambda run: run.save(tmp_path / "c.safetensors"))


def test_calls_after_close(tmp_path: Any) -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        _, optimizer = run.attach(model, sgd(model))
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


def test_different_calls() -> None:
    def script(run: LiveRun) -> None:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5)).double()
        model, optimizer = run.attach(model, sgd(model))
        run.weight(4)
        if run.is_first:
            optimizer.load_state_dict(optimizer.state_dict())
        else:
            F.mse_loss(model(X), Y).backward()
            optimizer.step()

    refused(GeomxError, r"step\(\) where A/0 called load_state_dict\(\)", script, parties=(2,))


def test_a_script_that_raises_ends_the_run_for_all() -> None:
    heard: list[str] = []

    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        if run.name == "B/0":
            raise ZeroDivisionError("a bug of the user's")
        x, y = parts_of(0, 2)[place_of(run)]
        run.weight(len(x))
        F.mse_loss(model(x), y).backward()
        try:
            optimizer.step()
        except RunFailed as error:
            heard.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError):
        train([1, 1], script)
    assert len(heard) == 1
    assert "B/0" in heard[0]
    assert "a bug of the user's" in heard[0]
