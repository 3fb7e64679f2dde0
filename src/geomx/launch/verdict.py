"""Who failed first, and why, out of how processes ended and what their nodes have recorded.

One failure ends every node, and each tells it in its own way. People want it once: the culprit first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from geomx.errors import NodeLost, ResultWrong, RunFailed, Stalled, refusal_of
from geomx.launch.engines.keeper import LOST_STATUS
from geomx.launch.local.child import Ended
from geomx.launch.local.processes import Outcome
from geomx.observe.records import Record
from geomx.observe.report import Report
from geomx.tree import ROW_SERVERS, Tree

FAILED = 1
AGAIN = "start the run again: a script that loads its checkpoint (run.load) continues from there"
EVERYWHERE = f"start every node again: {AGAIN.partition(': ')[2]}"
CHANGED = "fix this first: started again as it is, the run ends in the same way"
KILLED = "somebody sent SIGKILL, or the machine ran out of memory (`dmesg` says so)"
VANISHED = "its process ended with status 0 before the run was over: does its script call os._exit()?"
PATIENCE = "to outlast a longer cut, raise wan.timeout_s (within a party: lan.timeout_s)"


def status_of(error: BaseException, may_return: bool) -> int:
    """With which exit status a node ends for an error. By `LOST_STATUS` engines know whom to start again.

    `may_return`: the run goes on without who is lost, or waits for it.
    """
    was_cut_off = may_return and isinstance(error, NodeLost) and error.may_return
    return LOST_STATUS if was_cut_off else FAILED


def check_result(report: Report, records: Path) -> None:
    """Raise `ResultWrong` for a run that has ended well where it cannot have; its records are in this folder."""
    if report["wrong"]:
        raise ResultWrong(
            f"the result is wrong: {'; '.join(report['wrong'])}. Do not use these weights; report it, with the records "
            f"in {records}. A script that writes weights by `.data` behind its last step calls run.close() before"
        )


def first_failure(outcome: Outcome, records: Sequence[Record], shown: bool = False) -> RunFailed:
    """The failure that brought about the others, and how to go on. `shown`: the nodes' own last lines have been.

    It is that of a process that a signal killed, else of the first node that told of a failure of its own, else
    of a link whose ends have lost each other, else of the first node that others told about (it may have fallen
    silent), else the first that was noticed. What nodes tell once they are being stopped says nothing, and neither does
    what those told without which the run went on.
    """
    lost = {loss.name for loss in outcome.lost}
    ended = {failure.name: failure for failure in (*outcome.failures, *outcome.lost)}
    until = math.inf if outcome.stopped_at is None else outcome.stopped_at
    told = [record for record in blames(records) if record.t < until and record.node not in lost]
    reasons = {
        record.node: record.fields["reason"] for record in told if record.node == record.fields["node"]
    }
    killed = [failure.name for failure in outcome.failures if failure.status < 0]
    if not killed and not reasons and (link := lost_link(told)):
        return _with_hints(*link, hint=PATIENCE)
    of_others = [record.fields["node"] for record in told]
    node = [*killed, *reasons, *of_others, *ended][0]
    error = next((r.fields["error"] for r in told if r.fields["node"] == node), "")
    if node not in ended and node in reasons:
        return _with_hints(node, reasons[node], error)
    if node not in ended:
        if node in outcome.well:
            return _with_hints(node, VANISHED, error)
        reason = next(r.fields["reason"] for r in told if r.fields["node"] == node)
        if node in ROW_SERVERS:  # a process that nobody here has started
            return _with_hints(node, reason, error)
        return _with_hints(node, f"{reason}; its process was still running", error, PATIENCE)
    of_lost = next((r.fields["reason"] for r in told if r.fields["node"] == node), "") if node in lost else ""
    words = _last_words(ended[node], reasons.get(node, of_lost), shown)
    if ended[node].lack:
        return RunFailed(node, words)
    return _with_hints(node, words, error, KILLED if ended[node].how.endswith("SIGKILL") else "")


def by_hand(error: BaseException) -> str:
    """What a node that was started by hand says of its end, and how to go on."""
    if not isinstance(error, NodeLost | RunFailed | Stalled):
        return str(error)
    return f"{error}\n  {CHANGED if refusal_of(error) else EVERYWHERE}"


def follows(error: BaseException, node: str) -> bool:
    """Whether what ended a node came about elsewhere."""
    return isinstance(error, NodeLost) or (isinstance(error, RunFailed) and error.node != node)


def tells_failure(record: Record, tree: Tree) -> bool:
    """Whether a node's record says that the run has failed, and not only that the node is cut off from those above."""
    if record.name != "failed":
        return False
    above = (*tree.ancestors(record.node), *tree.shards)
    return record.fields["error"] != NodeLost.__name__ or record.fields["node"] not in above


def blames(records: Sequence[Record]) -> list[Record]:
    """What nodes have told of failures, without whom those blame that stood still themselves."""
    slept = {record.node for record in records if record.name == "slept"}
    return [
        record
        for record in records
        if record.name == "failed" and (record.node not in slept or record.fields["node"] == record.node)
    ]


def lost_link(told: Iterable[Record]) -> tuple[str, str] | None:
    """Two nodes that have each told that they lost the other, while both went on: their names, and what happened."""
    lost = {(r.node, r.fields["node"]) for r in told if r.fields["error"] == "NodeLost"}
    for one, other in sorted(lost):
        if one != other and (other, one) in lost:
            words = "the link between the two is lost: both kept running, but neither heard from the other"
            return f"{one} and {other}", words
    return None


def _last_words(ended: Ended, reason: str, shown: bool) -> str:
    last_word = ended.how.split()[-1]  # the status, or the signal
    says_it_all = reason.endswith((f"status {last_word}", f"({last_word})"))
    words = reason if says_it_all else f"it {ended.how}" + (f": {reason}" if reason else "")
    lines = "".join(f"\n  {line}" for line in ended.last_lines)
    if not lines:
        return words
    return f"{words} (what it printed is above)" if shown else f"{words}; its last lines:{lines}"


def _with_hints(node: str, reason: str, error: str = "RunFailed", hint: str = "") -> RunFailed:
    """`error`: the name of the class of what the node failed with."""
    again = CHANGED if refusal_of(RunFailed(node, reason, error)) else AGAIN
    hints = "".join(f"\n  {line}" for line in (hint, again) if line)
    return RunFailed(node, f"{reason}{hints}")
