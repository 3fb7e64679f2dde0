"""README.md's snippet, description and commands, as its reader uses them. `make demo` is run by `tests/launch`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from following import begun, printed_by

from geomx.launch.local.ports import Ports

pytestmark = [pytest.mark.processes, pytest.mark.grids]

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
HEAD = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(20, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(480, 20), torch.randint(3, (480,))), batch_size=8)
"""


def block(language: str, beginning: str) -> str:
    (found,) = [text for of, text in BLOCKS if of == language and beginning in text]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(HEAD + block("python", "import geomx"))
    (tmp_path / "two.toml").write_text(block("toml", "# two.toml"))
    return tmp_path


def test_one_machine(folder: Path) -> None:
    printed = printed_by(begun(f"set -e\n{block('sh', 'geomx check')}", folder))
    assert all(told in printed for told in ("paris/1", "s/step", "the same on all workers", "two-bit"))
    assert "train on the same samples" in printed  # as README says that geomx tells
    assert (folder / "report.json").is_file()


def test_by_hand(folder: Path) -> None:
    """With addresses, as the tutorial gives them."""
    with Ports() as ports:
        hub, *local = (f'"127.0.0.1:{ports.hold()}"' for _ in range(3))
        text = (folder / "two.toml").read_text(encoding="utf-8")
        for party, address in zip(("paris", "tokyo"), local, strict=True):
            text = text.replace(f'name = "{party}"', f'name = "{party}"\naddress = {address}')
        (folder / "two.toml").write_text(f"global.addresses = [{hub}]\n{text}")
        first = block("sh", "geomx serve").splitlines()
        others = [line.replace("paris", "tokyo") for line in first[1:]]
        more = [line.replace("--rank 0", "--rank 1") for line in [*first, *others] if "--rank" in line]
        started = [begun(line, folder) for line in [*first, *others, *more]]
        try:
            assert len(started) == 7
            for node in started:
                printed_by(node)
        finally:
            for node in started:
                node.kill()


def test_every_block_of_commands_is_run() -> None:
    commands = [text.splitlines()[0].split("  ")[0] for language, text in BLOCKS if language == "sh"]
    assert commands == [
        "make demo",
        "python3 -m venv .venv",
        "geomx check two.toml",
        "geomx serve two.toml --role global",
    ]
