"""A store in a bucket: S3, Google Cloud Storage or Azure, by `obstore`, which reads their usual credentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geomx.errors import ConfigError, Fault
from geomx.store.contract import Bytes, StoreError

MISSING = "pip install 'geomx[store]'"


class BucketStore:
    """See `Store`. `url`: as `obstore.store.from_url` takes it, such as `s3://bucket/folder`."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import obstore  # noqa: PLC0415 (an extra)
            from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415
            from obstore.store import from_url  # noqa: PLC0415
        except ImportError as error:
            fault = Fault("store.url", url, "`file://...`, or a bucket where `obstore` is installed", MISSING)
            raise ConfigError("the store", [fault]) from error
        self._errors, self._exists = (BaseError, OSError), AlreadyExistsError
        try:
            self._store: Any = from_url(url, **options)
        except (*self._errors, ValueError) as error:
            fault = Fault("store.url", url, "the URL of a bucket", _first_line(error))
            raise ConfigError("the store", [fault]) from error
        self._obstore = obstore

    def put(self, name: str, content: Sequence[Bytes]) -> None:
        """See `Store`. What is large goes up in parts."""
        try:
            self._obstore.put(self._store, name, b"".join(content))
        except self._errors as error:
            raise self._failed(name, error) from error

    def create(self, name: str, content: Sequence[Bytes]) -> bool:
        """See `Store`."""
        try:
            self._obstore.put(self._store, name, b"".join(content), mode="create", use_multipart=False)
        except self._exists:
            return False
        except self._errors as error:
            raise self._failed(name, error) from error
        return True

    def get(self, name: str) -> bytes | None:
        """See `Store`."""
        try:
            return bytes(self._obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None
        except self._errors as error:
            raise self._failed(name, error) from error

    def list(self, start: str) -> list[str]:
        """See `Store`."""
        there = start.rpartition("/")[0]
        try:
            found = self._obstore.list(self._store, there or None).collect()
        except self._errors as error:
            raise self._failed(start, error) from error
        return sorted(str(each["path"]) for each in found if str(each["path"]).startswith(start))

    def delete(self, names: Sequence[str]) -> None:
        """See `Store`."""
        try:
            if names:
                self._obstore.delete(self._store, list(names))
        except FileNotFoundError:
            pass
        except self._errors as error:
            raise self._failed(names[0], error) from error

    def sweep(self, start: str) -> None:
        """See `Store`. What was not put whole is nowhere."""

    def _failed(self, name: str, error: Exception) -> StoreError:
        return StoreError(
            f"store: {name}: {_first_line(error)}; is the bucket there, and are its credentials?"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
