"""What follows from a channel that sends payloads in datagrams: `datagram`, `dgt`, or your own.

It makes the channel, which imports torch; for `tcp` it makes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from geomx.channels import channels, contract
from geomx.channels.contract import BlockClasses, EdgeSettings
from geomx.config.document import Document
from geomx.config.problems import Problem, shown
from geomx.config.tables import Description, EdgeTable
from geomx.errors import ConfigError

Tier = Literal["wan", "lan"]
TIERS: tuple[Tier, ...] = ("wan", "lan")
PLAIN = "tcp"


def edge_of(run: Description, tier: Tier) -> EdgeTable:
    """The table of a tier's edges."""
    return run.wan if tier == "wan" else run.lan


def classes_of(run: Description, tier: Tier) -> BlockClasses | None:
    """How a tier's channel sends blocks; None: it has no datagrams. Raises `ConfigError` where it cannot be made."""
    spec = edge_of(run, tier).channel
    if spec == PLAIN:
        return None
    return contract.classes_of(channels.make(spec, EdgeSettings()))


def channels_that_lose(run: Description) -> dict[Tier, BlockClasses]:
    """By tier, those that put payloads in datagrams, whether or not blocks of them may be lost."""
    found = {tier: classes_of(run, tier) for tier in TIERS}
    return {tier: classes for tier, classes in found.items() if classes is not None}


def named(run: Description, tier: Tier) -> str:
    """`wan.channel = "dgt"`."""
    return f"{tier}.channel = {shown(edge_of(run, tier).channel)}"


def needing_loss(run: Description) -> str:
    """The channels that need the script's loss, as the description writes them; "" where none does."""
    return " and ".join(
        named(run, tier) for tier, classes in channels_that_lose(run).items() if classes.needs_loss
    )


def proof_problems(run: Description) -> Iterator[Problem]:
    """Whoever is on the path could put blocks of his own into a flow that nothing seals."""
    if run.run.secret_file is not None or run.tls.certificate is not None:
        return
    for tier in (tier for tier in TIERS if _seals(run, tier)):
        yield Problem(
            (tier, "channel"),
            f"{shown(edge_of(run, tier).channel)} without run.secret_file and without [tls]",
            f'"{PLAIN}", or a secret, or [tls], with which datagrams are encrypted',
            "make a secret with `geomx secret FILE`, copy it to every machine, and name it in run.secret_file; "
            "`geomx run` makes its own",
        )


def _seals(run: Description, tier: Tier) -> bool:
    """Whether a tier has datagrams to seal; what is wrong with its channel itself is told elsewhere."""
    try:
        return classes_of(run, tier) is not None
    except ConfigError:
        return False


def check_proof(run: Description) -> None:
    """Check that a node can seal its datagrams; raises `ConfigError`."""
    if problems := list(proof_problems(run)):
        raise ConfigError(f"run {run.run.name}", Document({}).faults(problems))
