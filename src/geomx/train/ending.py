"""How a script's error ends its run: what it follows from, and what the other nodes are told."""

from __future__ import annotations

from geomx.errors import GeomxError
from geomx.node.contract import asked_to_end
from geomx.node.port import Port
from geomx.train.party.process_group import is_of_collective
from geomx.train.settings import Collective


def why_ended(error: BaseException) -> str:
    """What the others are told of a script that `error` has ended."""
    if isinstance(error, SystemExit):
        return f"its script ended with status {error.code or 0}"
    if isinstance(error, KeyboardInterrupt):
        return asked_to_end("SIGINT")
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def cause_of(error: BaseException, port: Port, collective: Collective | None) -> GeomxError | None:
    """What ended the run, if `error` may only follow from it; else None.

    One of PyTorch's collective calls fails when a worker of the party is lost. The run then says who it was, within
    `collective.loss_s`.
    """
    if collective is None or not is_of_collective(error):
        return None
    return port.outcome(collective.loss_s)


def is_of_job(error: BaseException) -> bool:
    """Whether a script has ended because a collective call of its party's has failed, PyTorch's or geomx's own."""
    return is_of_collective(error) or (error.__cause__ is not None and is_of_collective(error.__cause__))
