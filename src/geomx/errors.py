"""Everything that geomx raises. A message says what happened, to whom, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class GeomxError(Exception):
    """The base class of every error of geomx: `except geomx.GeomxError` catches them all."""

    # All can be pickled, so that an error in a process of a pool comes back as what it is.
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
    """One thing wrong with a run's description.

    Attributes:
        where: The key, such as `party[1].link.rate_mbps`, with its line if that is known.
        found: What is there now.
        allowed: What may be there.
        hint: The nearest valid name, or what to do; may be empty.
    """

    where: str
    found: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}: found {self.found}; allowed: {self.allowed}{hint}"


class ConfigError(GeomxError):
    """A run's description, a command line or the environment has faults; the message lists them all.

    Attributes:
        source: The file or the command that has them.
        faults: Each fault: where it is, what was found, what is allowed, and a hint.
    """

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
    """No codec, policy, optimizer or channel has this name, nor can it be imported as `module:Class`."""


# -- what crosses the wire --------------------------------------------------------------------------


class ProtocolError(GeomxError):
    """A peer sent something that the protocol does not allow. Its connection is closed, and nothing is applied."""


class Refused(GeomxError):
    """The run did not let this node in. The message says why, such as another secret, description or model."""


class Fenced(Refused):
    """This node was started a second time, and the newer process has taken its place in the run."""


# -- nodes ------------------------------------------------------------------------------------------


class NodeLost(GeomxError):
    """A node that the run needs has died or fallen silent, or the link to it is cut.

    Start every node again; scripts that load a checkpoint continue from it.

    Attributes:
        node: The name of the lost node, such as "A/0", "A" (a local server) or "global/0".
        reason: What was noticed, and by whom.
        may_return: Whoever raises it was cut off from the others. Where the run goes on without it (`run.on_loss`), it
            may be started again.
    """

    def __init__(self, node: str, reason: str, may_return: bool = False) -> None:
        self.node = node
        self.reason = reason
        self.may_return = may_return
        super().__init__(f"{node} is lost: {reason}")


class RunFailed(GeomxError):
    """The run has ended because another node failed.

    Attributes:
        node: The name of the node that failed first.
        reason: Its error message.
        error: The class name of its error, such as "NotFinite".
    """

    def __init__(self, node: str, reason: str, error: str = "RunFailed") -> None:
        self.node = node
        self.reason = reason.removeprefix(f"{node}: ")
        self.error = error
        lost = error == NodeLost.__name__
        super().__init__(f"{node} is lost: {reason}" if lost else f"the run failed at {node}: {self.reason}")


class ResultWrong(GeomxError):
    """All nodes have ended well, and what the run came to cannot be right: do not use its weights."""


class Disagreement(GeomxError):
    """Two workers made different calls in the same turn, or use different hyper-parameters in the same step.

    Every worker must make the same calls in the same order, and every schedule must see the same values.
    """


class WaitTimeout(GeomxError):
    """Somebody did not come in time. The message says who, and which setting bounds the wait."""


class Stalled(GeomxError):
    """Every worker waits inside geomx, and nothing has moved for `limits.stall_s`: a message was lost for good.

    Start every node again; scripts that load a checkpoint continue from it.
    """


class OutOfMemory(GeomxError):
    """This node does not have enough memory for a message that has come."""


# -- the training loop --------------------------------------------------------------------------------


class AskedToLeave(SystemExit):
    """This worker was asked to leave, and has left in order: its script ends with status 0, and the others go on.

    It comes from `optimizer.step()`, behind the step, or from `run.shard`, before a batch. It is no `Exception`. Catch
    it only to end your script in another way: the run is closed.
    """

    def __init__(self) -> None:
        super().__init__(0)


class Unsupported(GeomxError):
    """geomx does not support this model, optimizer or call; the message says what would work."""


class GradientEdited(GeomxError):
    """A gradient was changed after it had left. To clip, use `clip_norm` of `attach`; to edit, `push_at="step"`."""


class WeightUnknown(GeomxError):
    """No samples were counted for this step.

    Iterate over `run.shard(loader)`, call `run.weight(n)`, or set `sync.weight = "equal"`.
    """


class CheckpointError(GeomxError):
    """A checkpoint cannot be written or read, or belongs to another model or optimizer."""


class FileUnwritable(GeomxError):
    """A report, a trace or another file cannot be written; the message says which, and why."""

    def __init__(self, path: object, reason: str, hint: str = "") -> None:
        self.reason = reason
        super().__init__(f"cannot write {path}: {reason}{hint and f'; {hint}'}")


class ExamplesFailed(GeomxError):
    """Some examples of `geomx examples` have failed; the message names them."""


class RecordsUnreadable(GeomxError):
    """A file is not one of the records that nodes write, or is damaged."""


class SameData(GeomxError):
    """Two parties train on the same samples: use `run.shard(loader, over="run")`.

    Only with `run.strict`; otherwise it is a warning.
    """


class DataMissing(GeomxError):
    """An example's data set is not on this machine; the message says how to get it."""


class LossUnknown(GeomxError):
    """The channel adapts to the loss, and the script has not told it with `run.loss`."""


class NotFinite(GeomxError):
    """A gradient or a sum of gradients holds NaN, Inf, or a number too large for its codec. It was not sent.

    With `run.on_nonfinite = "skip"` such contributions are left out instead.
    """


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
    LossUnknown,
    CheckpointError,
    SameData,
    DataMissing,
    Disagreement,
)


def refusal_of(error: BaseException) -> str:
    """The name of its class where something was refused, here or on another node; "" for any other failure."""
    if isinstance(error, RunFailed):
        return error.error if error.error in {kind.__name__ for kind in REFUSALS} else ""
    return next((kind.__name__ for kind in REFUSALS if isinstance(error, kind)), "")
