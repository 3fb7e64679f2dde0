"""From nothing to a description of sites, and what `geomx doctor` finds on the way."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from geomx import __version__
from geomx.config import Run, load_whole
from geomx.errors import ConfigError
from geomx.launch import doctor as doctors
from geomx.launch.doctor import findings
from geomx.launch.engines.machines import problems_of
from geomx.launch.init import Answers, init

GIVEN = Answers("train.py", ("paris=me@gpu1,gpu2", "tokyo=slurm", "boston=local"), 2, "203.0.113.7")


def test_four_answers_make_a_run_of_three_sites_in_25_lines(tmp_path: Path) -> None:
    file = tmp_path / "sites.toml"
    assert "geomx up" in init(file, GIVEN)
    assert len([line for line in file.read_text().splitlines() if line]) <= 25
    run = load_whole(file)
    assert [(site.party, site.engine, site.hosts) for site in run.sites] == [
        ("paris", "ssh", ("me@gpu1", "gpu2")),
        ("tokyo", "slurm", ()),
        ("boston", "local", ()),
    ]
    assert run.global_.addresses == ("203.0.113.7:9000",)
    with pytest.raises(ConfigError, match="which is there"):
        init(file, GIVEN)


def test_what_is_not_given_is_asked_for(tmp_path: Path) -> None:
    said = {"reach": "", "script": "", "Your sites": "a=local b=h1", "Workers": "3"}
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return next(answer for word, answer in said.items() if word in question)

    init(tmp_path / "run.toml", Answers(), ask)
    run = Run.load(tmp_path / "run.toml")
    assert len(asked) == 4
    assert run.run.script == tmp_path / "train.py"
    assert [party.workers for party in run.parties] == [3, 3]
    assert run.global_.addresses == ("127.0.0.1:9000",)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (Answers("t.py", ("paris",), 1, "h"), "NAME=HOST,HOST or NAME=ENGINE"),
        (Answers("t.py", ("a=local", "A=local"), 1, "h"), "no other party"),
        (Answers("t.py", ("a=local",), 0, "h"), "≥ 1"),
        (Answers("t.py", ("a=local",), 1, "h:x"), "a port is"),
        (Answers(), "nobody can be asked here"),
    ],
)
def test_answers_that_make_no_run_write_no_file(tmp_path: Path, answers: Answers, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        init(tmp_path / "run.toml", answers)
    assert not (tmp_path / "run.toml").exists()


def test_the_doctor_looks_at_the_machine_and_the_way_to_the_global_server(tmp_path: Path) -> None:
    with socket.socket() as there, socket.socket() as nobody:
        there.bind(("127.0.0.1", 0))
        there.listen()
        nobody.bind(("127.0.0.1", 0))
        ports = there.getsockname()[1], nobody.getsockname()[1]
        addresses = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        text = f"run = {{ shards = 2 }}\nglobal = {{ addresses = [{addresses}] }}\n"
        text += 'party = [{ name = "a", workers = 1 }]'
        file = tmp_path / "run.toml"
        found = [str(each) for each in findings(Run.parse(text, str(file)), file)]
    assert any(f"global/0 at 127.0.0.1:{ports[0]} answers after" in line for line in found)
    assert any(
        line.startswith("note") and f"127.0.0.1:{ports[1]} can be reached, and nobody listens" in line
        for line in found
    )
    assert any("packets to 127.0.0.1 may have" in line for line in found)
    for words in ("PyTorch 2.", "cores", "MB of memory", "MB of disk", "files may be open", "clock"):
        assert any(words in line for line in found), words


def test_what_is_wrong_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "512")
    monkeypatch.setattr(doctors, "LEAST_FILES", 1 << 40)
    wrong = [str(each) for each in findings(None, None) if each.verdict == "wrong"]
    assert any("OMP_NUM_THREADS=512 on" in line and "leave it unset" in line for line in wrong)
    assert any("ulimit -n" in line for line in wrong)


FINE = {
    "python": [3, 12, 1],
    "geomx": __version__,
    "torch": "2.7",
    "time": 0.0,
    "free_mb": 10_000,
    "writable": True,
    "folder": "/home/me",
    "keeps": False,
    "unreached": {},
    "taken": {},
}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"python": [3, 8, 10]}, "is Python 3.8.10: geomx needs 3.11"),
        ({"geomx": None}, "geomx is not installed for `py`: pip install geomx=="),
        ({"geomx": "9.9"}, "geomx 9.9 is installed, and .* here"),
        ({"torch": None}, "PyTorch is not installed"),
        ({"time": 3600.0}, "its clock is 3,600 s off"),
        ({"free_mb": 3}, "3 MB are free at /home/me"),
        ({"writable": False}, "/home/me cannot be written"),
        ({"unreached": {"h:1": "No route to host"}}, r"h:1 cannot be reached \(No route to host\)"),
        (
            {"taken": {"h:1": "Address already in use"}},
            r"no server can listen at h:1 \(Address already in use\)",
        ),
    ],
)
def test_what_a_probe_finds_wrong_is_one_line_with_a_remedy(found: dict[str, object], words: str) -> None:
    (line,) = problems_of({**FINE, **found}, (0.0, 0.0), "py")
    assert re.search(words, line)


def test_a_machine_on_which_all_is_well_has_no_lines() -> None:
    assert problems_of(FINE, (0.0, 0.0), "py") == []
    assert problems_of({**FINE, "keeps": True, "taken": {"h:1": "its own node"}}, (0.0, 0.0), "py") == []
