"""A worker's end of tables: what it pulls and pushes, cut by shard; see `geomx.tables`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from geomx.codecs.pack.values import FORMS
from geomx.errors import ConfigError, NotFinite, Unsupported
from geomx.node.requests import LARGEST_BYTES, Responded
from geomx.tables import table_filters, table_inits, table_rules
from geomx.tables.filters.contract import Filter, HeldBack
from geomx.tables.hashing import Keys
from geomx.tables.keys import MOST_LISTS, SentLists, coded, digest_of
from geomx.tables.requests import (
    MOST_COLUMNS,
    MOST_ROWS,
    OF_NO_CLOCK,
    Asked,
    Done,
    Open,
    Pull,
    Push,
    Put,
    Scan,
    Sync,
    packed,
    read_answer,
    unpacked,
    written,
)
from geomx.tables.ring import Ring
from geomx.tables.vectors import Answer
from geomx.train.calls.collective_client import CollectiveClient

MOST_PUSHES, MOST_CUTS, SCANNED = 8, 16, 1 << 18  # under way at once; remembered; rows at a time
MOST_OPEN = MOST_LISTS // 2  # requests to one shard: what is asked again names lists that it still has
MOST_BYTES = LARGEST_BYTES // 2  # of rows, to or from one shard at once
Token = tuple[int, int]  # shard, number
NO_KEYS = np.empty(0, np.int64)


class _Part(NamedTuple):
    """What of some keys belongs to one shard. `at`: where among them."""

    shard: int
    keys: Keys
    at: npt.NDArray[np.int64]
    digest: bytes


class Requests:
    """A worker's requests to the shards, and what they have answered."""

    def __init__(self, client: CollectiveClient, shards: Sequence[str], goes_on: bool) -> None:
        """`goes_on`: the run does, without those who are lost."""
        self._client, self.shards, self.goes_on = client, tuple(shards), goes_on
        self._numbers = [0] * len(self.shards)
        self._open = [0] * len(self.shards)  # requests that are not answered
        self._answers: dict[Token, tuple[Done | Answer, dict[str, torch.Tensor]]] = {}
        self.sent_bytes = self.made = 0
        self.evaluations = self.minimizations = 0  # so far, see `geomx.train.calls.minimizing`
        client.responded = self._responded

    def ask(self, shard: int, asked: Asked, payload: torch.Tensor | None = None) -> Token:
        """Ask a shard; returns what to wait for."""
        if self._open[shard] >= MOST_OPEN:
            self._client.port.wait(
                lambda: self._open[shard] < MOST_OPEN, lambda: f"{self.shards[shard]} to answer about tables"
            )
        self._open[shard] += 1
        self._numbers[shard] += 1
        self.made += 1
        what = written(asked)
        self.sent_bytes += len(what) + (0 if payload is None else payload.nbytes)
        self._client.ask(shard, self._numbers[shard], what, payload)
        return shard, self._numbers[shard]

    def wait(self, tokens: Iterable[Token], whom: str) -> list[tuple[Done, dict[str, torch.Tensor]]]:
        """The answers to these, in order. `whom` it waits for."""
        wanted = list(tokens)
        self._client.port.wait(lambda: self.has(wanted), lambda: whom)
        found = [self._answers.pop(token) for token in wanted]
        return [(done, arrays) for done, arrays in found if isinstance(done, Done)]

    def has(self, tokens: Iterable[Token]) -> bool:
        """Whether all of these are answered."""
        return self._answers.keys() >= set(tokens)

    def wait_for_any(self, groups: Sequence[Sequence[Token]], whom: str) -> None:
        """Return when all of one of these groups are answered."""
        self._client.port.wait(lambda: any(map(self.has, groups)), lambda: whom)

    def numbers(self, token: Token) -> tuple[tuple[float, ...], torch.Tensor | None]:
        """The answer to a request about vectors, which has come."""
        answer, arrays = self._answers.pop(token)
        return answer.numbers if isinstance(answer, Answer) else (), arrays.get("values")

    def _responded(self, item: Responded) -> None:
        self._open[item.shard] -= 1
        self._answers[item.shard, item.number] = read_answer(item.what), unpacked(item.payload)


