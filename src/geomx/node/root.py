"""The top of the tree: what an aggregate does to the weights.

    gradient   m = Σ w·x / Σ w;  weights ← optimizer(weights, m);  the answer is the weights
               (where the workers own the optimizer the answer is m; a ledger slice adds the sum;
               where gradients are rows, the answer has those rows)
    call       arrays of a script's own, combined;  the answer is that
    mean       weights ← Σ w·x / Σ w;  the answer is the weights
    assign     weights ← the value of the lowest origin, with its optimizer state;  the answer is the weights

A gradient is of a cohort, and so is the answer. Where cohorts do not wait for each other, the gradients of each are
applied as they come, one after the other.

Sums run in the order of the lowest origin: the same contributions give the same bits, in whatever order they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from geomx.codecs.rows import taken
from geomx.errors import ProtocolError, Unsupported
from geomx.layout import Layout, Part, Slice
from geomx.node.durable.journal import Journal
from geomx.node.durable.records import Record
from geomx.node.durable.state import Packed, RootSlice
from geomx.node.members.reception import Reception
from geomx.node.members.top import Top
from geomx.node.slices.clipping import Clipping
from geomx.node.slices.finite import (
    AllSkipped,
    Sum,
    annotated,
    copied_if_finite,
    is_watched,
    skipped,
    tried,
    when,
)
from geomx.node.slices.models import models_of
from geomx.node.slices.payloads import has_values
from geomx.node.slices.slice_jobs import SliceJobs
from geomx.node.slices.slice_state import (
    WEIGHTS,
    Planes,
    answer_state,
    copied,
    optimizers,
    under,
    unpack_state,
    unpack_weights,
    within,
)
from geomx.node.slices.update_stream import UpdateEncoder, codec_for
from geomx.optim.clip import square_sum
from geomx.optim.contract import Compensation, RootOptimizer, SliceState
from geomx.rounds.membership import Members
from geomx.rounds.round import Round
from geomx.wire.messages import Fetch, Hyper, Hyperparameters, Scale, State, Update, Value
from geomx.wire.roster_messages import Complete, Roster

HYPERS_KEPT = 8192
OptimizerFactory = Callable[[str], RootOptimizer]


class RootHost(Protocol):
    """The server around the root."""

    members: Members

    @property
    def name(self) -> str: ...
    @property
    def reception(self) -> Reception: ...
    def answer(self, update: Update, payload: Any, staleness: int = 0) -> None: ...
    def run_job(
        self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int, waits: bool = False
    ) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...
    def decoders(self, slice_: Slice, round_: Round) -> list[Callable[[], torch.Tensor]]: ...
    @property
    def down(self) -> UpdateEncoder: ...
    @property
    def journal(self) -> Journal: ...


class Root:
    """See the module's text. It holds the slices of one shard.

    `make_above(root)`: what stands where others have parents. `skips`: see `geomx.node.slices.finite`.
    """

    is_top = True

    def __init__(
        self,
        server: RootHost,
        shard: int,
        shards: int,
        optimizers: OptimizerFactory,
        clipping: Clipping,
        make_above: Callable[[Root], Top],
        lockstep: bool,
        compensation: Compensation | None = None,
        skips: bool = False,
    ) -> None:
        self._server = server
        self.above = make_above(self)
        self.companion = self.above.row_servers
        self._shard, self._shards = shard, shards
        self._make_optimizer = optimizers
        self._clipping = clipping
        self._lockstep = lockstep  # see `Policy.lockstep`
        self._optimizers_of: dict[int, RootOptimizer] = {}  # by trained slice; empty: they are the workers'
        self._weights: dict[int, torch.Tensor] = {}
        self._hypers: dict[bytes, Hyperparameters] = {}
        self._parked: dict[bytes, list[tuple[Slice, Round]]] = {}
        self._under_way: dict[tuple[int, str, int], Round] = {}  # that have closed, before their slices' jobs
        self._layout: Layout | None = None
        self._compensation = compensation
        self._skips = skips
        self._all_skipped = AllSkipped(server.name, skips)
        self._slice_jobs = SliceJobs(server)
        self._versions: dict[int, int] = {}  # how often a slice has been updated
        self._seen: dict[int, dict[str, int]] = {}  # by slice and cohort: the version that it was sent last

    # -- what the server tells it -----------------------------------------------------------------------------

    def attach(self, layout: Layout, settings: dict[str, Value]) -> None:
        """The model is known: make its optimizer."""
        self._layout = layout
        self.above.whole.begin(layout.shards(self._shards))
        self._server.down.remembers = self._compensation is not None
        held = frozenset(slice_.index for slice_ in self.holds(layout))
        for model in models_of(layout, settings):
            if model.rule:
                self._optimizers_of |= dict.fromkeys(model.trained, self._make_optimizer(model.rule))
            if model.clip_norm:
                self._clipping.start(model.clip_norm, held & model.trained, model.trained)
        self._server.reception.open()

    @property
    def state(self) -> Root:
        """See `RoundSink`."""
        return self

    def holds(self, layout: Layout) -> list[Slice]:
        """The slices that live on this shard."""
        table = layout.shards(self._shards)
        return [slice_ for slice_ in layout.slices if table[slice_.index] == self._shard]

    def parts(self) -> Iterator[tuple[str, Part, torch.Tensor]]:
        """The weights that this shard holds, as they are now: a tensor's name, which part of it, its values."""
        for index, weights in self._weights.items():
            assert self._layout is not None  # weights come behind the model
            for part in self._layout.slices[index].parts:
                name = self._layout.tensors[part.tensor].name
                yield name, part, weights[part.offset : part.offset + part.elements]

    def hyper(self, digest: bytes, values: Hyperparameters) -> None:
        self._hypers.pop(digest, None)  # what is said again is in use: it becomes the newest
        self._hypers[digest] = values
        if len(self._hypers) > HYPERS_KEPT:
            del self._hypers[next(iter(self._hypers))]
        for slice_, round_ in self._parked.pop(digest, ()):
            self.closed(slice_, round_)

    def closed(self, slice_: Slice, round_: Round) -> None:
        """A round has all its contributions: apply and answer it."""
        self._under_way[slice_.index, round_.cohort, round_.turn] = round_
        carrying = any(has_values(push, slice_) for push, _ in round_.in_order())
        self._all_skipped.closed(slice_, round_, carrying)
        if not carrying or not round_.weight:
            self._clipping.nothing(slice_.index, round_)
        if round_.kind == "assign":
            self._assign(slice_, round_)
        elif not carrying and round_.weight and not self._lockstep and slice_.index in self._weights:
            self._finish(slice_, round_, lambda: self._weights[slice_.index], snapshot=True, applies=False)
        elif not carrying or not round_.weight:
            self._answer_nothing(slice_, round_)
        elif round_.kind in ("mean", "call"):
            self._mean(slice_, round_)
        elif slice_.index not in self._optimizers_of and slice_.role != "ledger":
            self._pass_on(slice_, round_)
        elif slice_.index not in self._weights:
            raise ProtocolError(f"slice {slice_.index} has no weights yet that a gradient could change")
        elif slice_.role == "ledger":
            self._ledger(slice_, round_)
        elif not round_.hyper:
            raise ProtocolError(f"slice {slice_.index} was pushed without hyper-parameters")
        elif round_.hyper not in self._hypers:
            self._parked.setdefault(round_.hyper, []).append((slice_, round_))
        elif self._clipping.wants(slice_.index, round_):
            self._measure(slice_, round_)
        else:
            self._optimize(slice_, round_, self._sum(slice_, round_, divide=True), 1.0)

    def agrees(self, turn: Complete) -> bool:
        return self.above.whole.agrees(turn)

    def begin_anew(self) -> None:
        """Nobody is above."""

    def forget(self) -> None:
        """Nobody is above."""

    def renewed(self, name: str) -> None:
        self.above.renewed(name)

    def replay(self, record: Record) -> None:
        """What is not of one slice."""
        if isinstance(record, Hyper):
            self._server.journal.hyper(record)
            self.hyper(record.digest, record.values)
        elif isinstance(record, Scale):
            self._clipping.message(record)
        elif isinstance(record, Roster):
            self.above.replay(record)

    # -- its whole state, see `geomx.node.durable.cut` ----------------------------------------------------------

    def told(self) -> list[Hyper | Scale]:
        """What was told of no slice, and may be needed."""
        hypers = [Hyper(digest, values) for digest, values in self._hypers.items()]
        return [*hypers, *self._clipping.known()]

    def waiting(self) -> list[tuple[int, Round]]:
        """Rounds that have closed and wait for what others tell, where no jobs are under way."""
        return [(index, round_) for (index, _, _), round_ in self._under_way.items()]

    def take(
        self, slice_: Slice, pack: Callable[[RootSlice], Packed], then: Callable[[Packed], None]
    ) -> None:
        """Have a slice packed, as it stands behind the rounds that have closed and do not wait."""
        index = slice_.index
        weights, optimizer = self._weights.get(index), self._optimizers_of.get(index)
        compensation = self._compensation
        version, seen = self._versions.get(index, 0), dict(self._seen.get(index, {}))

        def work() -> Packed:
            has_state = optimizer is not None and weights is not None
            state = optimizer.export(index) if optimizer is not None and has_state else SliceState()
            kept = compensation.export(index) if compensation is not None else {}
            return pack(RootSlice(None if weights is None else weights.clone(), state, kept, version, seen))

        self._slice_jobs.run(index, work, then, 4 * slice_.size_bytes)

    def put_back(self, slice_: Slice, kept: RootSlice) -> None:
        """The inverse of `take`."""
        index = slice_.index
        if kept.weights is not None:
            self._weights[index] = kept.weights.clone()
            if (optimizer := self._optimizers_of.get(index)) is not None:
                optimizer.adopt(slice_, self._weights[index])
                if kept.state.planes or kept.state.scalars:
                    optimizer.restore(index, kept.state)
        if self._compensation is not None:
            self._compensation.restore(index, kept.compensation)
        self._versions[index], self._seen[index] = kept.version, kept.seen

    def hand_over(self) -> None:
        """Nobody goes on without a shard."""

    def fetch(self, fetch: Fetch, reply: Callable[[State, Any], None]) -> None:
        """What belongs in a checkpoint, as it is now. Raises `ProtocolError` for what only somebody below has."""
        assert self._layout is not None
        slice_, optimizer = self._layout.slices[fetch.slice], self._optimizers_of.get(fetch.slice)
        if fetch.of in ("root", "exact"):
            answer_state(
                self._slice_jobs,
                slice_,
                fetch.token,
                lambda: SliceState(copied(under("root/", self._kept(slice_, fetch.of == "exact")))),
                reply,
            )
        elif fetch.of == "server":
            raise ProtocolError(
                f"{fetch.server} is asked for what it keeps, and is not between here and the asker"
            )
        elif optimizer is None:
            raise Unsupported("the workers own the optimizer: its state is theirs, not the global server's")
        elif slice_.index not in self._weights:
            raise ProtocolError(f"slice {slice_.index} has no optimizer state to be fetched")
        else:

            def found() -> SliceState:
                state = optimizer.export(slice_.index)
                if fetch.of == "weights":
                    state.planes |= copied({WEIGHTS: self._weights[slice_.index]})
                return state

            answer_state(self._slice_jobs, slice_, fetch.token, found, reply)

    def _kept(self, slice_: Slice, exact: bool) -> Planes:
        """What a checkpoint keeps of the upper ends of the edges, and of weights that no receiver has exactly."""
        kept = under("down.", self._server.down.kept(slice_))
        rounds = exact or self._server.down.deltas or slice_.stored
        if rounds and self._lockstep and slice_.index in self._weights:
            kept["weights"] = self._weights[slice_.index]
        return kept

    # -- the kinds of adding --------------------------------------------------------------------------------------

    def _sum(self, slice_: Slice, round_: Round, divide: bool) -> Callable[[], torch.Tensor]:
        assert self._layout is not None  # rounds come behind the model
        decoders, weight = self._server.decoders(slice_, round_), round_.weight
        total = Sum(self._server.name, self._layout, slice_, round_, decoders)

        def work() -> torch.Tensor:
            values = total.of()
            assert values is not None  # a round with values has a contribution with values
            return values.div_(weight) if divide else values

        return work

    def _skip(self, slice_: Slice, round_: Round, fault: str) -> None:
        """Answer as if nobody had contributed."""
        self._server.note("skipped", "warning", **skipped(round_.step, round_.turn, "1 slice", fault))
        self._answer_nothing(slice_, round_, weight=0.0)

    def _optimize(self, slice_: Slice, round_: Round, mean: Callable[[], torch.Tensor], scale: float) -> None:
        optimizer, weights = self._optimizers_of[slice_.index], self._weights[slice_.index]
        hyper, present = self._hypers[round_.hyper], round_.present

        def work() -> torch.Tensor:
            gradient = mean()
            if scale < 1.0:
                gradient.mul_(scale)
            if self._compensation is not None:
                received = self._server.down.anchor(slice_, round_.cohort)
                assert received is not None  # weights come before gradients
                self._compensation.correct(slice_.index, gradient, weights, received)
            optimizer.apply(slice_.index, gradient, present, hyper)
            return taken(slice_, weights, gradient) if gradient.is_sparse else weights

        self._finish(slice_, round_, work, snapshot=True)

    def _measure(self, slice_: Slice, round_: Round) -> None:
        """With `clip_norm`, no slice is applied before the norm over all slices of all shards is known."""
        make = self._sum(slice_, round_, divide=True)

        def work() -> tuple[torch.Tensor | None, float, str]:
            mean, fault = tried(make, self._skips)
            return mean, 0.0 if mean is None else square_sum(mean), fault

        def done(result: tuple[torch.Tensor | None, float, str]) -> None:
            mean, square, fault = result

            def resume(scale: float) -> None:
                if mean is None:
                    self._skip(slice_, round_, fault)
                else:
                    self._optimize(slice_, round_, lambda: mean, scale)

            self._clipping.square(slice_.index, round_, square, resume)

        self._server.run_job(work, done, (len(round_.contributions) + 2) * slice_.size_bytes)

    def _pass_on(self, slice_: Slice, round_: Round) -> None:
        self._finish(slice_, round_, self._sum(slice_, round_, divide=True), snapshot=False)

    def _mean(self, slice_: Slice, round_: Round) -> None:
        """Of a collective call, what its bundles make together."""
        is_call = round_.kind == "call"
        if not (is_call or slice_.dtype.startswith("float")):
            raise ProtocolError(f"slice {slice_.index} is {slice_.dtype}: it has no mean")
        self._finish(slice_, round_, self._sum(slice_, round_, divide=not is_call), snapshot=False)

    def _ledger(self, slice_: Slice, round_: Round) -> None:
        make, weights = self._sum(slice_, round_, divide=False), self._weights[slice_.index]
        self._finish(slice_, round_, lambda: weights.add_(make()), snapshot=True)

    def _assign(self, slice_: Slice, round_: Round) -> None:
        chosen = next(((push, p) for push, p in round_.in_order() if p is not None), None)
        optimizer = self._optimizers_of.get(slice_.index)
        changes = optimizer is not None or slice_.role == "ledger"
        if chosen is None or not (changes or has_values(chosen[0], slice_)):
            self._answer_nothing(slice_, round_)
            return
        push, payload = chosen
        state = unpack_state(slice_, push, payload)
        kept, own = within("root/", state.planes), SliceState(optimizers(state.planes), state.scalars)

        def work() -> torch.Tensor:
            if not changes:
                return unpack_weights(slice_, payload)  # nobody here needs it again
            if has_values(push, slice_):
                exact = kept.get("weights", unpack_weights(slice_, payload))
                self._weights[slice_.index] = exact.clone()
                if optimizer is not None:
                    optimizer.adopt(slice_, self._weights[slice_.index])
            if optimizer is not None and (own.planes or own.scalars):
                optimizer.restore(slice_.index, own)
            if self._compensation is not None:
                self._compensation.begin(slice_.index)
            return unpack_weights(slice_, payload) if "weights" in kept else self._weights[slice_.index]

        self._finish(slice_, round_, work, snapshot=changes, kept=kept)

    def _answer_nothing(self, slice_: Slice, round_: Round, weight: float | None = None) -> None:
        update = self._update(slice_, round_, weight)
        self._under_way.pop((slice_.index, round_.cohort, round_.turn), None)
        self._slice_jobs.after(slice_.index, lambda: self._server.answer(update, None))

    def _finish(
        self,
        slice_: Slice,
        round_: Round,
        work: Callable[[], torch.Tensor],
        snapshot: bool,
        kept: Planes | None = None,
        applies: bool = True,
    ) -> None:
        """Run `work`, encode its result and answer. `snapshot`: the result will change again in place.

        `kept`: of an `assign`, what a checkpoint kept of the edges below. `applies`: whether `work` changes the slice.
        """
        self._under_way.pop((slice_.index, round_.cohort, round_.turn), None)
        down = self._server.down
        checked = is_watched(slice_) and round_.kind == "gradient"

        def encoded() -> tuple[torch.Tensor, int] | str:
            values, fault = tried(work, self._skips)
            if values is None:
                return fault
            staleness = self._aged(slice_.index, round_, applies)
            whose = f"{self._server.name} cannot send {'the new values' if snapshot else 'the mean'} of"
            with annotated(self._layout, slice_, values, whose, when(round_.step, round_.turn)):
                if snapshot and codec_for(slice_, round_.kind, down.codec).lossless:  # the payload is a view
                    values = copied_if_finite(slice_, values) if checked else values.clone()
                packed = down.pack(slice_, round_.kind, round_.turn, values, round_.cohort)
            if kept is not None:
                anchor = {"anchor": kept["anchor"]} if "anchor" in kept else {}
                down.restore(slice_, within("down.", kept) | anchor)
            return packed, staleness

        def done(result: tuple[torch.Tensor, int] | str) -> None:
            if isinstance(result, str):
                self._skip(slice_, round_, result)
            else:
                self._server.answer(self._update(slice_, round_), *result)

        cost_bytes = (len(round_.contributions) + 4) * slice_.size_bytes + down.codec.cost_bytes(slice_)
        cost_bytes += 3 * round_.call_bytes
        self._slice_jobs.run(slice_.index, encoded, done, cost_bytes)

    def _aged(self, index: int, round_: Round, applies: bool) -> int:
        """How many updates of others a contribution has missed; its cohort has seen all from now on."""
        if round_.kind != "gradient":
            self._versions[index], self._seen[index] = 0, {}
            return 0
        seen = self._seen.setdefault(index, {})
        staleness = self._versions.get(index, 0) - seen.get(round_.cohort, 0)
        self._versions[index] = seen[round_.cohort] = self._versions.get(index, 0) + applies
        return staleness

    def _update(self, slice_: Slice, round_: Round, weight: float | None = None) -> Update:
        present, weight = round_.present, round_.weight if weight is None else weight
        return Update(
            round_.turn,
            slice_.index,
            round_.kind,
            weight,
            present,
            round_.reading,
            round_.cohort,
            step=round_.step,
            missed=self._server.members.tree.bitmap_of(round_.missed) if round_.missed else b"",
        )
