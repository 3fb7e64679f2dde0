"""Whether the files that a description names can be used on this machine.

A description says what is so on every machine of its run; its files lie on some of them. `geomx run` needs the training
script, and every node the secret and its certificates: commands that start one look for them here, before anything
starts. So does `geomx check`, unless it is told that this machine runs no node (`--elsewhere`): whether it does, no
description says.

"proof": nodes that are started by hand, and so have addresses, need a secret or TLS where they send datagrams.
`geomx run` makes a secret.

"hand": this machine starts a node by hand. Where there are sites, the rules ask for no secret: `geomx up` makes one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from geomx.channels.tls import contexts
from geomx.config.addresses import each_of, is_loopback
from geomx.config.compatibility.lossy_channels import proof_problems
from geomx.config.paths import nearest_file
from geomx.config.reading.problems import Problem
from geomx.config.tables import Description
from geomx.errors import ConfigError

Needed = Literal["script", "secret", "tls", "proof", "hand"]
LEAST_CHARACTERS = 16
EVERY_FILE: tuple[Needed, ...] = ("script", "secret", "tls")


def file_problems(described: Description, needed: tuple[Needed, ...] = EVERY_FILE) -> Iterator[Problem]:
    """What is wrong with the files that are needed, where the description names them."""
    if "script" in needed and described.run.script is not None:
        yield from _script_problems(described.run.script)
    secret = described.run.secret_file
    if "secret" in needed and secret is not None:
        yield from _secret_problems(secret)
    servers = (*described.regions, *described.parties)
    if "proof" in needed and (described.global_.addresses or any(server.address for server in servers)):
        yield from proof_problems(described)
    tls = described.tls
    if "hand" in needed and described.sites and secret is None and tls.certificate is None:
        yield from _secret_by_hand(described)
    if "tls" in needed and tls.certificate is not None and tls.key is not None and tls.authority is not None:
        try:
            contexts(tls.certificate, tls.key, tls.authority, tls.revoked, tls.hosts)  # as a node will
        except ConfigError as error:
            for fault in error.faults:
                near = nearest_file(Path(fault.found)) if not Path(fault.found).exists() else ""
                hint = "; ".join(filter(None, (fault.hint, near)))
                yield Problem(tuple(fault.where.split(".")), fault.found, fault.allowed, hint)


def _secret_by_hand(described: Description) -> Iterator[Problem]:
    """Whoever can reach a port would be a member of the run."""
    servers = (*described.regions, *described.parties)
    reached = each_of([*described.global_.addresses, *described.global_.listen])
    reached += [address for server in servers for address in (server.address, server.listen) if address]
    if not all(map(is_loopback, reached)):
        allowed = "path of a file, for nodes that `geomx up` does not start"
        yield Problem(("run", "secret_file"), "nothing", allowed, "make one with `geomx secret FILE`")


def _secret_problems(secret: Path) -> Iterator[Problem]:
    """As a node will look at it."""
    path, make = ("run", "secret_file"), f"make it with `geomx secret {secret}`, and copy it to every machine"
    if not secret.is_file():
        found = "no file" if secret.exists() else "which is not there"
        yield Problem(path, f"{secret}, {found}", "the run's secret", make)
        return
    state = secret.stat()
    if state.st_mode & 0o077:
        found = f"{secret}, a file of mode {stat.S_IMODE(state.st_mode):04o}"
        yield Problem(path, found, "mode 0600", f"others can read it: chmod 600 {secret}")
    if state.st_size < LEAST_CHARACTERS:
        yield Problem(path, f"{secret}, of {state.st_size} bytes", f"{LEAST_CHARACTERS} or more", make)


def _script_problems(script: Path) -> Iterator[Problem]:
    path, allowed = ("run", "script"), "path of the training script that workers run"
    try:
        mode = script.stat().st_mode
    except OSError as error:
        yield Problem(path, f"{script}: {error.strerror}", allowed, nearest_file(script))
        return
    if stat.S_ISDIR(mode):
        yield Problem(path, f"the folder {script}", allowed, nearest_file(script / "train.py"))
    elif not os.access(script, os.R_OK):
        yield Problem(path, f"{script}, which cannot be read", allowed)
