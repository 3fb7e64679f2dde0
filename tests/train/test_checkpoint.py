"""Checkpoints: what one run saves another goes on from, to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_equal, parts_of, place_of, small_model, train, weights
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from geomx.errors import CheckpointError, GeomxError, Unsupported
from geomx.sync import policies
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
        self.register_buffer("table", torch.full((3,), 1 + 2j, dtype=torch.complex64))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("derived", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.norm(self.body(x)))


Make = Callable[[nn.Module], torch.optim.Optimizer]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)


class OwnSGD(torch.optim.SGD):
    """No rule of the servers': it runs on the workers."""


def own(model: nn.Module) -> torch.optim.Optimizer:
    return OwnSGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def steps(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer, which: range) -> None:
    for step in which:
        x, y = parts_of(step, len(run.workers))[place_of(run)]
        run.weight(len(x))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def saving(path: Path, make: Make = adam, **options: Any) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    """Three steps, a checkpoint with a learning rate of its own, three steps."""

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model = Normed()
        model, optimizer = run.attach(model, make(model), **options)
        steps(run, model, optimizer, range(3))
        optimizer.param_groups[0]["lr"] *= 0.3
        run.save(path)
        if options.get("load_again"):
            run.load(path)
        steps(run, model, optimizer, range(3, 6))
        return dict(weights(model))

    return script


def loading(path: Path, make: Make = adam) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model = Normed()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        model, optimizer = run.attach(model, make(model))
        steps(run, model, optimizer, range(1))
        run.load(path)
        steps(run, model, optimizer, range(3, 6))
        return weights(model)

    return script


def parameters(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    return {name: tensor for name, tensor in values.items() if name not in buffers}


@pytest.mark.parametrize("make", [adam, own])
@pytest.mark.parametrize("parties", [[1], [2, 1]])
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
        model = Normed()
        model, optimizer = run.attach(model, adam(model))
        steps(run, model, optimizer, range(3))
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
        model = small_model()
        run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run.save(path)
        if run.is_first:
            assert path.stat().st_mode == other.stat().st_mode
            path.chmod(0o600)
        run.save(path)

    train([1], script)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_for_each_party(tmp_path: Path) -> None:
    def script(run: LiveRun) -> None:
        model = Normed()
        model, optimizer = run.attach(model, adam(model))
        steps(run, model, optimizer, range(2))
        run.save(tmp_path / run.party / str(run.rank), everywhere=True)

    for party in ("A", "B"):
        (tmp_path / party).mkdir()
    train([2, 2], script)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*")) == ["A/0", "B/0"]
    assert_equal(load_file(tmp_path / "A/0"), load_file(tmp_path / "B/0"))


@pytest.mark.parametrize("spec", ["fsa", "hfa k1=2 k2=1", "diloco every=2", "esync"])
def test_the_files_of_the_parties_are_loaded_together(spec: str, tmp_path: Path) -> None:
    """Where steps are local, each has its own optimizer's state."""

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        path = tmp_path / run.party
        model = Normed()
        model, optimizer = run.attach(model, adam(model))
        if path.exists():
            run.load(path)
        else:
            steps(run, model, optimizer, range(4))
            run.save(path, everywhere=True)
        return {
            name: value.clone() for name, value in model.state_dict().items() if value.is_floating_point()
        }

    settings = Settings(policy=policies.make(spec))
    train([1, 1], script, settings, policy=spec)
    if spec != "fsa":
        ours, theirs = (load_file(tmp_path / party) for party in ("A", "B"))
        assert any(not ours[key].equal(theirs[key]) for key in ours if key.startswith("optimizer."))
    results, _ = train([1, 1], script, settings, policy=spec)
    assert_equal(results["A/0"], results["B/0"])
    saved = load_file(tmp_path / "A")
    for name, value in results["A/0"].items():
        assert name.startswith("tied") or value.equal(saved[f"model.{name}"])


def test_files_that_differ_in_what_must_agree_are_told_apart(tmp_path: Path) -> None:
    def script(run: LiveRun) -> None:
        model = Normed()
        model, optimizer = run.attach(model, adam(model))
        path = tmp_path / run.party
        if path.exists():
            run.load(path)
        steps(run, model, optimizer, range(2))
        run.save(path, everywhere=True)

    settings = Settings(policy=policies.make("hfa k1=2 k2=1"))
    train([1, 1], script, settings, policy="hfa k1=2 k2=1")
    kept = (tmp_path / "A").read_bytes()
    train([1, 1], script, settings, policy="hfa k1=2 k2=1")
    (tmp_path / "A").write_bytes(kept)
    with pytest.raises(
        GeomxError, match=r"B/0 called load\(\) of file \w+ where A/0 called load\(\) of file"
    ):
        train([1, 1], script, settings, policy="hfa k1=2 k2=1")


@pytest.mark.parametrize("spec", ["mixed", "downpour"])
def test_a_file_for_each_party_is_refused_where_parties_have_weights_of_their_own(
    spec: str, tmp_path: Path
) -> None:
    def script(run: LiveRun) -> None:
        model = Normed()
        run.attach(model, adam(model))
        run.save(tmp_path / run.party, everywhere=True)

    with pytest.raises(Unsupported, match="copy the first worker's file"):
        train([1, 1], script, Settings(policy=policies.make(spec)), policy=spec)


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    train([1], saving(path))
    model = Normed()
    state = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(path).items()
        if name.startswith("model.")
    }
    assert torch.equal(torch.view_as_complex(state.pop("table")), model.table)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) == {"tied.weight", "tied.bias", "table"}  # a tied tensor is stored once
    assert not unexpected
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["geomx"])
        assert "optimizer.body.0.weight.exp_avg" in file.keys()  # noqa: SIM118
    assert about["param_groups"][0]["lr"] == pytest.approx(0.003)
    assert about["turn"] == 5
    assert about["optimizer"] == "torch.optim.adam.Adam"


