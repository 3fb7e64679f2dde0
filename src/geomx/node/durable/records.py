"""What stands in a shard's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch

from geomx.errors import ProtocolError
from geomx.rounds.round import Round
from geomx.wire.messages import Attach, Hyper, Kind, Leave, Push, Scale
from geomx.wire.request_messages import Request
from geomx.wire.roster_messages import Roster, Standing


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """One of a round. `place`: in the order of adding; `size`: of its payload, -1: it has none."""

    place: int
    push: Push
    size: int


class ClosedRound(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A round, with the payloads of its contributions one behind the other; None: as it was promised."""

    slice: int
    cohort: str
    turn: int
    kind: Kind
    contributions: tuple[Contribution, ...] | None
    handed_over: tuple[Contribution, ...] = ()


class HandedIn(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a child with its incarnation has given up as it left (`geomx.node.slices.handed_over`), with its payload."""

    giver: tuple[str, int]
    contribution: Contribution


class Promised(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A round that is complete here, of which another shard has been told: it closes as it is, or others take part."""

    round: ClosedRound


class SliceCut(msgspec.Struct, frozen=True, array_like=True):
    """Where one slice stands. `pieces`: the sizes of what it has of the payload, in bytes; values are their places.

    `weights`: None where the shard has none. `planes`: of the optimizer, and behind `compensation/`; `scalars`: of the
    optimizer. By cohort: `seen` and `version` as the root counts them; what receivers have (`anchors`, `versions`);
    what joiners are sent, with its version (`held`), and the same of a step that is answered in part (`before`: the
    turn, values, their version); the last turns that were answered, and that have closed.
    """

    index: int
    pieces: tuple[int, ...]
    weights: int | None
    planes: dict[str, int]
    scalars: dict[str, tuple[float, ...]]
    version: int
    seen: dict[str, int]
    anchors: dict[str, int]
    versions: dict[str, int]
    held: dict[str, tuple[int, int]]
    before: dict[str, tuple[int, int | None, int]]
    answered: dict[str, int]
    closed: dict[str, int]


class CutState(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Where a shard stands. Behind the model and its hyper-parameters, before rounds that have closed and wait.

    `left`, `begins`: as `Members` has them; `departed`: who has left early. `absences`: see `Absences`. `rosters`: the
    newest; `settled`: see `RosterKeeper`. `steps`: by cohort.
    """

    left: dict[str, dict[str, int]]
    begins: dict[str, dict[str, int]]
    departed: dict[str, dict[str, int]]
    absences: tuple[tuple[int, bytes], ...]
    rosters: tuple[Roster, ...]
    settled: dict[str, int]
    steps: dict[str, Standing]
    slices: tuple[SliceCut, ...]


class Served(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What answers requests at a shard (`geomx.node.requests`) as it stood. `taken`: by worker, the last request.

    `what`, and the payload of pieces with these `sizes`, are the service's business.
    """

    taken: dict[str, tuple[int, int, int, int]]
    what: bytes
    sizes: tuple[int, ...]


Record = (
    Attach | Hyper | ClosedRound | HandedIn | Promised | Scale | Roster | Leave | CutState | Request | Served
)
NOTHING = torch.empty(0, dtype=torch.uint8)
ALIGNED = 8  # bytes: what is looked at as numbers begins at a multiple
encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def read(header: bytes) -> Record:
    """A record. Raises `ProtocolError` where it is of another version of geomx."""
    try:
        record: Record = _decode(header)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"the store has a record that this version of geomx cannot read: {error}"
        ) from error
    return record


def tensor_of(payload: bytes | memoryview) -> torch.Tensor:
    """Bytes that were read, in memory of their own."""
    copied = bytearray(payload)
    return torch.frombuffer(copied, dtype=torch.uint8) if copied else NOTHING


def record_of(index: int, round_: Round) -> tuple[ClosedRound, list[torch.Tensor]]:
    """A round of slice `index` that has closed, and its payloads."""
    payloads: list[torch.Tensor] = []

    def of(each: tuple[int, Push, Any]) -> Contribution:
        place, push, payload = each
        if payload is not None:
            payloads.append(payload)
        return Contribution(place, push, -1 if payload is None else payload.nbytes)

    contributions, handed_over = tuple(map(of, round_.contributions)), tuple(map(of, round_.handed_over))
    return (
        ClosedRound(index, round_.cohort, round_.turn, round_.kind, contributions, handed_over),
        payloads,
    )


def handed_in(giver: tuple[str, int], handed: tuple[int, Push, Any]) -> tuple[HandedIn, list[torch.Tensor]]:
    """What a child has given up, and its payload."""
    place, push, payload = handed
    return HandedIn(giver, Contribution(place, push, payload.nbytes)), [payload]


def round_of(record: ClosedRound, payload: torch.Tensor) -> Round:
    """The round, as it was when it closed."""
    found = Round(record.turn, record.cohort, record.kind, 0.0)
    contributions = record.contributions or ()
    pieces = _pieces(payload, (*contributions, *record.handed_over))
    for each in contributions:
        found.contributions.append((each.place, each.push, next(pieces)))
        found.origins.update(each.push.origins)
    found.handed_over = [(each.place, each.push, next(pieces)) for each in record.handed_over]
    return found


def _pieces(payload: torch.Tensor, of: Iterable[Contribution]) -> Iterator[torch.Tensor | None]:
    at = 0
    for each in of:
        if each.size < 0:
            yield None
        else:
            piece = payload[at : at + each.size]
            yield piece if at % ALIGNED == 0 else piece.clone()
            at += each.size
