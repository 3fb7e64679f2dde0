from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from geomx.codecs.pack import native
from geomx.errors import ConfigError
from geomx.launch.environment import (
    THREADS,
    ProcessPlace,
    TorchrunJob,
    apply_switches,
    environment_of,
    import_beside,
    job_environment,
    read_job,
    read_place,
    threads_each,
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GEOMX_") or name in THREADS:
            monkeypatch.delenv(name)


def become(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_place_comes_back_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert read_place() == ProcessPlace()
    place = ProcessPlace(
        tmp_path / "run.json", ("run.seed=3", 'run.name="a b"'), "A", 0, tmp_path / "A.0.jsonl", trace=True
    )
    become(monkeypatch, environment_of(place))
    assert read_place() == place


def test_a_child_does_not_inherit_its_parents_place(monkeypatch: pytest.MonkeyPatch) -> None:
    become(
        monkeypatch, environment_of(ProcessPlace(Path("run.json"), ("a=1",), "A", 1, Path("r"), trace=True))
    )
    become(monkeypatch, {"KEPT": "yes"})
    environment = environment_of(ProcessPlace(party="B"))
    assert {k: v for k, v in environment.items() if k.startswith("GEOMX_") and v} == {"GEOMX_PARTY": "B"}
    assert environment["KEPT"] == "yes"


def test_a_job_comes_back_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in job_environment(0, 1, 1):
        monkeypatch.delenv(name, raising=False)
    assert read_job() is None
    become(monkeypatch, job_environment(1, 3, 7000))
    assert read_job() == TorchrunJob(1, 3)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        read_job()


@pytest.mark.parametrize("rank", ["-1", "one", "1.5"])
def test_a_rank_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    monkeypatch.setenv("GEOMX_RANK", rank)
    with pytest.raises(ConfigError, match="GEOMX_RANK"):
        read_place()


def test_threads_share_the_cores_unless_the_user_has_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_each(1) == cores
    assert threads_each(10 * cores) == 1
    assert environment_of(ProcessPlace(), 3)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads_each(1) is None
    assert environment_of(ProcessPlace(), None)["OMP_NUM_THREADS"] == "7"


def test_what_lies_beside_a_description_can_be_imported_here_and_in_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    (tmp_path / "beside_a_run.py").write_text("answer = 42")
    import_beside(tmp_path / "run.toml")
    assert importlib.import_module("beside_a_run").answer == 42
    assert environment_of(ProcessPlace())["PYTHONPATH"].split(os.pathsep) == ["elsewhere", str(tmp_path)]
    import_beside(tmp_path / "run.toml")
    assert os.environ["PYTHONPATH"].count(str(tmp_path)) == 1


def test_compiled_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(native, "switch_off", lambda: calls.append("off"))
    apply_switches()
    monkeypatch.setenv("GEOMX_NATIVE", "0")
    apply_switches()
    assert calls == ["off"]
