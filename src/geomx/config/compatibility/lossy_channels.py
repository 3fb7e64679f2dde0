"""What follows from a channel that sends payloads in datagrams: `datagram`, `dgt`, or your own.

It makes the channel, which imports torch; for `tcp` it makes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from geomx.channels import channels, contract
from geomx.channels.contract import BlockClasses, EdgeSettings
from geomx.config.reading.document import Document
from geomx.config.reading.problems import KeyPath, Problem, dotted, shown
from geomx.config.tables import Description, EdgeTable
from geomx.errors import ConfigError

PLAIN = "tcp"
WAN: KeyPath = ("wan",)
LAN: KeyPath = ("lan",)


def edge_tables(run: Description) -> dict[KeyPath, EdgeTable]:
    """The tables of edges, by where they stand, the highest first."""
    found: dict[KeyPath, EdgeTable] = {WAN: run.wan}
    for index, region in enumerate(run.regions):
        found["region", index, "below"] = region.below
    return {**found, LAN: run.lan}


def classes_of(edge: EdgeTable) -> BlockClasses | None:
    """How a channel sends blocks; None: it has no datagrams. Raises `ConfigError` where it cannot be made."""
    if edge.channel == PLAIN:
        return None
    return contract.classes_of(channels.make(edge.channel, EdgeSettings()))


def channels_that_lose(run: Description) -> dict[KeyPath, BlockClasses]:
    """By their tables, those that put payloads in datagrams, whether or not blocks of them may be lost."""
    found = {path: classes_of(edge) for path, edge in edge_tables(run).items()}
    return {path: classes for path, classes in found.items() if classes is not None}


def named(run: Description, path: KeyPath) -> str:
    """`wan.channel = "dgt"`."""
    return f"{dotted(path)}.channel = {shown(edge_tables(run)[path].channel)}"


def needing_loss(run: Description) -> str:
    """The channels that need the script's loss, as the description writes them; "" where none does."""
    return " and ".join(
        named(run, path) for path, classes in channels_that_lose(run).items() if classes.needs_loss
    )


def proof_problems(run: Description) -> Iterator[Problem]:
    """Whoever is on the path could put blocks of his own into a flow that nothing seals."""
    if run.run.secret_file is not None or run.tls.certificate is not None:
        return
    for path, edge in ((path, edge) for path, edge in edge_tables(run).items() if _seals(edge)):
        yield Problem(
            (*path, "channel"),
            f"{shown(edge.channel)} without run.secret_file and without [tls]",
            f'"{PLAIN}", or a secret, or [tls], with which datagrams are encrypted',
            "make a secret with `geomx secret FILE`, copy it to every machine, and name it in run.secret_file; "
            "`geomx run` makes its own",
        )


def _seals(edge: EdgeTable) -> bool:
    """Whether there are datagrams to seal; what is wrong with the channel itself is told elsewhere."""
    try:
        return classes_of(edge) is not None
    except ConfigError:
        return False


def check_proof(run: Description) -> None:
    """Check that a node can seal its datagrams; raises `ConfigError`."""
    if problems := list(proof_problems(run)):
        raise ConfigError(f"run {run.run.name}", Document({}).faults(problems))