class Pulled:
    """Rows that were asked for with `wait=False`."""

    def __init__(
        self, table: Table, tokens: list[Token], parts: list[_Part], inverse: Any, shape: Any
    ) -> None:
        self._table, self._tokens, self._parts = table, tokens, parts
        self._inverse, self._shape = inverse, shape
        self._result: torch.Tensor | None = None

    def result(self) -> torch.Tensor:
        """The rows, when they are there; see `Table.pull`."""
        if self._result is None:
            self._result = self._table.pulled(self._tokens, self._parts, self._inverse, self._shape)
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
        self._ring = Ring(requests.shards)
        self._cuts: OrderedDict[bytes, list[_Part]] = OrderedDict()
        self._lists = [SentLists() for _ in requests.shards]
        self._under_way: deque[list[Token]] = deque()
        tokens = [requests.ask(shard, opened) for shard in range(len(requests.shards))]
        whom = f"every worker to open the table {self.name!r}"
        clocks = [done.clock for done, _ in requests.wait(tokens, whom)]
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
        parts = self._cut(unique)
        largest = max((self._form.size_bytes(len(part.keys) * self.columns) for part in parts), default=0)
        if largest > MOST_BYTES:
            raise Unsupported(
                f"{self.name}.pull: {largest} bytes from one global server; at most {MOST_BYTES}: pull fewer rows at "
                "once"
            )
        tokens = []
        for part in parts:
            payload = self._keys_of(part)
            asked = Pull(self.name, self.clock, part.digest, self._form_name)
            tokens.append(self._requests.ask(part.shard, asked, packed(**payload)))
        pulled = Pulled(self, tokens, parts, inverse, shape)
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
        given = torch.as_tensor(gradients).detach().to("cpu", torch.float32)
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
        self._send(unique, given)

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
                self._send(unique, rows, counts=False)
        while self._under_way:
            self._settle()

    def sync(self) -> None:
        """Return when every push of this worker's group is applied; all of the group must call it.

        With `staleness=0`, workers that have pushed more often than others wait with that for nobody any more.
        """
        self.flush()
        tokens = [self._requests.ask(shard, Sync(self.name)) for shard in range(len(self._requests.shards))]
        whom = f"the others of its group to call sync() of the table {self.name!r}"
        self.clock = max(done.clock for done, _ in self._requests.wait(tokens, whom))

    def put(self, keys: Any, rows: Any) -> None:
        """Give rows these values, as out of a file; what their rule keeps of them begins anew.

        Args:
            keys: As of `pull`, each once.
            rows: Of the shape of the keys and `columns`.

        Raises:
            Unsupported: Keys that are none or repeat, or rows of another shape.
        """
        flat, shape = self._flat(keys)
        given = torch.as_tensor(rows).detach().to("cpu", torch.float32)
        order = np.argsort(flat, kind="stable")
        if given.shape != (*shape, self.columns) or len(np.unique(flat)) != len(flat):
            raise Unsupported(
                f"{self.name}.put: {len(flat)} keys, each once, and rows of shape {[*shape, self.columns]}; found "
                f"{list(given.shape)}"
            )
        sorted_rows = given.reshape(-1, self.columns)[torch.from_numpy(order)]
        tokens = []
        for part in self._cut(flat[order]):
            payload = packed(**coded(part.keys, self.rows), rows=sorted_rows[torch.from_numpy(part.at)])
            tokens.append(self._requests.ask(part.shard, Put(self.name), payload))
        self._requests.wait(tokens, self._servers)

    @property
    def _servers(self) -> str:
        return f"{', '.join(self._requests.shards)} to answer about the table {self.name!r}"

    def items(self) -> Iterator[tuple[npt.NDArray[np.int64], torch.Tensor]]:
        """All rows that somebody has updated, as they are when they are read.

        Yields:
            Keys of shape (some,), and their rows of shape (some, columns), shard by shard.
        """
        for shard in range(len(self._requests.shards)):
            start = 0
            while True:
                count = max(1, min(SCANNED, MOST_BYTES // (8 + 4 * self.columns)))
                token = self._requests.ask(shard, Scan(self.name, start, count))
                ((_, arrays),) = self._requests.wait([token], self._servers)
                keys = arrays["keys"].numpy()
                if not len(keys):
                    break
                yield keys, arrays["rows"]
                start += len(keys)

    def pushes(self) -> list[dict[str, int]]:
        """By shard: how many pushes of each worker it has taken."""
        tokens = [
            self._requests.ask(shard, Scan(self.name, 0, 1)) for shard in range(len(self._requests.shards))
        ]
        return [dict(done.clocks) for done, _ in self._requests.wait(tokens, self._servers)]

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
        """Different keys, that rise, by shard."""
        digest = digest_of(keys)
        parts = self._cuts.get(digest)
        if parts is None:
            shards = self._ring.shards_of(keys)
            parts = []
            for shard in range(len(self._requests.shards)):
                at = np.flatnonzero(shards == shard)
                if len(at):
                    own = keys[at]
                    parts.append(_Part(shard, own, at, digest_of(own)))
            self._cuts[digest] = parts
            if len(self._cuts) > MOST_CUTS:
                self._cuts.popitem(last=False)
        return parts

    def _keys_of(self, part: _Part) -> dict[str, torch.Tensor]:
        """What goes with a request that names these keys."""
        is_new = self._lists[part.shard].name(part.digest)
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

    def _send(self, keys: Keys, rows: torch.Tensor, counts: bool = True) -> None:
        """Every shard hears of every push, since its clocks go by them. `counts`: it is one of this worker's steps."""
        parts, packs = {part.shard: part for part in self._cut(keys)}, dict[int, torch.Tensor]()
        for shard, part in parts.items():
            own = rows if len(part.keys) == len(keys) else rows[torch.from_numpy(part.at)]
            packs[shard] = self._form.pack(own.reshape(-1))
            if packs[shard].nbytes > MOST_BYTES:
                raise Unsupported(
                    f"{self.name}.push: {packs[shard].nbytes} bytes for {self._requests.shards[shard]}; at most "
                    f"{MOST_BYTES}: push fewer rows at once"
                )
        tokens = []
        for shard in range(len(self._requests.shards)):
            part = parts.get(shard) or _Part(shard, NO_KEYS, NO_KEYS, digest_of(NO_KEYS))
            arrays = self._keys_of(part) | ({"rows": packs[shard]} if shard in packs else {})
            clock = self.clock if counts else OF_NO_CLOCK
            asked = Push(self.name, clock, part.digest, self._form_name)
            tokens.append(self._requests.ask(shard, asked, packed(**arrays)))
        self.clock += counts
        self._under_way.append(tokens)
        if len(self._under_way) > MOST_PUSHES:
            self._settle()

    def _settle(self) -> None:
        self._learn(done for done, _ in self._requests.wait(self._under_way.popleft(), self._servers))

    def pulled(self, tokens: list[Token], parts: list[_Part], inverse: Any, shape: Any) -> torch.Tensor:
        """The rows that these answers bring."""
        bound = self._opened.staleness
        whom = (
            self._servers
            if bound is None
            else (
                f"the slowest of its group in the table {self.name!r}, ahead of whom it is {bound} pushes at most"
            )
        )
        answers = self._requests.wait(tokens, whom)
        found = torch.empty(sum(len(part.keys) for part in parts), self.columns)
        for part, (_, arrays) in zip(parts, answers, strict=True):
            own = self._form.unpack(arrays["rows"].reshape(-1), len(part.keys) * self.columns, torch.float32)
            found[torch.from_numpy(part.at)] = own.view(-1, self.columns)
        if answers:
            self.behind = max(done.clock - done.slowest for done, _ in answers)
        self._learn(done for done, _ in answers)
        if inverse is not None:
            found = found[torch.from_numpy(inverse)]
        return found.view(*shape, self.columns)

    def _learn(self, answers: Iterable[Done]) -> None:
        """Where the run has gone on without this worker, so does its clock."""
        if self._requests.goes_on:
            self.clock = max([self.clock, *(done.clock for done in answers)])


def opened(
    name: str, rows: int, columns: int, init: str, rule: str, staleness: int | None, group: str
) -> Open:
    """What is asked for, checked. Raises `Unsupported`."""
    faults = []
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


def _unique(keys: Keys) -> tuple[Keys, npt.NDArray[np.int64] | None]:
    """Different keys that rise, and where each of those given is among them; None: they were so already."""
    if len(keys) < 2 or bool((np.diff(keys) > 0).all()):
        return keys, None
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique, inverse.reshape(-1)
