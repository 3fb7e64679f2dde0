"""A worker's end of tables: what it pulls and pushes, cut by those who hold the rows; see `geomx.tables`.

Who holds rows may change while something is under way. What was cut by others comes back, and is cut and asked anew:
pushes in their order, before anything else is asked.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from geomx.codecs.pack.values import FORMS
from geomx.errors import ConfigError, NotFinite, Unsupported
from geomx.node.requests import LARGEST_BYTES
from geomx.tables import table_filters, table_inits, table_rules
from geomx.tables.filters.contract import Filter, HeldBack
from geomx.tables.hashing import Keys
from geomx.tables.keys import SentLists, coded, digest_of
from geomx.tables.requests import (
    MOST_COLUMNS,
    MOST_ROWS,
    OF_NO_CLOCK,
    Done,
    OfTable,
    Open,
    Pull,
    Push,
    Put,
    Scan,
    Sync,
    packed,
)
from geomx.tables.ring import Ring
from geomx.train.calls.requests import Requests, Token

MOST_PUSHES, MOST_CUTS, SCANNED = 8, 16, 1 << 18  # under way at once; remembered; rows at a time
MOST_BYTES = LARGEST_BYTES // 2  # of rows, to or from one shard at once
NO_KEYS = np.empty(0, np.int64)


class _Part(NamedTuple):
    """What of some keys belongs to one place. `at`: where among them."""

    place: int
    keys: Keys
    at: npt.NDArray[np.int64]
    digest: bytes


@dataclass(eq=False)
class _Sent:
    """A push that is not answered. `epoch`: of the holders by whom it was cut; each part with its keys and rows.

    `order`: among all that was asked.
    """

    order: int
    epoch: int
    clock: int
    parts: list[tuple[Token, Keys, torch.Tensor]]

    @property
    def tokens(self) -> list[Token]:
        return [token for token, _, _ in self.parts]


class Pulled:
    """Rows that were asked for with `wait=False`."""

    def __init__(self, table: Table, order: int, keys: Keys, inverse: Any, shape: Any) -> None:
        """`order`: among all that was asked; `keys`: different ones that rise."""
        self.order, self.clock, self.keys = order, table.clock, keys
        self._table, self._inverse, self._shape = table, inverse, shape
        self.epoch, self.asked = table.ask_for(self)
        self._result: torch.Tensor | None = None

    @property
    def tokens(self) -> list[Token]:
        """What its answers are known by."""
        return [token for token, _ in self.asked]

    def result(self) -> torch.Tensor:
        """The rows, when they are there; see `Table.pull`."""
        if self._result is None:
            found = self._table.pulled(self)
            found = found if self._inverse is None else found[torch.from_numpy(self._inverse)]
            self._result = found.view(*self._shape, self._table.columns)
        return self._result


class Table:
    """Rows by key on the run's shards; `run.table` makes it.

    Attributes:
        name: Its name.
        rows: How many keys there are: 0 to `rows` - 1.
        columns: How many numbers a row has.
        clock: How often this worker has pushed, or how far the run is that has gone on without it.
        behind: How many pushes the slowest of its group was behind this worker in the last pull.
    """

    def __init__(self, requests: Requests, opened: Open, values: str, chain: Sequence[str]) -> None:
        """`values`: the number form in which rows travel; `chain`: filters, as specs."""
        self._requests, self._opened, self._form_name = requests, opened, values
        self.name, self.rows, self.columns = opened.table, opened.rows, opened.columns
        self._form = FORMS[values]()
        self._filters: list[tuple[Filter, HeldBack]] = [
            (table_filters.make(spec), HeldBack(opened.columns)) for spec in chain
        ]
        self._epoch = -1  # of the holders by whom what follows was cut
        self._cuts: OrderedDict[bytes, list[_Part]] = OrderedDict()
        self._lists: dict[int, SentLists] = {}  # by place
        self._under_way: deque[_Sent] = deque()
        self._pulls: list[weakref.ref[Pulled]] = []
        self._order = itertools.count()
        requests.looks.append(self._look)
        whom = f"every worker to open the table {self.name!r}"
        clocks = [
            done.clock
            for done, _ in self._of_all(lambda epoch: msgspec.structs.replace(opened, epoch=epoch), whom)
        ]
        # A script that is started again makes the pushes that some shard lacks; those that have one leave it out.
        self.clock, self.behind = max(clocks) if requests.goes_on else min(clocks), 0

    def pull(self, keys: Any, *, wait: bool = True) -> Any:
        """Read rows.

        Waits until nobody in this worker's group is more than `staleness` pushes behind this worker.

        Args:
            keys: Integers from 0 to `rows` - 1: a tensor or an array of any shape, a list, or a range. They may repeat.
            wait: Return the rows. False: return at once what waits for them.

        Returns:
            float32 of the shape of the keys and `columns`, or with `wait=False` an object whose `result()` is that.

        Raises:
            Unsupported: Keys that are none.
        """
        flat, shape = self._flat(keys)
        unique, inverse = _unique(flat)
        self._send_again()
        pulled = Pulled(self, next(self._order), unique, inverse, shape)
        self._pulls = [*(each for each in self._pulls if each() is not None), weakref.ref(pulled)]
        return pulled.result() if wait else pulled

    def push(self, keys: Any, gradients: Any) -> None:
        """Update rows by the table's rule, and end this worker's step of the table: its clock goes on by one.

        Returns at once; a pull waits for what it has to see.

        Args:
            keys: As of `pull`. What is given for a key several times is added up.
            gradients: Of the shape of the keys and `columns`; with one column, of the shape of the keys too.

        Raises:
            NotFinite: A number is NaN or Inf.
            Unsupported: Keys that are none, or gradients of another shape.
        """
        flat, shape = self._flat(keys)
        given = _as_rows(f"{self.name}.push", gradients)
        is_flat = self.columns == 1 and given.shape == shape
        if not is_flat and given.shape != (*shape, self.columns):
            raise Unsupported(
                f"{self.name}.push: gradients of shape {list(given.shape)}; expected {[*shape, self.columns]}"
            )
        given = given.reshape(-1, self.columns)
        if not bool(given.isfinite().all()):
            raise NotFinite(f"{self.name}.push: a gradient holds NaN or Inf in push {self.clock}")
        unique, inverse = _unique(flat)
        if inverse is not None:
            total = torch.zeros(len(unique), self.columns)
            given = total.index_add_(0, torch.from_numpy(inverse), given)
        for each, held in self._filters:
            unique, given = self._filtered(each, held, unique, given)
        self._send_again()
        self._send(unique, given, self.clock, next(self._order))
        self.clock += 1
        if len(self._under_way) > MOST_PUSHES:
            self._settle()

    def flush(self) -> None:
        """Push what filters hold back, and return when every push has come to its shard. The end of a run does so."""
        if any(each.keeps for each, _ in self._filters):
            keys, rows = NO_KEYS, torch.empty(0, self.columns)
            for _, held in self._filters:
                more, their = held.all()
                keys, rows = np.concatenate([keys, more]), torch.cat([rows, their])
            unique, inverse = _unique(keys)
            if inverse is not None:
                rows = torch.zeros(len(unique), self.columns).index_add_(0, torch.from_numpy(inverse), rows)
            if len(unique):
                self._send(unique, rows, OF_NO_CLOCK, next(self._order))
        while self._under_way:
            self._settle()

    def sync(self) -> None:
        """Return when every push of this worker's group is applied; all of the group must call it.

        With `staleness=0`, workers that have pushed more often than others wait with that for nobody any more.
        """
        self.flush()
        whom = f"the others of its group to call sync() of the table {self.name!r}"
        self.clock = max(done.clock for done, _ in self._of_all(lambda epoch: Sync(self.name, epoch), whom))

    def put(self, keys: Any, rows: Any) -> None:
        """Give rows these values, as out of a file; what their rule keeps of them begins anew.

        Args:
            keys: As of `pull`, each once.
            rows: Of the shape of the keys and `columns`.

        Raises:
            NotFinite: A number is NaN or Inf.
            Unsupported: Keys that are none or repeat, or rows of another shape.
        """
        flat, shape = self._flat(keys)
        given = _as_rows(f"{self.name}.put", rows)
        order = np.argsort(flat, kind="stable")
        if given.shape != (*shape, self.columns):
            raise Unsupported(
                f"{self.name}.put: rows of shape {list(given.shape)} for keys of shape {list(shape)}; expected "
                f"{[*shape, self.columns]}"
            )
        if len(np.unique(flat)) != len(flat):
            raise Unsupported(f"{self.name}.put: a key stands there more than once")
        if not bool(given.isfinite().all()):
            raise NotFinite(f"{self.name}.put: a row holds NaN or Inf")
        keys, ordered = flat[order], given.reshape(-1, self.columns)[torch.from_numpy(order)]
        while len(keys):
            parts, epoch = self._cut(keys), self._epoch
            tokens = []
            for part in parts:
                payload = packed(**coded(part.keys, self.rows), rows=ordered[torch.from_numpy(part.at)])
                tokens.append(self._requests.ask(part.place, Put(self.name, epoch), payload))
            answers = self._requests.wait(tokens, self._servers)
            back = [part.at for part, (done, _) in zip(parts, answers, strict=True) if done is None]
            at = np.sort(np.concatenate([NO_KEYS, *back]))
            keys, ordered = keys[at], ordered[torch.from_numpy(at)]

    @property
    def _servers(self) -> str:
        return f"{self._requests.servers} to answer about the table {self.name!r}"

    def _of_all(
        self, asked: Callable[[int], OfTable], whom: str
    ) -> list[tuple[Done, dict[str, torch.Tensor]]]:
        """What all who hold rows say to `asked(epoch)`, in order."""
        while True:
            self._send_again()
            holders = self._requests.holders
            tokens = [self._requests.ask(place, asked(holders.epoch)) for place in holders.places]
            answers = self._requests.wait(tokens, whom)
            done = [(done, arrays) for done, arrays in answers if done is not None]
            if len(done) == len(answers):
                return done

    def items(self) -> Iterator[tuple[npt.NDArray[np.int64], torch.Tensor]]:
        """All rows that somebody has updated, as they are when they are read.

        Yields:
            Keys of shape (some,), and their rows of shape (some, columns), server by server.
        """
        count = max(1, min(SCANNED, MOST_BYTES // (8 + 4 * self.columns)))
        whole: list[tuple[Ring, int]] = []  # all rows were given of so many servers, the first of a ring
        given: list[Keys] = []  # and of one that was not at its end
        holders, ring, at, start, own = self._requests.holders, self._requests.ring, 0, 0, list[Keys]()
        while at < len(holders.places):
            token = self._requests.ask(holders.places[at], Scan(self.name, start, count, holders.epoch))
            ((done, arrays),) = self._requests.wait([token], self._servers)
            if done is None:  # rows have moved: once more from the first server on, without what was given
                whole.append((ring, at))
                given += own
                holders, ring, at, start, own = self._requests.holders, self._requests.ring, 0, 0, []
                continue
            keys: Keys = arrays["keys"].numpy()
            if not len(keys):
                at, start, own = at + 1, 0, []
                continue
            start += len(keys)
            own.append(keys)
            is_new = np.ones(len(keys), bool)
            for before, servers in whole:
                is_new &= before.shards_of(keys) >= servers
            for each in given:
                is_new &= ~np.isin(keys, each)
            yield keys[is_new], arrays["rows"][torch.from_numpy(is_new)]

    def pushes(self) -> list[dict[str, int]]:
        """By server: how many pushes of each worker it has taken."""
        return [
            dict(done.clocks)
            for done, _ in self._of_all(lambda epoch: Scan(self.name, 0, 1, epoch), self._servers)
        ]

    def counts(self) -> dict[str, int]:
        """By server that holds rows: how many of this table that somebody has updated."""
        answers = self._of_all(lambda epoch: Scan(self.name, 0, 1, epoch), self._servers)
        return dict(zip(self._requests.servers.split(", "), (done.rows for done, _ in answers), strict=True))

    @property
    def sent_bytes(self) -> int:
        """What this worker has sent about all its tables so far, in bytes."""
        return self._requests.sent_bytes

    # -- keys -----------------------------------------------------------------------------------------------------

    def _flat(self, keys: Any) -> tuple[Keys, tuple[int, ...]]:
        found = (
            np.arange(keys.start, keys.stop, keys.step)
            if isinstance(keys, range)
            else np.asarray(keys.detach().cpu() if isinstance(keys, torch.Tensor) else keys)
        )
        if found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= self.rows):
            if found.dtype.kind in "US":
                told = "texts: give each a number first, such as a hash"
            elif found.dtype.kind not in "iu":
                told = f"{found.dtype}"
            else:
                told = f"{found.min() if found.min() < 0 else found.max()} among them"
            raise Unsupported(f"{self.name}: keys are integers from 0 to {self.rows - 1}; found {told}")
        return found.reshape(-1).astype(np.int64), found.shape

    def _cut(self, keys: Keys) -> list[_Part]:
        """Different keys, that rise, by place of those who hold rows now."""
        holders = self._requests.holders
        if self._epoch != holders.epoch:
            self._epoch, self._lists = holders.epoch, {place: SentLists() for place in holders.places}
            self._cuts.clear()
        digest = digest_of(keys)
        parts = self._cuts.get(digest)
        if parts is None:
            theirs = self._requests.ring.shards_of(keys)
            parts = []
            for index, place in enumerate(holders.places):
                at = np.flatnonzero(theirs == index)
                if len(at):
                    own = keys[at]
                    parts.append(_Part(place, own, at, digest_of(own)))
            self._cuts[digest] = parts
            if len(self._cuts) > MOST_CUTS:
                self._cuts.popitem(last=False)
        return parts

    def _keys_of(self, part: _Part) -> dict[str, torch.Tensor]:
        """What goes with a request that names these keys."""
        is_new = self._lists[part.place].name(part.digest)
        return coded(part.keys, self.rows) if is_new else {}

    # -- what goes, and what comes --------------------------------------------------------------------------------

    def _filtered(
        self, each: Filter, held: HeldBack, keys: Keys, rows: torch.Tensor
    ) -> tuple[Keys, torch.Tensor]:
        if each.keeps:
            rows = held.add_to(keys, rows)
        sends = each.sends(keys, rows, self.clock)
        if each.keeps and not sends.all():
            held.hold(keys[~sends], rows[torch.from_numpy(~sends)])
        return keys[sends], rows[torch.from_numpy(sends)]

    def _send(self, keys: Keys, rows: torch.Tensor, clock: int, order: int) -> None:
        """Everybody who holds rows hears of every push, since clocks go by them."""
        parts, packs = {part.place: part for part in self._cut(keys)}, dict[int, torch.Tensor]()
        own = {
            place: rows if len(part.keys) == len(keys) else rows[torch.from_numpy(part.at)]
            for place, part in parts.items()
        }
        for place in parts:
            packs[place] = self._form.pack(own[place].reshape(-1))
            if packs[place].nbytes > MOST_BYTES:
                raise Unsupported(
                    f"{self.name}.push: {packs[place].nbytes} bytes for one global server; at most {MOST_BYTES}: "
                    "push fewer rows at once"
                )
        sent, nothing = _Sent(order, self._epoch, clock, []), torch.empty(0, self.columns)
        for place in self._requests.holders.places:
            part = parts.get(place) or _Part(place, NO_KEYS, NO_KEYS, digest_of(NO_KEYS))
            arrays = self._keys_of(part) | ({"rows": packs[place]} if place in packs else {})
            asked = Push(self.name, clock, part.digest, self._form_name, sent.epoch)
            token = self._requests.ask(place, asked, packed(**arrays))
            sent.parts.append((token, part.keys, own.get(place, nothing)))
        self._under_way.append(sent)

    def _settle(self) -> None:
        """Return when the oldest push that is not answered is taken."""

        def is_taken() -> bool:
            is_answered = not self._under_way or self._requests.has(self._under_way[0].tokens)
            return is_answered and not self._stale()

        self._requests.until(is_taken, self._servers)
        if self._under_way:
            answers = self._requests.taken(self._under_way.popleft().tokens)
            self._learn(done for done, _ in answers)

    def _send_again(self) -> None:
        """Return when nothing is under way that was cut by those who hold rows no more."""
        if self._stale():
            self._look()
            self._requests.until(lambda: not self._stale(), self._servers)

    def _stale(self) -> list[Pulled | _Sent]:
        """What was cut by those who hold rows no more, in its order."""
        epoch = self._requests.holders.epoch
        asked: list[Pulled | _Sent] = [pull for pull in (each() for each in self._pulls) if pull is not None]
        asked += self._under_way
        return sorted((each for each in asked if each.epoch != epoch), key=lambda each: each.order)

    def _look(self) -> None:
        """Ask what was sent back anew, in its order, once all of it is answered: the last may tell of yet others."""
        stale = self._stale()
        if not all(self._requests.has(each.tokens) for each in stale):
            return
        pushes = [each for each in self._under_way if each not in stale]
        self._under_way.clear()
        for each in sorted({*stale, *pushes}, key=lambda each: each.order):
            if isinstance(each, _Sent) and each in stale:
                self._push_again(each)
            elif isinstance(each, _Sent):
                self._under_way.append(each)
            elif self._requests.are_sent_back(each.tokens):
                self._requests.taken(each.tokens)
                each.epoch, each.asked = self.ask_for(each)
            else:
                each.epoch = self._requests.holders.epoch

    def _push_again(self, sent: _Sent) -> None:
        """What of a push was sent back."""
        answers = self._requests.taken(sent.tokens)
        self._learn(done for done, _ in answers)
        parts = zip(sent.parts, answers, strict=True)
        back = [(keys, rows) for (_, keys, rows), (done, _) in parts if done is None]
        if back:
            keys = np.concatenate([keys for keys, _ in back])
            at = np.argsort(keys)
            rows = torch.cat([rows for _, rows in back])[torch.from_numpy(at)]
            self._send(keys[at], rows, sent.clock, sent.order)

    def ask_for(self, pull: Pulled) -> tuple[int, list[tuple[Token, _Part]]]:
        """Ask for rows; by which holders, and what. Raises `Unsupported` for too many."""
        parts, epoch = self._cut(pull.keys), self._requests.holders.epoch
        largest = max((self._form.size_bytes(len(part.keys) * self.columns) for part in parts), default=0)
        if largest > MOST_BYTES:
            raise Unsupported(
                f"{self.name}.pull: {largest} bytes from one global server; at most {MOST_BYTES}: pull fewer rows at "
                "once"
            )
        asked = []
        for part in parts:
            what = Pull(self.name, pull.clock, part.digest, self._form_name, epoch)
            asked.append((self._requests.ask(part.place, what, packed(**self._keys_of(part))), part))
        return epoch, asked

    def pulled(self, pull: Pulled) -> torch.Tensor:
        """The rows that were asked for, [keys, columns]."""
        bound = self._opened.staleness
        whom = (
            self._servers
            if bound is None
            else (
                f"the slowest of its group in the table {self.name!r}, ahead of whom it is {bound} pushes at most"
            )
        )
        self._send_again()
        self._requests.until(lambda: not self._stale() and self._requests.has(pull.tokens), whom)
        answers = self._requests.taken(pull.tokens)
        self._pulls = [each for each in self._pulls if each() is not pull]
        found = torch.empty(len(pull.keys), self.columns)
        for (_, part), (_, arrays) in zip(pull.asked, answers, strict=True):
            own = self._form.unpack(arrays["rows"].reshape(-1), len(part.keys) * self.columns, torch.float32)
            found[torch.from_numpy(part.at)] = own.view(-1, self.columns)
        if answers:
            self.behind = max(done.clock - done.slowest for done, _ in answers if done is not None)
        self._learn(done for done, _ in answers)
        return found

    def _learn(self, answers: Iterable[Done | None]) -> None:
        """Where the run has gone on without this worker, so does its clock."""
        if self._requests.goes_on:
            self.clock = max([self.clock, *(done.clock for done in answers if done is not None)])


def opened(
    name: str, rows: int, columns: int, init: str, rule: str, staleness: int | None, group: str
) -> Open:
    """What is asked for, checked. Raises `Unsupported`."""
    faults = []
    kinds = {"rows": rows, "columns": columns, "staleness": 0 if staleness is None else staleness}
    if wrong := [
        f"{what}={value!r}: a whole number" for what, value in kinds.items() if not isinstance(value, int)
    ]:
        raise Unsupported(f"run.table({name!r}): {'; '.join(wrong)}")
    if not 0 < rows <= MOST_ROWS:
        faults.append(f"rows={rows}: from 1 to {MOST_ROWS}")
    if not 0 < columns <= MOST_COLUMNS:
        faults.append(f"columns={columns}: from 1 to {MOST_COLUMNS}")
    if staleness is not None and staleness < 0:
        faults.append(f"staleness={staleness}: 0 or more, or None")
    for registry, spec, given in ((table_rules, rule, ()), (table_inits, init, (0,))):
        if ":" not in spec:  # one's own may be where the global servers are
            try:
                registry.make(spec, *given)
            except ConfigError as error:
                faults.append(str(error))
    if faults:
        raise Unsupported(f"run.table({name!r}): {'; '.join(faults)}")
    return Open(name, rows, columns, init, rule, staleness, group)


def _as_rows(call: str, given: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(given).detach().to("cpu", torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Unsupported(f"{call}: no rows of numbers: {error}") from None


def _unique(keys: Keys) -> tuple[Keys, npt.NDArray[np.int64] | None]:
    """Different keys that rise, and where each of those given is among them; None: they were so already."""
    if len(keys) < 2 or bool((np.diff(keys) > 0).all()):
        return keys, None
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique, inverse.reshape(-1)
