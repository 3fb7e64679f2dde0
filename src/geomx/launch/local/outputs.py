"""Files that a command writes at its end: tried before it begins, and written behind what it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from geomx.errors import ConfigError, Fault, FileUnwritable
from geomx.observe.files import try_out


def check_outputs(outputs: Mapping[str, Path | None]) -> None:
    """Hours should not be lost to a file that cannot be written: raise `ConfigError` now.

    `outputs`: the files, by the option that names them. Folders that are missing are made.
    """
    faults = []
    for option, path in outputs.items():
        try:
            if path is not None:
                try_out(path)
        except FileUnwritable as error:
            faults.append(Fault(option, f"{path} ({error.reason})", "a file that can be written"))
    if faults:
        raise ConfigError("the command line", faults)


def write_outputs(writers: Mapping[Path | None, Callable[[Path], None]], hint: str = "") -> None:
    """Write each file that there is a path for. Where some cannot be written, the others are.

    Raises `FileUnwritable`, with the reason of the first of those; `hint` says what to do then.
    """
    reasons: dict[Path, str] = {}
    for path, write in writers.items():
        if path is not None:
            try:
                write(path)
            except FileUnwritable as error:
                reasons[path] = error.reason
    if reasons:
        raise FileUnwritable(" and ".join(map(str, reasons)), next(iter(reasons.values())), hint)
