"""Each store keeps its contract: a folder, and a bucket of a server that speaks S3."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geomx.errors import ConfigError, Fenced
from geomx.store.contract import Store, StoreError
from geomx.store.folder import FolderStore
from geomx.store.log import Log
from geomx.store.open import open_store
from geomx.store.terms import Term

LARGE = 12 << 20  # S3 takes it in parts


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of a server with a bucket `geomx`."""
    pytest.importorskip("moto", reason="no server that speaks S3: pip install 'moto[s3,server]'")
    pytest.importorskip("obstore", reason="pip install 'geomx[store]'")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, give_up_at = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{url}/geomx", method="PUT")).close()
                break
            except OSError:
                assert time.monotonic() < give_up_at
                time.sleep(0.1)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "folder":
        return open_store(f"file://{tmp_path}/a%20run")
    for key, value in {
        "ENDPOINT": request.getfixturevalue("bucket"),
        "ALLOW_HTTP": "true",
        "REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{key}", value)
    for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{key}", "test")
    return open_store(f"s3://geomx/{tmp_path.name}")


def test_what_is_put_is_there_until_it_is_removed(store: Store) -> None:
    assert store.get("r/a") is None
    assert store.list("r/") == []
    store.put("r/b", [b"one", memoryview(b"two")])
    store.put("r/a", [b"old"])
    store.put("r/a", [b"new"])
    store.put("s/c", [])
    assert (store.get("r/a"), store.get("r/b"), store.get("s/c")) == (b"new", b"onetwo", b"")
    assert store.list("r/") == ["r/a", "r/b"]
    assert store.list("r/b") == ["r/b"]
    store.delete(["r/a", "r/not-there"])
    assert store.list("") == ["r/b", "s/c"]


def test_of_several_who_create_at_once_one_does(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: store.create("term", [b"%d" % number]), range(8)))
    assert done.count(True) == 1
    assert store.get("term") == b"%d" % done.index(True)


def test_a_large_content_is_whole(store: Store) -> None:
    content = bytes(range(256)) * (LARGE // 256)
    store.put("large", [content[: LARGE // 3], content[LARGE // 3 :]])
    assert store.get("large") == content


def test_a_log_goes_on_where_it_was(store: Store) -> None:
    log = Log(store, "run/global.0")
    assert list(log.read()) == []
    log.write([(b"one", [b"1" * 100, b"2"]), (b"two", [])])
    log.write([(b"three", [b"3"])])
    again = Log(store, "run/global.0")
    found = [(header, bytes(payload)) for header, payload in again.read()]
    assert found == [(b"one", b"1" * 100 + b"2"), (b"two", b""), (b"three", b"3")]
    with pytest.raises(Fenced, match=r"another process writes run/global\.0"):
        log.write([(b"late", [])])
    again.write([(b"four", [])])
    assert headers(store) == [b"one", b"two", b"three", b"four"]


def test_a_cut_stands_for_what_was_before(store: Store) -> None:
    log = Log(store, "run/global.0")
    list(log.read())
    log.write([(b"one", [])])
    number = log.next
    log.write([(b"two", [])])
    log.cut(number, [(b"state", [b"of one"])])
    assert headers(store) == [b"state", b"two"]
    assert len(store.list("run/global.0/cut-")) == 1
    with pytest.raises(Fenced, match="another process"):  # all that it could write is taken, or gone
        log.write([(b"late", [])])


def test_what_comes_to_the_newest_cut_stays_until_the_next(store: Store) -> None:
    log = Log(store, "l")
    list(log.read())
    found = []
    for round_ in range(4):
        log.write([(b"%d" % round_, [])])
        past = Log(store, "l").past()
        found.append([[header for header, _ in part] for part in past])
        log.cut(log.next, [(b"state %d" % round_, [])])
    assert found == [
        [[], [], [b"0"]],
        [[b"0"], [b"state 0"], [b"1"]],
        [[b"state 0", b"1"], [b"state 1"], [b"2"]],
        [[b"state 1", b"2"], [b"state 2"], [b"3"]],
    ]


def test_who_was_replaced_is_told_however_often_the_log_was_cut_since(store: Store) -> None:
    former = Log(store, "l")
    list(former.read())
    for _ in range(3):
        later = Log(store, "l")
        list(later.read())
        for _ in range(2):
            later.write([(b"x", [])])
            later.cut(later.next, [(b"state", [])])
        assert headers(store) == [b"state"]
        with pytest.raises(Fenced, match="another process"):
            former.write([(b"late", [])])
    assert len(store.list("l/cut-")) == 2


def headers(store: Store) -> list[bytes]:
    """What one finds who is started now."""
    (name,) = {name.rpartition("/")[0] for name in store.list("")}
    return [header for header, _ in Log(store, name).read()]


def test_a_log_with_a_gap_or_a_torn_piece_is_told(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    log = Log(store, "l")
    list(log.read())
    for _ in range(3):
        log.write([(b"header", [b"payload"])])
    piece = tmp_path / "l" / "log-0000000002"
    whole = piece.read_bytes()
    for size in (1, len(whole) - 1):
        piece.write_bytes(whole[:size])
        with pytest.raises(StoreError, match="is cut off"):
            list(Log(store, "l").read())
    piece.unlink()
    with pytest.raises(StoreError, match="has no log-0000000002, and later ones"):
        list(Log(store, "l").read())


def test_what_was_not_written_whole_is_not_there(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a", [b"1"])
    list(Log(store, "l").read())
    for left in (tmp_path / ".new-b-0123", tmp_path / "l" / ".new-cut-0000000007-0123"):
        left.write_bytes(b"half")
    assert store.list("") == ["a", "l/log-0000000000"]
    list(Log(store, "l").read())
    store.sweep("b")
    assert not list(tmp_path.rglob(".new-*"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file.*is there room, and may you write\?"):
        store.put("file/a", [b"1"])


def test_a_url_that_names_no_store_is_told() -> None:
    with pytest.raises(ConfigError, match=r"store\.url"):
        open_store("nowhere")


def test_a_term_is_held_by_one_for_as_long_as_it_says_so(store: Store) -> None:
    now = 0.0
    holder, other, third = (Term(store, "l", 4.0, lambda: now) for _ in range(3))
    assert (holder.look(), holder.take(), holder.number) == ("none", True, 1)
    assert other.look() == "held"
    now = 3.0
    holder.renew()
    assert other.look() == "held"
    now = 6.9
    assert other.look() == "held"
    now = 7.0
    assert (other.look(), third.look()) == ("free", "held")  # by its own clock
    assert other.take()
    assert other.incarnation > holder.incarnation
    assert not third.take()  # of what it has seen
    assert third.look() == "held"
    with pytest.raises(Fenced, match="another process is l"):
        holder.renew()
    other.release(is_over=False)
    assert (third.look(), third.take(), third.number) == ("free", True, 3)
    assert len(store.list("l/")) == 1
    third.release(is_over=True)
    assert other.look() == "over"
    assert Term(store, "l", 0.0).look() == "over"


def test_who_stands_by_has_the_newest_cut_at_hand(store: Store) -> None:
    log = Log(store, "l")
    list(log.read())
    log.cut(log.next, [(b"state", [b"1"])])
    ahead = Log(store, "l")
    ahead.look_ahead()
    store.put("l/cut-0000000001", [b"not read again"])
    assert [header for header, _ in ahead.read()] == [b"state"]
