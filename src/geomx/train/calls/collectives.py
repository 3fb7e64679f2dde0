"""Collective calls over arrays: packed into turns of their own, on the way that gradients take.

    pending     calls of which nobody has asked for the result yet
    flush       all of them go in one turn; what is larger than `SMALL_BYTES` in pieces, over several slices and turns

A call's arrays travel as bundles (`geomx.codecs.bundle`), which servers combine on their way up as they add gradients:
so a call waits for whoever a step would wait for, counts each worker once, and ends where the run does. Results are
the same bits on every worker, in whatever order contributions came.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec
import torch

from geomx.codecs.bundle import DTYPES, LARGEST_BYTES, Bundle, Entry, Op, say
from geomx.errors import Disagreement, GeomxError, RunFailed, Unsupported
from geomx.layout import Slice
from geomx.node.slices.finite import listed
from geomx.train.calls.arrays import as_tensor, described, like, plain, rebuilt, taken_apart
from geomx.train.calls.collective_client import CollectiveClient
from geomx.wire.messages import COLLECTIVE

ReduceOp = Literal["sum", "mean", "max", "min"]
REDUCE_OPS = ("sum", "mean", "max", "min")
SMALL_BYTES, PIECE_BYTES = 1 << 18, 1 << 20
MOST_TOGETHER, MOST_TRIES = 1 << 12, 8
MAPS = 4  # small results that travel together at most
ENTRY_BYTES = 1 << 12  # what is told of an array at most
SAME = "#"  # the entry that says what is called
FEW, TINY_BYTES, MOST_IN_GROUP = 16, 1 << 10, 1 << 10  # more pieces than a few travel in groups of tiny ones
HALVES = (torch.float16, torch.bfloat16)
Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A call that was made with `wait=False`; `result()` waits for it, and for all that were made before."""

    def __init__(self, flush: Callable[[], None], make: Callable[[], Result]) -> None:
        self._flush, self._make = flush, make
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._is_done = False

    def result(self) -> Result:
        """What the call gives.

        Raises:
            GeomxError: Whatever ends the run.
        """
        if not self._is_done:
            self._flush()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def done(self) -> None:
        """Its arrays have come."""
        try:
            self._result = self._make()
        except GeomxError as error:
            self._error = error
        self._is_done = True

    def failed(self, error: BaseException) -> None:
        """They will not come."""
        self._error, self._is_done = error, True


