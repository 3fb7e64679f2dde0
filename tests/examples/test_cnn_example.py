"""The examples' model and data, apart from any run."""

import gzip
import importlib
import re
import runpy
import struct
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from geomx.config import Run
from geomx.errors import DataMissing

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def data(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("data")


@pytest.fixture
def cnn(data):
    return importlib.import_module("cnn")


def test_the_model_is_geomxs(cnn):
    model = cnn.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 178_762
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_digits_are_grey_images_of_ten_classes_split_the_same_on_every_worker(data):
    train, test = data.load("digits")
    assert (len(train), len(test)) == (1438, 359)
    images = torch.cat([train.tensors[0], test.tensors[0]])
    labels = torch.cat([train.tensors[1], test.tensors[1]])
    assert images.shape == (1797, 1, 28, 28)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert labels.unique().tolist() == list(range(10))
    torch.manual_seed(7)
    again, _ = data.load("digits")
    assert torch.equal(train.tensors[0], again.tensors[0])


def test_parties_by_class_share_no_class_and_have_all_samples(data):
    train, _ = data.load("digits")
    for parts in (1, 3, 10):
        shares = [data.by_class(train, part, parts) for part in range(parts)]
        seen = [set(train.tensors[1][share.indices].tolist()) for share in shares]
        assert sum(len(share) for share in shares) == len(train)
        assert sum(len(classes) for classes in seen) == len(set().union(*seen)) == 10
    with pytest.raises(ValueError, match="10 classes cannot be split over 11 parties"):
        data.by_class(train, 0, 11)


def test_an_epoch_lowers_the_loss_and_raises_the_accuracy(cnn, data):
    torch.manual_seed(0)
    train, test = data.load("digits")
    model = cnn.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    untrained = cnn.evaluate(model, DataLoader(test, 500))
    batches = DataLoader(Subset(train, range(600)), 30)
    first, second = (cnn.train(model, optimizer, batches) for _ in range(2))
    assert second < first
    assert cnn.evaluate(model, DataLoader(test, 500)) > max(untrained, 0.5)


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("sgd", "SGD"), ("adagrad", "Adagrad")])
def test_the_optimizer_is_the_one_that_was_asked_for(cnn, monkeypatch, name, kind):
    momentum = ["--momentum", "0.9"] if name == "sgd" else []
    monkeypatch.setattr("sys.argv", ["cnn.py", "--optimizer", name, "--lr", "0.25", *momentum])
    optimizer = cnn.build_optimizer(torch.nn.Linear(1, 1), cnn.arguments())
    assert type(optimizer).__name__ == kind
    assert optimizer.defaults["lr"] == 0.25
    assert optimizer.defaults.get("momentum", 0.9) == 0.9


@pytest.mark.parametrize(
    "words", [["--momentum", "0.9"], ["--rounds", "3", "--checkpoint", "cnn.safetensors"]], ids=" ".join
)
def test_arguments_that_would_have_no_effect_are_refused(cnn, monkeypatch, words):
    monkeypatch.setattr("sys.argv", ["cnn.py", *words])
    with pytest.raises(SystemExit) as end:
        cnn.arguments()
    assert end.value.code == 2


def test_an_epoch_may_be_of_rounds(monkeypatch, capsys):
    """And the script trains alone."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("sys.argv", ["cnn.py", "--epochs", "2", "--rounds", "3", "--batch", "8"])
    runpy.run_path(str(EXAMPLES / "cnn.py"), run_name="__main__")
    assert re.findall(r"^epoch +(\d+) ", capsys.readouterr().out, re.MULTILINE) == ["1", "2"]


def write_idx(path, extents, body):
    header = struct.pack(f">HBB{len(extents)}I", 0, 8, len(extents), *extents)
    path.write_bytes(gzip.compress(header + bytes(body)))


def write_fashion_mnist(folder, samples=3):
    for prefix in ("train", "t10k"):
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", (samples, 28, 28), [255] * samples * 784)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", (samples,), range(samples))


def test_fashion_mnist_is_read_from_its_original_files(data, tmp_path):
    write_fashion_mnist(tmp_path)
    train, test = data.load("fashion-mnist", tmp_path)
    assert train.tensors[0].shape == test.tensors[0].shape == (3, 1, 28, 28)
    assert train.tensors[0].unique().tolist() == [1.0]
    assert train.tensors[1].tolist() == [0, 1, 2]


def test_missing_data_says_how_to_get_it(data, tmp_path):
    with pytest.raises(DataMissing, match=r"apt install dataset-fashion-mnist.*--data-folder"):
        data.load("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"\0\0\x08\x01\0\0\0\x03\0\1", mtime=0),
        gzip.compress(b"\0\0\x08\x02\0\0\0\x01\0\0\0\x01\0", mtime=0),
        b"not gzip at all",
    ],
)
def test_damaged_data_is_refused(data, tmp_path, content):
    write_fashion_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataMissing):
        data.load("fashion-mnist", tmp_path)


KVSTORE = "kvstore-bisparse", "kvstore-fp16", "kvstore-mpq"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_description_of_every_run_holds_together(path):
    named = {"lightning": "lightning_cnn.py"} | dict.fromkeys(KVSTORE, "kvstore_demos.py")
    run, script = Run.load(path), named.get(path.stem, f"{path.stem}.py")
    assert run.run.script == EXAMPLES / (script if (EXAMPLES / script).is_file() else "cnn.py")
