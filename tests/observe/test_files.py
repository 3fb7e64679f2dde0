"""Files are there whole or not at all, and who cannot be written is named."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from geomx.errors import FileUnwritable
from geomx.observe.files import try_out, write_whole

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_full_disk_leaves_what_was_there_and_is_told_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "report.json"
    path.write_text("the last one")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileUnwritable, match=r"cannot write .*report\.json: No space left on device"):
        write_whole(path, b"x" * 100)
    with pytest.raises(FileUnwritable, match="No space left"):
        try_out(tmp_path / "trace.json")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.json", "the last one")]


def test_only_the_user_reads_what_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "report.json", b"--token", private=True)
        write_whole(tmp_path / "trace.json", b"spans")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "report.json") == 0o600
    assert mode_of(tmp_path / "trace.json") == 0o644


def test_a_link_goes_on_to_point_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to(tmp_path / "disk" / "report.json")
    for content in (b"one", b"two"):
        write_whole(link, content)
    assert link.is_symlink()
    assert (tmp_path / "disk" / "report.json").read_bytes() == b"two"


@needs_dev_full
def test_a_device_is_written_and_never_replaced() -> None:
    with pytest.raises(FileUnwritable, match="cannot write /dev/full: No space left on device"):
        write_whole(Path("/dev/full"), b"x")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_pipe_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    try_out(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"report")
    assert os.read(reader, 100) == b"report"
    os.close(reader)


def test_what_can_be_written_is_tried_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    try_out(tmp_path / "old.json")
    try_out(tmp_path / "new" / "deep" / "report.json")
    assert (tmp_path / "old.json").read_text() == "old"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "old.json"]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("folder", "Is a directory"),
        ("file/report.json", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_says_why(tmp_path: Path, where: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileUnwritable, match=reason):
        try_out(tmp_path / where)
