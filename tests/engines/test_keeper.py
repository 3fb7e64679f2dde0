"""The keeper on a machine: what it places, keeps, starts again and ends. Its nodes are small programs here."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from geomx.config.tables.sites import SiteTable
from geomx.launch.engines import keeper, on_machine
from geomx.launch.engines.contract import Job, JobNode
from geomx.launch.engines.local import Local

WAIT_S = 30.0
SLEEPS = "import time; time.sleep(600)"
Call = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "state" / "run" / "paris.0"
    yield place
    ask("stop", str(place), "purge")


def ask(verb: str, *words: str, data: bytes = b"", status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, on_machine.__file__, verb, *words], input=data, capture_output=True, check=False
    )
    assert done.returncode == status, done.stderr.decode()
    return (done.stdout if status == 0 else done.stderr).decode()


def packed(nodes: dict[str, str], most: int = 2, **files: bytes) -> bytes:
    """The files of a job whose nodes are these programs of Python."""
    job = {
        "nodes": [
            {
                "name": name,
                "file": name.replace("/", "."),
                "argv": ["PYTHON", "-c", code],
                "serves": False,
                "environment": {},
                "most": most,
                "machine": 0,
            }
            for name, code in nodes.items()
        ],
        "within_s": 600,
        "stop_s": 4,
    }
    keep = f'#!/bin/sh\ncd "$(dirname "$0")"\nexec {sys.executable} keeper.py .\n'
    own = {"job.json": json.dumps(job), "keep.sh": keep, "keeper.py": Path(keeper.__file__).read_text()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in {**{name: text.encode() for name, text in own.items()}, **files}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def told(folder: Path, node: str, until: Callable[[Any], bool]) -> Any:
    """A node's state, once it is so."""
    give_up_at = time.monotonic() + WAIT_S
    while not until(found := json.loads(ask("state", str(folder)))[node]):
        assert time.monotonic() < give_up_at, found
        time.sleep(0.05)
    return found


def test_a_node_that_was_killed_is_started_again_as_often_as_it_may(folder: Path) -> None:
    ask("start", str(folder), data=packed({"paris/0": SLEEPS}, most=1))
    first = told(folder, "paris/0", lambda node: node["state"] == "running")
    os.kill(first["pid"], signal.SIGKILL)
    again = told(folder, "paris/0", lambda node: node["restarts"] == 1 and node["state"] == "running")
    assert again["pid"] != first["pid"]
    os.kill(again["pid"], signal.SIGKILL)
    down = told(folder, "paris/0", lambda node: node["state"] == "failed")
    assert down["how"] == "was killed by SIGKILL, and was started again 1 times within 600 s"
    log = ask("read", str(folder), "logs/paris.0", "0")
    assert log == "keeper: paris/0 was killed by SIGKILL; it is started again\n"


@pytest.mark.parametrize(
    ("code", "state", "restarts"), [(0, "ended", 0), (1, "failed", 0), (75, "failed", 2)]
)
def test_who_ends_by_itself_is_started_again_only_if_it_lost_the_others(
    folder: Path, code: int, state: str, restarts: int
) -> None:
    ask("start", str(folder), data=packed({"paris": f"raise SystemExit({code})"}))
    found = told(folder, "paris", lambda node: node["state"] in ("ended", "failed"))
    assert (found["state"], found["restarts"]) == (state, restarts)


def test_two_that_start_at_once_start_one_run(folder: Path) -> None:
    data = packed({"paris": SLEEPS})
    argv = [sys.executable, on_machine.__file__, "start", str(folder)]
    both = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate(data)[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 3]
    assert any(
        "another `geomx up` or `geomx down` is at work" in text or "run here already" in text for text in said
    )
    assert "run here already" in ask("start", str(folder), data=data, status=3)
    assert told(folder, "paris", lambda node: node["state"] == "running")["restarts"] == 0


def test_what_scripts_have_written_outlives_the_run_and_nothing_else_does(folder: Path) -> None:
    writes = "open('weights', 'w').write('1')"
    script = {"work/train.py": b"", "work/deep/more.py": b"", "secret": b"hush"}
    ask("start", str(folder), data=packed({"paris/0": writes}, **script))
    told(folder, "paris/0", lambda node: node["state"] == "ended")
    kept = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert all(mode & 0o077 == 0 for mode in kept.values()), kept
    assert json.loads(ask("stop", str(folder))) == {"left": str(folder / "work")}
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == ["work", "work/weights"]
    assert json.loads(ask("stop", str(folder), "purge")) == {"left": ""}
    assert not folder.parent.parent.exists()
    assert json.loads(ask("stop", str(folder))) == {"left": ""}
    assert json.loads(ask("state", str(folder))) == {}


def test_nodes_end_with_their_keeper_and_that_is_told(folder: Path) -> None:
    ask("start", str(folder), data=packed({"paris": SLEEPS}))
    node = told(folder, "paris", lambda node: node["state"] == "running")["pid"]
    os.kill(int((folder / "lock0").read_text()), signal.SIGKILL)
    found = told(folder, "paris", lambda node: node["state"] == "failed")
    assert found["how"].startswith("was killed with its keeper")
    give_up_at = time.monotonic() + WAIT_S
    while Path(f"/proc/{node}/stat").exists() and " Z " not in Path(f"/proc/{node}/stat").read_text():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def test_a_node_that_does_not_end_when_asked_is_killed(folder: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True)"
    stubborn = f"{deaf}; {SLEEPS}"
    ask("start", str(folder), data=packed({"paris/0": stubborn}))
    give_up_at = time.monotonic() + WAIT_S
    while "up" not in ask("read", str(folder), "logs/paris.0", "0"):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    ask("stop", str(folder))
    assert not folder.exists()


def test_nothing_is_placed_outside_of_the_folder(folder: Path) -> None:
    for name in ("../out", "/tmp/geomx-out", "work/../../out"):
        assert "is no file of a run" in ask("start", str(folder), data=packed({}, **{name: b""}), status=3)


def test_what_a_login_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    site = SiteTable(party="paris", engine="local", folder=str(tmp_path), setup=("echo welcome", "echo '{}'"))
    engine = Local(Job("run", "paris", site, (JobNode("paris", ()),), {}, 1.0))
    assert [state.state for state in engine.state().values()] == ["absent"]
    assert engine.read("paris", "logs", 0) == b""
