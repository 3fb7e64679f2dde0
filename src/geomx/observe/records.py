"""What nodes tell about themselves: records, one JSON object a line, one file a node.

    {"t": 12.5, "node": "A", "name": "joined", "level": "info", "fields": {"peer": "A/0"}}

`t` is `time.monotonic()` in seconds, which all processes of one machine share; a process's first record, `clock`, says
what Unix time it was then, for nodes on several machines, and on which it runs. A note's own fields stand apart, so
that a note about another node (`failed` has a field `node`) cannot be taken for one of that node. Numbers that JSON
lacks (nan, infinities) are written as null.

Observing must never stop a run: when its file can no longer be written, a recorder says so once and goes on without.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from geomx.errors import RecordsUnreadable
from geomx.observe.sentences import sentence

FLUSH_S = 0.05
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
NOT_LOGGED = frozenset({"failed"})  # the node ends with an error that says the same
# `geomx run` shows how each party stands and who takes part, and has advice from who gave it first.
OF_MEMBERS = frozenset({"lost", "roster", "torn"})
NOT_LOGGED_WATCHED = NOT_LOGGED | OF_MEMBERS | {"first_weights", "waiting", "unreachable", "advised"}
CLOCK = "clock"
CHUNK = 1 << 16
CLOSE_S = 10.0

_logger = logging.getLogger("geomx")


class Record(msgspec.Struct, frozen=True):
    """One line of a record file."""

    t: float
    node: str
    name: str
    level: str
    fields: dict[str, Any]


def _plain(value: Any) -> Any:
    """What JSON can say of a value that it has no type for: NumPy's scalars and small tensors have `item()`."""
    return value.item() if hasattr(value, "item") else str(value)


def number(value: Any) -> float | None:
    """A value of a record, where it is a number: scripts may log text as well."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode = msgspec.json.Decoder(Record).decode


class Recorder:
    """Appends one node's records to a file, from any thread; without a path it only logs.

    `path`: the file, or a folder that is there, in which it gets the node's name.
    Records with level `info` or higher also go to the logger `geomx`, as a sentence. `trace`: keep the `span`
    records, of which there are many; they are dropped otherwise. `watched`: by `geomx run`. `progress`: makes a line of
    records, now and then. A record is in the file at most 0.1 s later, and all of them are once `close` has returned.
    """

    def __init__(
        self,
        path: Path | None,
        node: str,
        trace: bool = False,
        watched: bool = False,
        progress: Callable[[Record], str | None] | None = None,
    ) -> None:
        self.node = node
        self._progress = progress
        self.trace = trace
        self._not_logged = NOT_LOGGED_WATCHED if watched else NOT_LOGGED
        self._lines: deque[bytes] = deque()
        if path is not None and path.is_dir():
            path = RecordFiles(path).path_of(node)
        self._file = None if path is None else os.fdopen(_private(path), "a+b")
        self._writing = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="geomx records", daemon=True)
        if self._file is not None:
            _take_off_half_a_line(self._file)
            self._thread.start()
            self.record(CLOCK, unix_s=time.time(), host=socket.gethostname())

    def record(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        """Keep one record."""
        record = Record(time.monotonic(), self.node, name, level, fields)
        if self._file is not None and (self.trace or name != "span"):
            self._lines.append(_encode(record))
            if not self._wake.is_set():
                self._wake.set()
        if self._progress is not None and (line := self._progress(record)):
            _logger.info("%s", line)
        if level in LEVELS and name not in self._not_logged:
            _logger.log(LEVELS[level], "%s", sentence(name, fields))

    def close(self) -> None:
        """Write what is left, within 10 s. Records that come later are not kept."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self._write()
        with self._writing:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write_on(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(FLUSH_S)
            self._wake.clear()
            self._write()

    def _write(self) -> None:
        with self._writing:
            if self._file is None:
                return
            try:
                for _ in range(len(self._lines)):
                    self._file.write(self._lines.popleft() + b"\n")
                self._file.flush()
            except OSError as error:
                self._file = None
                _logger.warning("%s is no longer recorded: %s", self.node, error)


def _private(path: Path) -> int:
    """A script's last words are in its records, and may hold its arguments."""
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


def _take_off_half_a_line(file: BinaryIO) -> None:
    """What a process that was killed has left of its last record."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - CHUNK)
        file.seek(start)
        whole = file.read(end - start).rfind(b"\n") + 1
        if whole or not start:
            file.truncate(start + whole)
            return
        end = start


class RecordFiles:
    """Reads the record files of a folder as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_to: dict[Path, int] = {}
        self._offsets: dict[Path, float] = {}  # of each file's clock now, from Unix time
        self._rounds: dict[Path, set[tuple[str, int]]] = defaultdict(set)  # that a file has told of

    def path_of(self, node: str) -> Path:
        """Where a node's records are."""
        return self._folder / f"{node.replace('/', '.')}.jsonl"

    def new(self) -> list[Record]:
        """The records that have come since the last call, in the order of time."""
        found = [record for path in self._paths for record in self._new_in(path)]
        return sorted(found, key=lambda record: record.t)

    def of(self, node: str) -> list[Record]:
        """As `new`, of one node."""
        path = self.path_of(node)
        return list(self._new_in(path)) if path.exists() else []

    def in_unix_time(self) -> list[Record]:
        """As `new`, of files from machines with clocks of their own: `t`, and when spans start and stop, in Unix time.

        It is as exact as the machines' clocks agree. Raises RecordsUnreadable.
        """
        found = [record for path in self._paths for record in self._shifted(path)]
        return sorted(found, key=lambda record: record.t)

    def in_time_of_this_process(self) -> list[Record]:
        """As `in_unix_time`, on this machine's `time.monotonic()`."""
        behind = time.time() - time.monotonic()
        return [msgspec.structs.replace(record, t=record.t - behind) for record in self.in_unix_time()]

    @property
    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def _new_in(self, path: Path) -> Iterator[Record]:
        with path.open("rb") as file:
            file.seek(self._read_to.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    return  # half written: it is read whole next time
                at = self._read_to.get(path, 0)
                self._read_to[path] = at + len(line)
                try:
                    record = _decode(line)
                except msgspec.DecodeError as error:
                    raise RecordsUnreadable(f"{path}: no record at byte {at}: {error}") from error
                if not self._is_repeated(path, record):
                    yield record

    def _is_repeated(self, path: Path, record: Record) -> bool:
        """A shard that was started again tells all rounds of its log: those that it has told before as well."""
        if record.name != "round":
            return False
        rounds, key = self._rounds[path], (record.fields.get("cohort", ""), record.fields["turn"])
        is_repeated = key in rounds and record.fields.get("again", False)
        rounds.add(key)
        return bool(is_repeated)

    def _shifted(self, path: Path) -> Iterator[Record]:
        """One file's new records in Unix time. A process that was started again has told of its clock anew."""
        for record in self._new_in(path):
            if record.name == CLOCK:
                self._offsets[path] = record.fields["unix_s"] - record.t
            if (offset := self._offsets.get(path)) is None:
                raise RecordsUnreadable(
                    f"{path} does not begin with what time it was (`{CLOCK}`): is it whole?"
                )
            fields = record.fields
            if record.name == "span":
                fields = fields | {end: fields[end] + offset for end in ("start", "stop")}
            yield msgspec.structs.replace(record, t=record.t + offset, fields=fields)
