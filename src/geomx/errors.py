"""Everything that geomx raises. A message says what happened, to whom, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class GeomxError(Exception):
    """The root of the tree: `except geomx.GeomxError` catches whatever geomx raises.

    All of them can be pickled, so that they come back from processes of a pool as what they are.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(
    kind: type[GeomxError], arguments: tuple[object, ...], attributes: dict[str, object]
) -> GeomxError:
    error = kind.__new__(kind, *arguments)  # not by its own `__init__`: the message is made already
    error.__dict__.update(attributes)
    return error


# -- the description of a run ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a run's description."""

    where: str  # the key, such as `party[1].link.rate_mbps`, with its line where one is known
    found: str
    allowed: str
    hint: str = ""  # the nearest valid name, or what to do

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}: found {self.found}; allowed: {self.allowed}{hint}"


class ConfigError(GeomxError):
    """A run's description does not hold together. `faults` has every fault, not the first alone."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        count = len(self.faults)
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        super().__init__(f"{source}: {count} fault{'s' if count != 1 else ''}\n{lines}")


def nearest(name: Any, names: Iterable[str]) -> str:
    """A hint for `Fault`: `did you mean ...?`, or nothing where no name is near."""
    if not isinstance(name, str):
        return ""
    lowered = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean `{lowered[close[0]]}`?" if close else ""


class UnknownName(GeomxError):
    """A name stands in no registry and is no `module:Class` that can be imported."""


# -- what crosses the wire --------------------------------------------------------------------------


class ProtocolError(GeomxError):
    """A peer sent what the protocol does not allow; its connection is closed, nothing is applied."""


class Refused(GeomxError):
    """A node was not let in: its identity or its manifest does not fit the run."""


class Fenced(Refused):
    """A newer incarnation of this node has joined; this one must end."""


# -- nodes ------------------------------------------------------------------------------------------


class NodeLost(GeomxError):
    """A node that the run needs has died or fallen silent. `node` names it."""

    def __init__(self, node: str, reason: str) -> None:
        self.node = node
        self.reason = reason
        super().__init__(f"{node} is lost: {reason}")


class RunFailed(GeomxError):
    """Another node of the run failed, and this one cannot go on without it. `node` names it.

    `error`: the name of the class of what it failed with.
    """

    def __init__(self, node: str, reason: str, error: str = "RunFailed") -> None:
        self.node = node
        self.reason = reason.removeprefix(f"{node}: ")
        self.error = error
        lost = error == NodeLost.__name__
        super().__init__(f"{node} is lost: {reason}" if lost else f"the run failed at {node}: {self.reason}")


class Disagreement(GeomxError):
    """Workers that must say the same did not: hyper-parameters, or which call comes next."""


class WaitTimeout(GeomxError):
    """A bounded wait ran out. The message names whom it waited for, and which setting bounds it."""


class Stalled(GeomxError):
    """Every worker waits inside geomx, and nothing has moved for `limits.stall_s`: a message was lost for good."""


class OutOfMemory(GeomxError):
    """This node has no memory for what it must hold; it ends under its own name."""


# -- the training loop --------------------------------------------------------------------------------


class Unsupported(GeomxError):
    """geomx cannot carry this model, optimizer or call; the message says what would work."""


class GradientEdited(GeomxError):
    """A gradient was changed after it had been pushed: use `push_at="step"`, or `clip_norm`."""


class WeightUnknown(GeomxError):
    """No samples were counted for this step: iterate over `run.shard(loader)` or call `run.weight(n)`."""


class CheckpointError(GeomxError):
    """A checkpoint cannot be read, or belongs to another model."""


class FileUnwritable(GeomxError):
    """A report, a trace or another file cannot be written; the message names it, and says why."""

    def __init__(self, path: object, reason: str, hint: str = "") -> None:
        self.reason = reason
        super().__init__(f"cannot write {path}: {reason}{hint and f'; {hint}'}")


class ExamplesFailed(GeomxError):
    """Some of the examples that `geomx examples` was to run have failed; the message names them."""


class RecordsUnreadable(GeomxError):
    """A file of records holds something else."""


class SameData(GeomxError):
    """Two parties train on the same samples, which `run.strict` makes an error: `run.shard(loader, over="run")`."""


class DataMissing(GeomxError):
    """A data set is not on this machine; the message says how to get it."""


class NotFinite(GeomxError):
    """A contribution, or a sum of some, holds NaN, Inf, or what its codec has no room for; it has not left the node."""


# -- what starting again does not mend ------------------------------------------------------------------

# The message says what to change; what is started again unchanged is refused again.

REFUSALS = (
    ConfigError,
    UnknownName,
    Fenced,
    Refused,
    Unsupported,
    GradientEdited,
    WeightUnknown,
    CheckpointError,
    SameData,
    DataMissing,
)


def refusal_of(error: BaseException) -> str:
    """The name of its class where something was refused, here or on another node; "" for any other failure."""
    if isinstance(error, RunFailed):
        return error.error if error.error in {kind.__name__ for kind in REFUSALS} else ""
    return next((kind.__name__ for kind in REFUSALS if isinstance(error, kind)), "")
