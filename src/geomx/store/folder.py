"""A store in a folder of this machine, or of a disk that machines share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from geomx.store.contract import Bytes, StoreError

NEW = ".new-"  # what a file's name begins with until it is whole


class FolderStore:
    """See `Store`. Files are for their owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: Sequence[Bytes]) -> None:
        """See `Store`."""
        with self._written(name, content) as (new, path):
            new.replace(path)

    def create(self, name: str, content: Sequence[Bytes]) -> bool:
        """See `Store`."""
        with self._written(name, content) as (new, path):
            try:
                os.link(new, path)  # fails where there is one, and is whole at once
            except FileExistsError:
                return False
            finally:
                new.unlink()
        return True

    def get(self, name: str) -> bytes | None:
        """See `Store`."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(error) from error

    def list(self, start: str) -> list[str]:
        """See `Store`."""
        there = self._folder / start.rpartition("/")[0]
        try:
            files = [path for path in there.rglob("*") if path.is_file() and not path.name.startswith(NEW)]
        except OSError as error:
            raise _failed(error) from error
        names = (path.relative_to(self._folder).as_posix() for path in files)
        return sorted(name for name in names if name.startswith(start))

    def delete(self, names: Sequence[str]) -> None:
        """See `Store`."""
        try:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise _failed(error) from error

    def sweep(self, start: str) -> None:
        """See `Store`."""
        there, _, begins = start.rpartition("/")
        try:
            for left in (self._folder / there).glob(f"{NEW}{begins}*"):
                left.unlink(missing_ok=True)
        except OSError as error:
            raise _failed(error) from error

    @contextmanager
    def _written(self, name: str, content: Sequence[Bytes]) -> Iterator[tuple[Path, Path]]:
        """A file of its own with this content, to be given its name within; then both are on the disk."""
        path = self._folder / name
        new = path.with_name(f"{NEW}{path.name}-{secrets.token_hex(8)}")
        try:
            if not path.parent.is_dir():
                _make(path.parent)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 0) as file:
                for piece in content:
                    left = memoryview(piece)
                    while left:
                        left = left[file.write(left) :]
                os.fdatasync(file.fileno())
            yield new, path
            sync(path.parent)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise _failed(error) from error


def _make(folder: Path) -> None:
    """A folder, and those above it, on the disk."""
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Have a folder's list of files, or a file, on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _failed(error: OSError) -> StoreError:
    return StoreError(
        f"store: {error.filename or ''}: {error.strerror or error}; is there room, and may you write?"
    )