class Collectives:
    """The calls of one worker. `slices`: by which they travel; `workers`: who makes them.

    `goes_on`: without those who are lost; `before`: is called before calls leave.
    """

    def __init__(
        self,
        client: CollectiveClient,
        slices: Sequence[Slice],
        workers: Sequence[str],
        goes_on: bool,
        before: Callable[[], None],
    ) -> None:
        self._client, self._slices = client, tuple(slices)
        self._workers, self._goes_on, self._before = tuple(workers), goes_on, before
        self._most_gathered = LARGEST_BYTES // len(self._workers) - ENTRY_BYTES
        self._most_mapped = min(SMALL_BYTES, self._most_gathered // MAPS)
        self._number = 0  # of pieces that wait: names have to be those of whoever was started later
        self._waiting: list[tuple[list[_Piece], Pending[Any]]] = []
        self._said: list[str] = []  # of each of them, what it is
        self.made = 0  # calls so far
        self._gave: set[int] = set()  # how many have given to each turn
        self._came: dict[str, list[tuple[Entry, torch.Tensor]]] = {}
        self._awaited: dict[int, int] = {}  # by slice: the turn whose answer is to come

    def reduce(self, arrays: Any, op: ReduceOp) -> Pending[Any]:
        """See `RunCalls.reduce`."""
        if op not in REDUCE_OPS:
            raise Unsupported(f"reduce(op={op!r}): op is one of {', '.join(REDUCE_OPS)}")
        given, shape = taken_apart(arrays)
        tensors = [_checked(as_tensor(each)) for each in given]
        if op in ("max", "min") and any(each.is_complex() for each in tensors):
            raise Unsupported(f"reduce(op={op!r}) of complex numbers, which have no order")
        wire: Op = "sum" if op == "mean" else op
        if wire == "sum":
            tensors = [_widened(each, op) for each in tensors]
        places = [self._split(each, wire) for each in tensors]

        def make() -> Any:
            made = []
            for each, pieces, source in zip(tensors, places, given, strict=True):
                whole, count = self._joined(pieces, each)
                if op == "mean":
                    is_exact = whole.is_floating_point() or whole.is_complex()
                    whole = (whole if is_exact else whole.double()) / count
                    dtype = as_tensor(source).dtype
                    whole = whole.to(dtype) if dtype in HALVES else whole
                made.append(like(source, whole))
            return rebuilt(shape, made)

        told = f"reduce(op={op!r}) of {described(shape, map(_told, tensors))}"
        return self._begin(told, [piece for pieces in places for piece in pieces], make)

    def broadcast(self, arrays: Any, source: str) -> Pending[Any]:
        """See `RunCalls.broadcast`."""
        given, shape = taken_apart(arrays)
        tensors = [_checked(as_tensor(each)) for each in given]
        if source not in self._workers:
            raise Unsupported(f"broadcast(source={source!r}): the workers are {listed(self._workers)}")
        gives = self._client.name == source
        places = [self._split(each, "first", gives) for each in tensors]

        def make() -> Any:
            made = []
            for each, pieces, mine in zip(tensors, places, given, strict=True):
                if any(piece.name not in self._came for piece in pieces):
                    raise RunFailed(source, "it was lost before its arrays had come, so nobody has them")
                made.append(like(mine, self._joined(pieces, each)[0]))
            return rebuilt(shape, made)

        told = f"broadcast(source={source!r}) of {described(shape, map(_told, tensors))}"
        return self._begin(told, [piece for pieces in places for piece in pieces], make)

    def gather(self, arrays: Any) -> Pending[dict[str, Any]]:
        """See `RunCalls.gather`."""
        given, shape = taken_apart(arrays)
        tensors = [_checked(as_tensor(each)) for each in given]
        pieces = [self._whole(each, self._most_gathered, "gather") for each in tensors]

        def make() -> dict[str, Any]:
            by_worker: dict[str, list[Any]] = {}
            for piece, mine in zip(pieces, given, strict=True):
                for entry, array in self._came.pop(piece.name, []):
                    by_worker.setdefault(entry.origin, []).append(like(mine, array.view(entry.shape).clone()))
            return {name: rebuilt(shape, made) for name, made in sorted(by_worker.items())}

        return self._begin(f"gather of {described(shape, ['...'] * len(given))}", pieces, make)

    def map(self, value: Any, call: str = "map") -> Pending[dict[str, Any]]:
        """See `RunCalls.map`. `call`: as what it is known."""
        try:
            data = msgspec.msgpack.encode(value, enc_hook=plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Unsupported(f"map() takes numbers, texts, None, lists and dicts of them: {error}") from None
        piece = self._whole(torch.frombuffer(bytearray(data), dtype=torch.uint8), self._most_mapped, "map")
        piece.packs = True

        def make() -> dict[str, Any]:
            came = self._came.pop(piece.name, [])
            return {entry.origin: msgspec.msgpack.decode(bytes(array.numpy())) for entry, array in came}

        return self._begin(call, [piece], make)

    def barrier(self) -> Pending[None]:
        """See `RunCalls.barrier`."""
        return self._begin("barrier", [], lambda: None)

    def flush(self) -> None:
        """Have all that is pending answered."""
        if not self._waiting:
            return
        self._before()
        waiting, self._waiting, self._number = self._waiting, [], 0
        said, self._said = self._said, []
        try:
            for _ in range(MOST_TRIES):
                self._came, self._gave = {}, set()
                self._exchange(waiting, said)
                if len(self._gave) == 1:
                    break
            else:
                raise RunFailed(
                    self._client.name, f"workers were lost in {MOST_TRIES} tries of a collective call"
                )
            self._check_left(*self._gave)
        except BaseException as error:
            for _, pending in waiting:
                pending.failed(error)
            raise
        for _, pending in waiting:
            pending.done()

    def _check_left(self, gave: int) -> None:
        """Where the run goes on without nobody, all have given."""
        if not self._goes_on and gave < len(self._workers):
            raise Disagreement(
                f"{gave} of {len(self._workers)} workers made this call: the others have closed their runs, or their "
                "scripts have ended; every worker must make the same calls"
            )

    def keep(self) -> None:
        """The arrays of the last call may change before it leaves."""
        for piece in self._waiting[-1][0]:
            piece.array = piece.array.clone()

    def _exchange(self, waiting: list[tuple[list[_Piece], Pending[Any]]], said: list[str]) -> None:
        """Have all arrays of these calls come. Turns differ in who has given where somebody is lost between them.

        Everybody sees that, and they are exchanged once more: sums of one call are of the same workers.
        """
        absences = self._client.absences
        every = [piece for pieces, _ in waiting for piece in pieces]
        groups = _grouped(every) if len(every) > FEW else [_Group([piece]) for piece in every]
        same = say(said)
        for turn in _turns([group.piece for group in groups], len(self._slices)) or [{0: []}]:
            for lane, pieces in turn.items():
                slice_ = self._slices[lane]
                self._client.wait([slice_.index])
                given = [piece for piece in pieces if piece.gives]
                bundle = Bundle(
                    (Entry(SAME, "same", "uint8", (same.numel(),)), *(piece.entry for piece in given)),
                    (same, *(piece.array for piece in given)),
                )
                packed: Any = (bundle, None)
                self._awaited[slice_.index] = self._client.turn
                self._client.contribute(slice_.index, "call", COLLECTIVE, 1.0, packed)
            self._client.next_turn()
        self._client.wait()
        if self._client.absences != absences:
            raise self._client.given_up(
                "it was cut off, and the others have made this call without it", "start this worker again"
            )
        for group in groups:
            group.part(self._came)

    def arrived(self, slice_: Slice, turn: int, bundle: Any) -> None:
        """A slice's answer; None: nobody had anything. What is answered once more is of no account."""
        if self._awaited.get(slice_.index) != turn:
            return
        del self._awaited[slice_.index]
        for entry, array in zip(*bundle, strict=True) if bundle is not None else ():
            if entry.op == "same":
                self._gave.add(entry.count)
            else:
                self._came.setdefault(entry.name, []).append((entry, array))

    # -- pieces --------------------------------------------------------------------------------------------------

    def _begin(self, told: str, pieces: list[_Piece], make: Callable[[], Result]) -> Pending[Result]:
        self._said.append(told)
        self.made += 1
        pending = Pending(self.flush, make)
        self._waiting.append((pieces, pending))
        return pending

    def _piece(self, op: Op, array: torch.Tensor, gives: bool = True) -> _Piece:
        name, self._number = str(self._number), self._number + 1
        dtype = _name(array.dtype)
        origin = self._client.name if op == "gather" else ""
        entry = Entry(name, op, dtype, tuple(array.shape), origin)
        return _Piece(entry, array.cpu().contiguous().reshape(-1), gives)

    def _split(self, array: torch.Tensor, op: Op, gives: bool = True) -> list[_Piece]:
        """A small one as it is, a large one in pieces."""
        size = array.numel() * array.element_size()
        if size <= SMALL_BYTES:
            return [self._piece(op, array, gives)]
        each = PIECE_BYTES // array.element_size()
        return [self._piece(op, part, gives) for part in torch.split(array.reshape(-1), each)]

    def _whole(self, array: torch.Tensor, most_bytes: int, call: str) -> _Piece:
        size = array.numel() * array.element_size()
        if size > most_bytes:
            raise Unsupported(
                f"{call} of {size} bytes from one worker; with so many workers at most {most_bytes}"
            )
        return self._piece("gather", array)

    def _joined(self, pieces: Iterable[_Piece], as_was: torch.Tensor) -> tuple[torch.Tensor, int]:
        """What became of an array, in memory of its own, and how many have given to it."""
        came = [self._came.pop(piece.name)[0] for piece in pieces]
        parts = [array for _, array in came]
        whole = parts[0].clone() if len(parts) == 1 else torch.cat(parts)
        return whole.view(as_was.shape).to(as_was.device), came[0][0].count


class _Piece:
    """A part of an array that travels by itself. `gives`: this worker has its values.

    `packs`: of `gather`, it goes with others, since it is small on all workers.
    """

    __slots__ = ("array", "entry", "gives", "packs")

    def __init__(self, entry: Entry, array: torch.Tensor, gives: bool) -> None:
        self.entry, self.array, self.gives, self.packs = entry, array, gives, False

    @property
    def name(self) -> str:
        return self.entry.name


class _Group:
    """Small pieces that are reduced alike, and travel as one."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        self.piece = first = pieces[0]
        if len(pieces) > 1:
            shapes = repr([piece.entry.shape for piece in pieces]).encode()
            name = f"{first.name}-{pieces[-1].name} {hashlib.blake2b(shapes, digest_size=8).hexdigest()}"
            array = torch.cat([piece.array for piece in pieces])
            self.piece = _Piece(
                Entry(name, first.entry.op, first.entry.dtype, (array.numel(),)), array, first.gives
            )

    def part(self, came: dict[str, list[tuple[Entry, torch.Tensor]]]) -> None:
        """Give each what came for all."""
        if len(self._pieces) > 1:
            ((entry, array),) = came.pop(self.piece.name)
            sizes = [piece.array.numel() for piece in self._pieces]
            for piece, part in zip(self._pieces, array.split(sizes), strict=True):  # type: ignore[no-untyped-call]
                came[piece.name] = [(entry, part)]


def _grouped(pieces: Sequence[_Piece]) -> list[_Group]:
    """Small ones of one operation and type together, where the first of them stood."""
    groups: dict[Any, list[_Piece]] = {}
    for place, piece in enumerate(pieces):
        entry = piece.entry
        alike = entry.op in ("sum", "max", "min") and entry.size_bytes <= TINY_BYTES
        groups.setdefault((entry.op, entry.dtype) if alike else place, []).append(piece)
    return [
        _Group(group[start : start + MOST_IN_GROUP])
        for group in groups.values()
        for start in range(0, len(group), MOST_IN_GROUP)
    ]


def _turns(pieces: Sequence[_Piece], lanes: int) -> list[dict[int, list[_Piece]]]:
    """Which pieces go in which turn, by slice: bundles of about `PIECE_BYTES`, one after the other over the slices.

    It follows from names and sizes that are the same on all workers.
    """
    bundles: list[list[_Piece]] = []
    room = 0
    for piece in pieces:
        size = piece.entry.size_bytes
        if piece.entry.op == "gather":  # others may have more of it
            size = PIECE_BYTES // MAPS if piece.packs else PIECE_BYTES
        if not bundles or size > room or len(bundles[-1]) == MOST_TOGETHER:
            bundles.append([])
            room = PIECE_BYTES
        bundles[-1].append(piece)
        room -= size
    return [dict(enumerate(bundles[start : start + lanes])) for start in range(0, len(bundles), lanes)]


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _told(tensor: torch.Tensor) -> str:
    return f"{_name(tensor.dtype)} {list(tensor.shape)}"


def _widened(tensor: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """Before it is added: whole numbers as int64, as NumPy adds them; for a mean, half precision as float32."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.long()
    return tensor.float() if op == "mean" and tensor.dtype in HALVES else tensor


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    if _name(tensor.dtype) not in DTYPES or tensor.layout is not torch.strided:
        raise Unsupported(
            f"a collective call of {tensor.dtype} ({tensor.layout}); allowed: {', '.join(sorted(DTYPES))}"
        )
    return tensor
