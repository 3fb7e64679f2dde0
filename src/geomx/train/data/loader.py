"""`run.shard(loader)`: this worker's share of a data set, counted, and with its end known one batch ahead.

A DataLoader over a map-style data set is built anew with every n-th index of its sampler, beginning with this worker's
place; where the sampler draws by chance, it does so from the run's seed and the epoch, so that every worker cuts the
same order. With a batch sampler of one's own it is every n-th batch of indices. From any other iterable this worker
takes every n-th batch, and drops the others.

Shares may differ in length. A worker at the end of its own takes part in further turns with weight 0 until all have
come to theirs: otherwise the others would wait for it for ever. Where forward and backward are collective calls (DDP,
FSDP) shares are even: what does not make one for each worker is left out.

Where workers are lost for good, the next pass is shared among those who take part when it begins. Whoever comes back
amid a pass that was shared without it reads what another does as well, so that all have as many batches.

A pass that goes on where another process was (see `progress.py`) leaves out what that has used: by index where the
sampler can be seen, else by reading it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, SequentialSampler

from geomx.errors import Unsupported
from geomx.train.data.first_samples import FirstSamples
from geomx.train.data.progress import Pass, Progress
from geomx.tree import Tree

_END = object()
Element = TypeVar("Element")
_KEPT = (
    "dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "generator", "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


class ShareSampler(Sampler[Any]):
    """Elements `place`, `place + places`, ... of what `whole` draws in an epoch.

    `of_batch`: how many of them make a batch. `skipped`: so many batches are left out at the beginning.
    """

    def __init__(self, whole: Iterable[Any], place: int, places: int, seed: int, of_batch: int = 1) -> None:
        self._whole = whole
        self.place, self.places, self._seed = place, places, seed
        self._of_batch = of_batch
        self.epoch = self.skipped = 0
        self.even = False

    def __iter__(self) -> Iterator[Any]:
        share = every_nth(self._drawn(), self.place, self.places, self.even)
        return itertools.islice(share, self.skipped * self._of_batch, None)

    def __len__(self) -> int:
        return share_length(self._whole, self.place, self.places, self.even)

    def _drawn(self) -> Iterator[Any]:
        """The whole epoch, the same on every worker."""
        seed = (self._seed * 1_000_003 + self.epoch) % (1 << 63)
        whole = self._whole
        if isinstance(whole, RandomSampler):
            generator = torch.Generator().manual_seed(seed)
            return iter(RandomSampler(whole.data_source, whole.replacement, whole._num_samples, generator))
        if isinstance(whole, SequentialSampler) or not isinstance(whole, Sized):
            return iter(whole)
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)
            return iter(list(whole))


class Share(Iterable[Any]):
    """What `run.shard` returns: this worker's batches. Each iteration over it is one pass; see `LiveRun.shard`."""

    def __init__(
        self,
        batches: Iterable[Any],
        sampler: ShareSampler | None,
        *,
        of: Callable[[bytes], tuple[int, int]],
        progress: Progress,
        train: bool | None,
        is_of_party: bool = False,
        even: bool = False,
    ) -> None:
        self._batches = batches
        self._is_of_party, self._wants_even = is_of_party, even
        self._of = of  # this worker's place, and how many there are, where some are absent
        self._sampler = sampler
        self._progress = progress
        self._train = train
        self.begun_behind = 0  # how many batches the pass that is under way has left out

    @property
    def batches(self) -> Iterable[Any]:
        """What it is a share of: a `DataLoader` that draws this worker's part, or the iterable that was given."""
        return self._batches

    @property
    def _even(self) -> bool:
        return self._wants_even or self._progress.even

    def __len__(self) -> int:
        """The number of this worker's batches in a pass; raises `TypeError` if the loader has no length."""
        place, places = self._of(self._progress.absent)
        if self._sampler is None:
            return share_length(self._batches, place, places, self._even)
        self._sampler.place, self._sampler.places, self._sampler.even = place, places, self._even
        assert isinstance(self._batches, Sized)
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        this = self._progress.begin(self._train)
        self.begun_behind = this.handed
        batches = self._from(this)
        if not this.trains:
            yield from batches
            return
        try:
            first, batch = self._first_samples(this), next(batches, _END)
            while batch is not _END and not self._progress.is_over():
                for _ in range(self._progress.skipped(this)):
                    batch = next(batches, _END)
                if batch is _END:
                    break
                following = next(batches, _END)
                if first is not None and (first.read(batch) or following is _END):
                    self._progress.begins_with(first.digests)
                    first = None
                self._progress.before_batch()
                self._progress.batch(this, samples_in(batch), last=following is _END)
                yield batch
                batch = following
            self._progress.end(this)
        finally:
            self._progress.leave(this)

    def _first_samples(self, this: Pass) -> FirstSamples | None:
        """What is to read the samples that this script begins with, where they are the party's own."""
        if not (self._is_of_party and this.is_first):
            return None
        of_batch = None  # of a stream, nobody knows what a batch holds
        if self._sampler is not None and isinstance(self._batches, DataLoader):
            of_batch = self._batches.batch_size
        return FirstSamples(of_batch, *self._of(b""))

    def _from(self, this: Pass) -> Iterator[Any]:
        """The batches of a pass that are left."""
        place, places = self._of(self._progress.absent)
        if self._sampler is None:
            share = every_nth(self._batches, place, places, self._even)
            return itertools.islice(share, this.handed, None)
        self._sampler.place, self._sampler.places = place, places
        self._sampler.epoch, self._sampler.even = this.epoch, self._even
        self._sampler.skipped = this.handed
        return iter(self._batches)


