"""A run's secret, in a file that its owner alone may read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from geomx.config import Run
from geomx.config.files import LEAST_CHARACTERS
from geomx.errors import ConfigError, Fault

SECRET_BYTES = 32


def make_secret(path: Path) -> None:
    """Write a new secret to a file that is not there yet, of mode 0600. Raises `ConfigError`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        hint = "choose another name; or, if no run uses this secret, remove it first"
        raise ConfigError(
            "the secret", [Fault(str(path), "a file", "a file that is not there yet", hint)]
        ) from error
    except OSError as error:
        fault = Fault(str(path), error.strerror or str(error), "a file that can be written")
        raise ConfigError("the secret", [fault]) from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")


def secret_of(run: Run) -> bytes:
    """The secret of a run; empty where it has none. Raises `ConfigError`."""
    path = run.run.secret_file
    if path is None:
        return b""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise _fault(run, path, "no file", "the file that `geomx secret` made")
        with path.open("rb") as file:
            mode, secret = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read(4096).strip()
    except OSError as error:
        raise _fault(run, path, error.strerror or str(error), "a file that can be read") from error
    if mode & 0o077:
        raise _fault(
            run, path, f"a file of mode {mode:04o}", "mode 0600", f"others can read it: chmod 600 {path}"
        )
    if len(secret) < LEAST_CHARACTERS:
        found = f"{len(secret)} characters"
        raise _fault(run, path, found, f"{LEAST_CHARACTERS} or more", "`geomx secret FILE` makes one")
    return secret


def _fault(run: Run, path: Path, found: str, allowed: str, hint: str = "") -> ConfigError:
    return ConfigError(f"run {run.run.name}", [Fault("run.secret_file", f"{path}: {found}", allowed, hint)])
