"""The store of a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from geomx.store.bucket import BucketStore
from geomx.store.contract import Store
from geomx.store.folder import FolderStore


def open_store(url: str) -> Store:
    """Open a store.

    Args:
        url: `file:///...`, or of a bucket: `s3://`, `gs://`, `az://`.

    Raises:
        ConfigError: There can be no store of this URL.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FolderStore(Path(unquote(parts.path)))
    return BucketStore(url)