class Shares:
    """The shares of one worker.

    Each loader is rebuilt once, so that worker processes which persist do so from one epoch to the next.
    """

    def __init__(
        self, name: str, tree: Tree, seed: int, progress: Progress, party: tuple[str, ...] = ()
    ) -> None:
        self._name, self._tree, self._seed, self._progress = name, tree, seed, progress
        # The workers that share the data, for each `over` that `run.shard` takes.
        self._among = {"party": party or tree.party_members(name), "run": tree.workers}
        self._rebuilt: weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, ShareSampler]]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, loader: Iterable[Any], over: str, train: bool | None, even: bool = False) -> Share:
        """See `LiveRun.shard`."""
        if over not in self._among:
            raise Unsupported(
                f'run.shard(loader, over={over!r}): use "party" (each party has its own data) or "run" (all parties '
                "read the same data set)"
            )
        batches, sampler = self._split(loader, over)
        return Share(
            batches,
            sampler,
            of=partial(self._of, over),
            progress=self._progress,
            train=train,
            is_of_party=over == "party",
            even=even,
        )

    def _of(self, over: str, absent: bytes) -> tuple[int, int]:
        """This worker's place, and how many there are; whoever is absent itself shares that of another."""
        away = set(self._tree.workers_in(absent))
        workers = self._among[over]
        there = [name for name in workers if name not in away] or workers
        place = workers.index(self._name) if self._name not in there else there.index(self._name)
        return place % len(there), len(there)

    def _split(self, loader: Iterable[Any], over: str) -> tuple[Iterable[Any], ShareSampler | None]:
        known = self._rebuilt.get(loader, {}) if isinstance(loader, DataLoader) else {}
        if over in known:
            return known[over]
        batches, sampler = split(loader, *self._of(over, b""), self._seed)
        if sampler is not None:
            self._rebuilt.setdefault(loader, {})[over] = batches, sampler
        return batches, sampler


def split(
    loader: Iterable[Any], place: int, places: int, seed: int
) -> tuple[Iterable[Any], ShareSampler | None]:
    """The batches of a share, and the sampler to be told the epoch; None: every n-th batch is to be taken of them."""
    if not isinstance(loader, Iterable | Dataset) or (
        isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)
    ):
        raise Unsupported(
            f"run.shard() takes a torch.utils.data.DataLoader, or another iterable of batches; found a "
            f"{type(loader).__name__}"
        )
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return loader, None
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if getattr(loader, "pin_memory_device", ""):
        kept["pin_memory_device"] = loader.pin_memory_device
    if loader.batch_size is None and loader.batch_sampler is not None:
        batches = ShareSampler(loader.batch_sampler, place, places, seed)
        return DataLoader(**kept, batch_sampler=batches), batches
    share = ShareSampler(loader.sampler, place, places, seed, loader.batch_size or 1)
    return DataLoader(**kept, batch_size=loader.batch_size, sampler=share, drop_last=loader.drop_last), share


def every_nth(whole: Iterable[Element], place: int, places: int, even: bool) -> Iterator[Element]:
    """Those of `whole` that fall to this place; `even`: only as many as fall to each."""
    drawn = iter(whole)
    if not even:
        return itertools.islice(drawn, place, None, places)
    rows = iter(lambda: tuple(itertools.islice(drawn, places)), ())
    return (row[place] for row in rows if len(row) == places)


def share_length(whole: Any, place: int, places: int, even: bool) -> int:
    """How many of `whole` fall to this place; raises TypeError where `whole` has no length, as `len` does."""
    return len(whole) // places if even else len(range(place, len(whole), places))


def samples_in(batch: Any) -> int | None:
    """The first dimension of the first tensor (or array) in a nested batch, else a sequence's length, else None."""
    first = _first_extent(batch)
    if first is None and isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return len(batch)
    return first


def _first_extent(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return int(shape[0])
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, tuple | list):
        inner = value
    return next((extent for extent in map(_first_extent, inner) if extent is not None), None)
