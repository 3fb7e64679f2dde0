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


def test_on_sites(folder: Path) -> None:
    """With the answers as options, and both sites on this machine."""
    init, *others = (line.partition("#")[0].strip() for line in block("sh", "geomx init").splitlines())
    with Ports() as ports:
        address = f"127.0.0.1:{ports.hold()}"
    answers = f" --script train.py --sites paris=local tokyo=local --workers 1 --address {address}"
    try:
        for command in (init + answers, *others):
            assert printed_by(begun(command, folder))
    finally:
        begun("geomx down sites.toml", folder).wait()
    assert [line.split()[1] for line in others] == ["up", "attach"]


def test_every_block_of_commands_is_run() -> None:
    commands = [text.splitlines()[0].split("  ")[0] for language, text in BLOCKS if language == "sh"]
    assert commands == ["make demo", "python3 -m venv .venv", "geomx check two.toml", "geomx init sites.toml"]
