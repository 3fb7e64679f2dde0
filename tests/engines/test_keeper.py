"""The keeper on a machine: what it places, keeps, starts again and ends. Its nodes are small programs here."""

from __future__ import annotations

import base64
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

WAIT_S = 300.0
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
    own = {"keep.sh": keep.encode(), "keeper.py": Path(keeper.__file__).read_bytes()}
    last = {"job.json": json.dumps(job).encode()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in {**own, **files, **last}.items():
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


def logged(folder: Path) -> str:
    """What paris/0 has printed."""
    found = json.loads(ask("read", str(folder), "logs", '{"paris.0": 0}'))
    return base64.b64decode(found.get("paris.0", "")).decode()


def test_a_node_that_was_killed_is_started_again_as_often_as_it_may(folder: Path) -> None:
    ask("start", str(folder), data=packed({"paris/0": SLEEPS}, most=1))
    first = told(folder, "paris/0", lambda node: node["state"] == "running")
    os.kill(first["pid"], signal.SIGKILL)
    again = told(folder, "paris/0", lambda node: node["restarts"] == 1 and node["state"] == "running")
    assert again["pid"] != first["pid"]
    os.kill(again["pid"], signal.SIGKILL)
    down = told(folder, "paris/0", lambda node: node["state"] == "failed")
    assert down["how"] == "was killed by SIGKILL, and was started again 1 times within 600 s"
    assert logged(folder) == "keeper: paris/0 was killed by SIGKILL; it is started again\n"


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
    first = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    give_up_at = time.monotonic() + WAIT_S
    while not folder.with_name("paris.0.claim").exists():  # it waits for its files
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    assert "another `geomx up` or `geomx down` is at work" in ask("start", str(folder), data=data, status=3)
    first.communicate(data)
    assert first.returncode == 0
    assert json.loads(ask("start", str(folder), data=data)) == {"by": ""}
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
    os.kill(int((folder / "lock0").read_text().split()[0]), signal.SIGKILL)
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
    while "up" not in logged(folder):
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
    assert engine.read("logs", {"paris": 0}) == {}


def test_files_that_are_broken_stand_in_nobody_s_way(folder: Path) -> None:
    ask("start", str(folder), data=packed({"paris/0": SLEEPS}, secret=b"hush"))
    node = told(folder, "paris/0", lambda node: node["state"] == "running")["pid"]
    (folder / "work" / "mine").mkdir()
    (folder / "work" / "__pycache__").symlink_to("mine")
    (folder / "state" / "paris.0").write_text("{")
    assert json.loads(ask("state", str(folder)))["paris/0"]["state"] == "running"
    for name in ("placed.json", "job.json"):
        (folder / name).write_text("")
    ask("stop", str(folder), "purge")
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(node, 0)


def test_a_part_of_the_files_starts_nothing(folder: Path) -> None:
    data = packed({"paris": SLEEPS})
    assert "not all files have come" in ask(
        "start", str(folder), data=data[: 2 * tarfile.BLOCKSIZE], status=3
    )
    assert json.loads(ask("state", str(folder))) == {}


@pytest.mark.parametrize("name", ["", "paris.0", "paris.0/work"])
def test_a_folder_that_others_may_write_is_not_trusted(folder: Path, name: str) -> None:
    (folder / "work").mkdir(parents=True)
    (folder.parent / name).chmod(0o777)
    said = ask("start", str(folder), data=packed({}), status=3)
    assert "is no folder that you alone may write" in said
    assert not (folder / "keeper.py").exists()


def test_a_keeper_of_another_machine_is_not_ended_from_here(folder: Path) -> None:
    ask("start", str(folder), data=packed({"paris": SLEEPS}))
    keeper_here = (folder / "lock0").read_text()
    with (folder / "lock0").open("r+") as lock:
        lock.write(f"{os.getpid()} elsewhere")
        lock.truncate()
    assert f"process {os.getpid()} on elsewhere, is not to be ended from here" in ask(
        "stop", str(folder), status=3
    )
    (folder / "lock0").write_text(keeper_here)


def test_a_full_disk_ends_no_node(tmp_path: Path) -> None:
    kept = keeper.Kept.__new__(keeper.Kept)
    kept._folder, kept._node = tmp_path, {"file": "paris"}
    kept._restarts, kept._process, kept._untold = [], None, ""
    kept._tell("running")  # there is no folder for it
    assert kept._untold
    (tmp_path / "state").mkdir()
    kept._write()
    assert (json.loads((tmp_path / "state" / "paris").read_text())["state"], kept._untold) == ("running", "")
