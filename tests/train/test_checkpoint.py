"""Checkpoints: what one run saves another goes on from, to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from live_runs import Make, assert_equal, begin, lockstep, own, place_of, small_model, train, weights
from policy_runs import train_by
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from geomx.errors import CheckpointError, GeomxError, Unsupported
from geomx.train import LiveRun, Settings

CUT = Settings(slice_elements=512, pack_below=100)


class Normed(nn.Module):
    """Buffers of every kind, a frozen layer and a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_model()
        self.norm = nn.BatchNorm1d(5, dtype=torch.float64)
        self.frozen = nn.Linear(5, 5, dtype=torch.float64).requires_grad_(False)
        with torch.no_grad():
            self.frozen.weight.copy_(torch.eye(5))
            self.frozen.bias.zero_()
        self.tied = self.body[2]
        self.phase = nn.ParameterList([torch.full((5,), 1 + 1j, dtype=torch.complex128)])
        self.register_buffer("table", torch.full((3,), 1 + 2j, dtype=torch.complex64))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("derived", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.norm(self.body(x)) * self.phase[0].abs())


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)


def saving(path: Path, make: Make = adam, **options: Any) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    """Three steps, a checkpoint with a learning rate of its own, three steps."""

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make, Normed(), **options)
        lockstep(run, model, optimizer, range(3))
        optimizer.param_groups[0]["lr"] *= 0.3
        run.save(path)
        lockstep(run, model, optimizer, range(3, 6))
        return dict(weights(model))

    return script


def loading(path: Path, make: Make = adam) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model = Normed()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        model, optimizer = run.attach(model, make(model))
        lockstep(run, model, optimizer, range(1))
        run.load(path)
        lockstep(run, model, optimizer, range(3, 6))
        return weights(model)

    return script


def parameters(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    return {name: tensor for name, tensor in values.items() if name not in buffers}


@pytest.mark.parametrize(("parties", "make"), [([1], adam), ([2, 1], own)])
def test_a_run_goes_on_from_a_checkpoint(parties: list[int], make: Make, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    saved, _ = train(parties, saving(path, make), CUT)
    loaded, _ = train(parties, loading(path, make), CUT, shards=2)
    assert_equal(parameters(loaded["A/0"]), parameters(saved["A/0"]))
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_overlapping_training(tmp_path: Path) -> None:
    train([1, 1], saving(tmp_path / "one"), CUT)
    train([1, 1], saving(tmp_path / "other", overlap="forward"), CUT)
    assert_equal(load_file(tmp_path / "one"), load_file(tmp_path / "other"))


def test_buffers_are_averaged_by_samples_and_stay_local(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    seen: dict[str, dict[str, torch.Tensor]] = {}

    def script(run: LiveRun) -> int:
        model, optimizer = begin(run, adam, Normed())
        lockstep(run, model, optimizer, range(3))
        before = weights(model)
        run.save(path)
        seen[run.name] = weights(model)
        assert_equal(seen[run.name], before)
        return run._samples.seen

    counts, _ = train([2, 1], script, CUT)
    file, total = load_file(path), sum(counts.values())
    for name in ("norm.running_mean", "norm.running_var"):
        mean = sum(counts[worker] * values[name] for worker, values in seen.items()) / total
        torch.testing.assert_close(file[f"model.{name}"], mean, rtol=1e-12, atol=0.0)
        assert not torch.equal(seen["A/0"][name], seen["B/0"][name])
    assert file["model.norm.num_batches_tracked"].item() == 3
    assert file["model.flags"].tolist() == [True, False]
    assert "model.derived" not in file


def test_all_begin_with_the_buffers_of_the_first(tmp_path: Path) -> None:
    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model = Normed()
        model.norm.running_mean.fill_(place_of(run))
        model.table.fill_(place_of(run) + 1j)
        model.derived.fill_(place_of(run))
        with torch.no_grad():
            model.frozen.weight.fill_(place_of(run))
        run.attach(model, adam(model))
        return {**weights(model), "derived": model.derived}

    results, _ = train([1, 1], script)
    assert_equal(results["B/0"], results["A/0"])
    assert results["B/0"]["table"].tolist() == [1j] * 3


def test_a_checkpoint_is_as_readable_as_any_file(tmp_path: Path) -> None:
    path, other = tmp_path / "model.safetensors", tmp_path / "other"
    other.touch()

    def script(run: LiveRun) -> None:
        begin(run)
        run.save(path)
        if run.is_first:
            assert path.stat().st_mode == other.stat().st_mode
            path.chmod(0o600)
        run.save(path)

    train([1], script)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("spec", ["fsa", "hfa k1=2 k2=1", "diloco every=2", "esync"])
def test_the_files_of_the_parties_are_loaded_together(spec: str, tmp_path: Path) -> None:
    """Which the first worker of each has written; where steps are local, each has its own optimizer's state."""

    def script(run: LiveRun, loads: bool) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, adam, Normed())
        if loads:
            run.load(tmp_path / f"{run.party}0")
        else:
            lockstep(run, model, optimizer, range(4))
            run.save(tmp_path / f"{run.party}{run.rank}", everywhere=True)
        return {name: value for name, value in weights(model).items() if value.is_floating_point()}

    parties = [1, 1] if spec == "esync" else [2, 1]  # else its workers take steps of their own number
    train_by(spec, parties, partial(script, loads=False))
    assert {path.name for path in tmp_path.iterdir()} == {"A0", "B0"}
    ours, theirs = (load_file(tmp_path / name) for name in ("A0", "B0"))
    state = [key for key in ours if key.startswith("optimizer.")]
    assert all(ours[key].equal(theirs[key]) for key in state) is (spec == "fsa")
    results, _ = train_by(spec, parties, partial(script, loads=True))
    assert_equal(results["A/0"], results["B/0"])
    for name, value in results["A/0"].items():
        assert name.startswith("tied") or value.equal(ours[f"model.{name}"])


def test_files_that_differ_in_what_must_agree_are_told_apart(tmp_path: Path) -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begin(run, adam, Normed())
        path = tmp_path / run.party
        if path.exists():
            run.load(path)
        lockstep(run, model, optimizer, range(2))
        run.save(path, everywhere=True)

    train_by("hfa k1=2 k2=1", [1, 1], script)
    kept = (tmp_path / "A").read_bytes()
    train_by("hfa k1=2 k2=1", [1, 1], script)
    (tmp_path / "A").write_bytes(kept)
    text = r"B/0 called load\(\) of file \w+ where A/0 called load\(\) of file"
    with pytest.raises(GeomxError, match=text):
        train_by("hfa k1=2 k2=1", [1, 1], script)


@pytest.mark.parametrize("spec", ["mixed", "downpour"])
def test_a_file_for_each_party_is_refused_where_parties_have_weights_of_their_own(
    spec: str, tmp_path: Path
) -> None:
    def script(run: LiveRun) -> None:
        begin(run, adam, Normed())
        run.save(tmp_path / run.party, everywhere=True)

    with pytest.raises(Unsupported, match="copy the first worker's file"):
        train_by(spec, [1, 1], script)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    train([1], saving(path))
    model = Normed()
    state = {
        name.removeprefix("model."): tensor for name, tensor in load_file(path).items() if "model." in name
    }
    for name in ("table", "phase.0"):
        state[name] = torch.view_as_complex(state[name])
    assert torch.equal(state.pop("table"), model.table)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) == {"tied.weight", "tied.bias", "table"}  # a tied tensor is stored once
    assert not unexpected
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["geomx"])
        assert "optimizer.body.0.weight.exp_avg" in file.keys()  # noqa: SIM118
    assert about["param_groups"][0]["lr"] == pytest.approx(0.003)
    assert about["turn"] == 5
    assert about["optimizer"] == "torch.optim.adam.Adam"


