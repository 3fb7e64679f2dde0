"""Processes forked from one that has imported PyTorch, which takes a process seconds of a core."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch

from geomx.cli import main
from lab import system

context = multiprocessing.get_context("forkserver")
# What they need, imported once; no module of the tests: the server of forks does not see their folders.
context.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch._dynamo",
        "geomx.launch.join",
        "geomx.launch.serve",
        "geomx.optim.torch_optim",
    ]
)


def geomx_command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: Connection,
    namespace: str = "",
) -> None:
    """What `geomx ARGUMENTS` does in a new process, which writes to `output`; a worker's command is a script.

    `namespace`: the network namespace that it runs in; "": that of the tests.
    """
    _stand(folder, output, output)
    os.environ.update(environment)
    os.execvpe = _run_script  # type: ignore[assignment]
    _call(arguments, namespace)


def geomx(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, namespace: str = ""
) -> subprocess.CompletedProcess[str]:
    """What `geomx ARGUMENTS` does in a new process, to its end."""
    (out, out_writer), (err, err_writer) = (context.Pipe(duplex=False) for _ in range(2))
    how = (list(arguments), dict(environment), folder, out_writer, err_writer, namespace)
    process = context.Process(target=_geomx, args=how, daemon=True)
    process.start()
    for writer in (out_writer, err_writer):
        writer.close()
    with ThreadPoolExecutor(2) as both:
        said, told = both.map(_read, (out, err))
    process.join()
    return subprocess.CompletedProcess(["geomx", *arguments], process.exitcode or 0, said, told)


def _geomx(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: Connection,
    errors: Connection,
    namespace: str,
) -> None:
    _stand(folder, output, errors)
    os.environ.clear()
    os.environ.update(environment)
    _call(arguments, namespace)


def _call(arguments: Sequence[str], namespace: str) -> NoReturn:
    with system.inside(namespace) if namespace else nullcontext():  # before there are other threads
        try:
            sys.exit(main(arguments))
        finally:
            atexit._run_exitfuncs()  # multiprocessing ends a process without


def printed(command: Sequence[str], folder: Path) -> str:
    """What `python SCRIPT ...` prints in a new process that is in no run; it must end well."""
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_script, args=(command, folder, writer), daemon=True)
    process.start()
    writer.close()
    said = _read(reader)
    process.join()
    assert process.exitcode == 0, said
    return said


def _read(reader: Connection) -> str:
    with open(reader.fileno(), encoding="utf-8", closefd=False) as output:
        said = output.read()
    reader.close()
    return said


def _script(command: Sequence[str], folder: Path, output: Connection) -> None:
    _stand(folder, output, output)
    alone = {key: value for key, value in os.environ.items() if not key.startswith("GEOMX_")}
    os.environ.clear()
    try:
        _run_script(sys.executable, [sys.executable, *command], alone)
    finally:
        atexit._run_exitfuncs()


def _stand(folder: Path, output: Connection, errors: Connection) -> None:
    for stream, end in ((sys.stdout, output), (sys.stderr, errors)):
        os.dup2(end.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    output.close()
    errors.close()
    torch.set_num_threads(1)
    os.chdir(folder)


def _run_script(_interpreter: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """In place of executing `python SCRIPT ...`, which would import all of it anew."""
    os.environ.update(environment)
    sys.argv = list(command[1:])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)
    sys.exit(0)
