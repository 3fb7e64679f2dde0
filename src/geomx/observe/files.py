"""Files that are there whole or not at all: reports, traces, predictions.

A file is written beside its place, synced, and renamed, so a full disk never leaves half of one, nor takes the one that
was there before. What is no regular file (`/dev/stdout`, a pipe) is written as it is: a rename would replace it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from geomx.errors import FileUnwritable

TRIED_BYTES = 4096  # a disk without a free block is told before a run begins, and not behind it


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file, and folders that are missing. `private`: only the user may read it.

    Raises `FileUnwritable`, which names it and says why.
    """
    try:
        _make_folder(path)
        if _is_special(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
                file.write(data)
        else:
            place = path.resolve()  # of a link, what it points to is replaced
            _written_beside(place, data, 0o600 if private else 0o666).replace(place)
    except OSError as error:
        raise FileUnwritable(path, error.strerror or str(error)) from error


def try_out(path: Path) -> None:
    """Find out whether `write_whole` could write now, and leave nothing but folders that were missing.

    Raises `FileUnwritable`.
    """
    try:
        _make_folder(path)
        if not _is_special(path):
            _written_beside(path.resolve(), bytes(TRIED_BYTES), 0o600).unlink()
        elif not path.is_fifo():  # whose reader may come later
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    except OSError as error:
        raise FileUnwritable(path, error.strerror or str(error)) from error


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # of another kind
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def _written_beside(place: Path, data: bytes, mode: int) -> Path:
    beside = place.with_name(f".geomx-{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside


def _is_special(path: Path) -> bool:
    if path.is_relative_to("/dev"):  # `/dev/stdout` may be a regular file, which others write as well
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
