"""Notes as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SENTENCES = {
    "advice": "{text}",
    "advised": "{text}",
    "anew": "begins anew: {reason}",
    "apart": "its last steps were not averaged over the run, so it may end with other weights than others: {why}. Let "
    "all workers of the party leave the loop after the same step, and call run.close() right after it",
    "attached": "attached: {parameters:,} parameters in {slices} slices",
    "away": "{peer} is disconnected: {reason}",
    "awaited": "{peer} is lost; waiting up to {seconds:.0f} s for it to be started again",
    "failed": "{node} failed: {reason}",
    "first_weights": "first weights: {share:.0%}, {arrived_mb:,.1f} of {of_mb:,.1f} MB",
    "finished": "finished after {steps} steps",
    "hands_over": "was asked to leave, and hands its rows over",
    "holds_rows": "has come: its share of the rows of all tables is here",
    "joined": "{peer} joined",
    "left": "{peer} left",
    "link": "link of {party} from {at_s:.1f} s on: {state}",
    "listening": "listening at {address}",
    "lost": "{peer} is lost: {reason}",
    "no_datagrams": "{why}",
    "refused": "refused {peer}: {reason}",
    "row_holders": "rows of tables are on {servers} from now on",
    "rejoined": "continuing at step {step}, in epoch {epoch}",
    "retires": "was asked to leave, and asks all below it to leave",
    "restored": "goes on from its log, which took {seconds:.1f} s to read",
    "resumed": "{peer} is connected again",
    "saves": "{first} is away, so {path} is written here",
    "slept": "did not run for {seconds:.0f} s (suspended, or no processor time)",
    "stands_by": "stands by: another process has its place",
    "no_store": "cannot reach the store, and tries again: {reason}",
    "skipped": "left out {part} of step {step}: {what}",
    "unreachable": "cannot reach {peer} yet, trying again: {reason}",
    "unread": "left out {batches:,} batches of pass {epoch}, which were this worker's while it was away",
    "unsaved": "{path} is not written: this worker was cut off when the others saved",
    "waiting": "waiting for {whom}, {seconds:.0f} s so far",
}
_PATHS = {
    True: "datagrams pass to {peer} again",
    False: "datagrams do not pass to {peer}, so TCP carries everything: {why}",
}
_TORN = {
    False: "turn {turn} is torn: it lost {whom} in the middle, so slices of its step are means over different workers",
    True: "turn {turn} of {cohort} is torn: it lost {whom} in the middle, so slices of its step are means over "
    "different workers",
}
_OVERLAYS = {
    "used": "contributions take {ways} ways by table {table}; adding for others: {relays}",
    "void": "table {table} is over, and everybody sends to the server above: {reason}",
    "left": "table {table} is left, and everybody sends to the server above: {reason}",
    "star": "everybody sends to the server above: {reason}",
}
_ROSTERS = {
    True: "{reason}; workers below that take part: {members}",  # a server's
    False: "{reason}; workers that take no part: {out}",  # a worker's
}


def sentence(name: str, fields: Mapping[str, Any]) -> str:
    """A note in words; one that is unknown here, or lacks a field, as `name: key=value, ...`."""
    try:
        return _form(name, fields).format_map(fields)
    except (KeyError, ValueError, TypeError):
        listed = ", ".join(f"{key}={value}" for key, value in fields.items())
        return f"{name}: {listed}" if listed else name


def _form(name: str, fields: Mapping[str, Any]) -> str:
    if name == "datagrams":
        return _PATHS[fields["passes"]]
    if name == "overlay":
        return _OVERLAYS[fields["state"]]
    if name == "torn":
        return _TORN[bool(fields["cohort"])]
    if name == "roster":
        return _ROSTERS["members" in fields]
    return _SENTENCES[name]


def are(names: Sequence[str]) -> str:
    """`A/0 is`, `A/0, A/1 are`."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def counted(count: int, what: str) -> str:
    """`1 worker`, `2 workers`, `2 parties`."""
    plural = what.removesuffix("y") + "ies" if what.endswith("y") else what + "s"
    return f"{count:,} {what if count == 1 else plural}"
