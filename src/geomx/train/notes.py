"""What a worker's run notes for those who watch it: the live view, the report and the logger `geomx`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from geomx.config.compatibility.script import Script
from geomx.errors import Unsupported
from geomx.node.port import Port
from geomx.optim.hyper import as_plain
from geomx.train.attach import AttachedModel
from geomx.train.model.none import NoModel

_logger = logging.getLogger("geomx")


def attached(port: Port, model: AttachedModel, scripts: Sequence[Script]) -> None:
    """Note which model and optimizer the run has, or which models and optimizers."""
    told = scripts[0].told()
    if len(scripts) > 1:
        told["optimizer"] = ", ".join(script.optimizer for script in scripts)
    model_slices = model.model_slices
    port.note(
        "attached",
        parameters=model_slices.trained_elements if trains(model) else 0,
        trained_bytes=sum(slice_.size_bytes for slice_ in model_slices.slices("weight")),
        slices=len(model_slices.layout.slices),
        on_server=model.optimizer.on_server,
        goes_on=model.steps.goes_on,
        **told,
    )


def logged(port: Port, turn: int, values: Mapping[str, Any]) -> None:
    """Note what the script logs, see `LiveRun.log`. Raises `Unsupported` for what is neither a number nor text."""
    plain = {key: as_plain(value) for key, value in values.items()}
    for key, value in plain.items():
        if not isinstance(value, str | int | float | bool | None):
            raise Unsupported(f"run.log({key}=...) takes a number or text; found a {type(value).__name__}")
    port.note("log", turn=turn, **plain)
    told = (
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in plain.items()
    )
    _logger.info("turn %d: %s", turn, ", ".join(told))


def trains(model: AttachedModel) -> bool:
    """Whether there is a model at all."""
    return not isinstance(model.model, NoModel)


def finished(port: Port, model: AttachedModel, samples: int, train_s: float, requests: int) -> None:
    """Note what this worker has done by the end of its run, and a digest of the weights it ends with.

    `requests`: how often it has asked about tables.

    No digest of weights into which the script has written since, as with those of its best checkpoint.
    """
    ledger, is_rewritten = model.ledger.values, model.guard.is_rewritten
    digest = model.intra_party.trained_sha256() if trains(model) and not is_rewritten else None
    port.note(
        "finished",
        steps=model.steps.steps,
        samples=samples,
        train_s=train_s,
        parameters=model.model_slices.trained_elements if trains(model) else 0,
        parameters_sha256=digest,
        calls=0 if model.calls is None else model.calls.made,
        requests=requests,
        rewritten=is_rewritten,
        ledger=None if ledger is None else ledger.tolist(),
        contributions=model.ledger.contributions,
        cohort=model.steps.cohort,
    )