# -- files that do not fit ---------------------------------------------------------------------------------------


def load_into(model: nn.Module, make: Make, path: Path) -> None:
    def script(run: LiveRun) -> None:
        run.attach(model, make(model))
        run.load(path)

    train([1], script)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    train([1], saving(tmp_path / "c"))
    return tmp_path / "c"


def test_another_model(path: Path) -> None:
    other = Normed()
    other.norm = nn.BatchNorm1d(6, dtype=torch.float64)
    other.extra = nn.Linear(2, 2)
    del other.frozen
    with pytest.raises(CheckpointError) as caught:
        load_into(other, adam, path)
    text = str(caught.value)
    assert "missing: extra.weight" in text
    assert "unexpected: frozen.bias" in text
    shapes = "norm.weight is torch.float64 (5,) in the file, torch.float64 (6,) in the model"
    assert f"of another shape: {shapes}" in text


def test_another_optimizer(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"torch\.optim\.adam\.Adam with 1"):
        load_into(Normed(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1), path)
    with pytest.raises(CheckpointError, match="other parameters"):
        load_into(Normed(), lambda model: torch.optim.Adam(model.body.parameters()), path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="copy it"):
        load_into(Normed(), adam, tmp_path / "nothing")


def test_damaged_files(path: Path) -> None:
    data = path.read_bytes()
    for damaged in (b"", data[:50], data[:-10], b"\xff" * 64):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_into(Normed(), adam, path)
    for about in ("null", "{}", '{"format": 99}', "no json", '{"format": 1, "values": 3}'):
        save_file({"x": torch.zeros(1)}, path, metadata={"geomx": about})
        with pytest.raises(CheckpointError):
            load_into(Normed(), adam, path)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        train([1], saving(tmp_path / "missing" / "c"))


def test_state_that_is_no_tensor(tmp_path: Path) -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        optimizer = begin(run, own, model)[1]
        optimizer.state[model[0].weight]["callback"] = print
        run.save(tmp_path / "c")

    with pytest.raises(CheckpointError, match=r"callback of 0\.weight"):
        train([1], script)
