"""A shard's hold of its log, while the store cannot be reached now and then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from geomx.config import Run
from geomx.drive.durable import Durable
from geomx.node.contract import Persist
from geomx.store.contract import Bytes, StoreError
from geomx.store.folder import FolderStore
from geomx.store.log import Log
from geomx.store.terms import Term

TOML = """
run = {{name = "r", on_loss = "wait"}}
party = [{{name = "A", workers = 1}}]
global = {{addresses = [["127.0.0.1:1", "127.0.0.1:2"]]}}
store = {{url = "file://{folder}", lease_s = 20.0}}
"""


def durable(tmp_path: Path, place: int = 0) -> Durable:
    return Durable(Run.parse(TOML.format(folder=tmp_path), "r.toml"), "global/0", place)


@pytest.mark.parametrize("is_there", [False, True])
def test_what_could_not_be_written_is_written_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """`is_there`: what the store said it could not write is there all the same."""
    create, failures, told, stored = FolderStore.create, [1, 2, 3], [], Event()

    def fails(store: FolderStore, name: str, content: Sequence[Bytes]) -> bool:
        if "log-" in name and content and failures:
            failures.pop()
            if is_there:
                create(store, name, content)
            raise StoreError("store: away")
        return create(store, name, content)

    first = durable(tmp_path)
    assert first.wait(lambda name, *_, **fields: told.append(name))
    assert list(first.records()) == []
    monkeypatch.setattr(FolderStore, "create", fails)
    outcome: list[Any] = []
    first.write(Persist(1, b"one"))
    first.flush(lambda future, number: (outcome.append((future.exception(), number)), stored.set()))
    assert stored.wait(30.0)
    assert outcome == [(None, 1)]
    assert told == ["no_store"]
    assert [header for header, _ in Log(FolderStore(tmp_path), "r/global.0").read()] == [b"one"]
    first.end(StoreError("this process ends"))


def test_who_stands_by_looks_again_and_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, told = durable(tmp_path), durable(tmp_path, 1), []
    assert first.wait(lambda *_, **fields: None)
    listed, failures = FolderStore.list, [1, 2]

    def fails(store: FolderStore, start: str) -> list[str]:
        if told and failures:
            failures.pop()
            raise StoreError("store: away")
        return listed(store, start)

    def tell(name: str, *_: str, **fields: Any) -> None:
        told.append(name)
        if name == "no_store":
            first.end(StoreError("it could not read its log"))  # and hands over

    monkeypatch.setattr(FolderStore, "list", fails)
    assert second.wait(tell)
    assert told == ["stands_by", "no_store"]
    assert second.term.number == 2
    second.end(None)
    assert FolderStore(tmp_path).list("") == []


def test_nobody_takes_the_place_of_a_run_that_has_ended_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is slow to clear up: the other would keep what is left, and wait for nobody."""
    first, clear, seen = durable(tmp_path), Log.clear, []

    def looked_at(log: Log) -> None:
        other = Term(FolderStore(tmp_path), "r/global.0", 20.0, lambda: 1e6 * len(seen))
        seen.extend([other.look(), other.look()])
        clear(log)

    monkeypatch.setattr(Log, "clear", looked_at)
    assert first.wait(lambda *_, **fields: None)
    first.end(None)
    assert seen == ["over", "over"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