def test_the_order_of_the_data_goes_on(tmp_path: Path) -> None:
    """The epoch is in the checkpoint: the passes of a run that goes on are shuffled as they would have been."""
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(20)), 4, shuffle=True)

    def whole(run: LiveRun) -> list[Any]:
        model = small_model()
        run.attach(model, adam(model))
        passes = [[x.tolist() for (x,) in run.shard(loader)] for _ in range(2)]
        run.save(tmp_path / "c")
        return [*passes, [x.tolist() for (x,) in run.shard(loader)]]

    def rest(run: LiveRun) -> list[Any]:
        model = small_model()
        run.attach(model, adam(model))
        run.load(tmp_path / "c")
        return [[x.tolist() for (x,) in run.shard(loader)] for _ in range(run.epoch, 3)]

    first, _ = train([1], whole)
    then, _ = train([1], rest)
    assert then["A/0"] == first["A/0"][2:]


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
    assert (
        "of another shape: norm.weight is torch.float64 (5,) in the file, torch.float64 (6,) in the model"
        in text
    )


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


@pytest.mark.parametrize("about", ["null", "{}", '{"format": 99}', "no json", '{"format": 1, "values": 3}'])
def test_files_of_others(path: Path, about: str) -> None:
    save_file({"x": torch.zeros(1)}, path, metadata={"geomx": about})
    with pytest.raises(CheckpointError):
        load_into(Normed(), adam, path)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        train([1], saving(tmp_path / "missing" / "c"))


def test_state_that_is_no_tensor(tmp_path: Path) -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        optimizer = OwnSGD(model.parameters(), lr=0.1)
        run.attach(model, optimizer)
        optimizer.state[model[0].weight]["callback"] = print
        run.save(tmp_path / "c")

    with pytest.raises(CheckpointError, match=r"callback of 0\.weight"):
        train([1], script)


def test_workers_that_read_different_files(tmp_path: Path) -> None:
    train([1, 1], saving(tmp_path / "A"))

    def script(run: LiveRun) -> None:
        model = Normed()
        run.attach(model, adam(model))
        if run.party == "B":
            data = (tmp_path / "A").read_bytes()
            assert b'\\"turn\\": 5' in data
            (tmp_path / "B").write_bytes(data.replace(b'\\"turn\\": 5', b'\\"turn\\": 6'))
        run.load(tmp_path / run.party)

    with pytest.raises(GeomxError, match=r"load\(\) of file.* where .*load\(\) of file"):
        train([1, 1], script)
