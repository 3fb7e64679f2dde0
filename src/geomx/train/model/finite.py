"""A worker looks at what it contributes before it leaves: NaN, Inf, and numbers that its codec has no room for.

`run.on_nonfinite = "stop"`: `NotFinite` is raised, and ends the run. "skip": the contribution counts nothing, neither
values nor weight, so that the mean over the others stays right; the step is noted. With `push_at = "step"` all of a
worker's contributions to that step count nothing, as where a GradScaler skips a step. The ledger counts the step in any
case: the worker has taken part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from geomx.codecs.contract import Room, room_of
from geomx.codecs.measure import largest, largest_of_each
from geomx.errors import NotFinite
from geomx.layout import Layout, Slice
from geomx.node.port import Port
from geomx.node.slices.devices import Check, Later, queues
from geomx.node.slices.finite import LOOK, SKIP, found_in, is_watched, listed, remedy, skipped, when
from geomx.train.model.model_slices import Gathered, is_statistic, real
from geomx.train.settings import Settings

GRADIENT = "the gradient of"
Source = Callable[[int], torch.Tensor | None]
At = tuple[int, int]  # step (in the policy's count) and turn


def counted(count: int, what: str) -> str:
    """`1 slice`, `2 slices`."""
    return f"{count} {what}{'s' if count > 1 else ''}"


def _by_device(gradients: Mapping[int, torch.Tensor]) -> list[tuple[list[int], list[torch.Tensor]]]:
    """Gradients (by parameter) that lie together."""
    found: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}
    for number, gradient in gradients.items():
        numbers, values = found.setdefault(gradient.device, ([], []))
        numbers.append(number)
        values.append(real(gradient.detach()))
    return list(found.values())


class FiniteOnly:
    """See the module's text. `port` hears what was skipped; `name`: this worker."""

    def __init__(self, port: Port, name: str, layout: Layout, settings: Settings) -> None:
        self.skips = settings.on_nonfinite == "skip"
        self.skips_steps = self.skips and settings.push_at == "step"
        self._port, self._name, self._layout = port, name, layout
        self._room = settings.room
        self._at: At = -1, -1
        self._unread: list[tuple[At, list[int], Later]] = []  # the largest of gradients, of the step before
        self._skipped: dict[
            int | str, str
        ] = {}  # by slice, or of local steps by parameter: why, in this step
        self._whole = self.skips_steps  # whether this step is skipped as a whole
        self._steps = 0  # so far, in which something was skipped

    def begin(self, step: int, turn: int) -> None:
        """A step begins, number `step` in the policy's count."""
        self._at = step, turn

    def end(self) -> None:
        """It is complete: note what was skipped. The log has the first such step, the second, the fourth, ..."""
        if not self._skipped:
            return
        self._steps += 1
        level = "warning" if self._steps & (self._steps - 1) == 0 else "debug"
        why = next(iter(self._skipped.values()))
        of_slices = isinstance(next(iter(self._skipped)), int)
        part = "all" if self._whole else counted(len(self._skipped), "slice" if of_slices else "gradient")
        self._port.note("skipped", level, **skipped(*self._at, part, why))
        self._skipped, self._whole = {}, self.skips_steps

    def allows(
        self, slice_: Slice, made: Gathered, weight: float, what: str = GRADIENT, source: Source | None = None
    ) -> bool:
        """Whether a contribution may leave; False: it is to count nothing. Raises NotFinite where the run stops.

        `made`: w·x; `weight`: w; `what`: x is of each tensor, and `source` has it where that is known.
        """
        fault = self._fault(slice_, made, weight, what, source, self._at)
        return not fault or self._refuse(slice_.index, fault)

    def later(self, slice_: Slice, weight: float, what: str = GRADIENT) -> Check:
        """The same for a job, which looks at what a device has made by then: it raises NotFinite."""
        at = self._at

        def check(values: torch.Tensor) -> None:
            fault = self._fault(slice_, Gathered(values, None, largest(values)), weight, what, None, at)
            if fault:
                raise NotFinite(f"{self._name}: {fault}")

        return check

    def _fault(
        self, slice_: Slice, made: Gathered, weight: float, what: str, source: Source | None, at: At
    ) -> str:
        """Why a contribution may not leave; empty: it may."""
        if is_statistic(slice_):
            return "" if math.isfinite(made.largest) else self._of_statistics(slice_, made, what, at)
        if not is_watched(slice_):  # it may hold Inf, as a mask does; NaN would spread to the others'
            return self._of_buffer(slice_, what, at) if math.isnan(made.largest) else ""
        room = self._room(slice_)
        if made.largest <= room.most:
            return ""
        return self._of_weights(slice_, made, room, weight, what, source, at)

    def allows_step(self, gradients: Mapping[int, torch.Tensor]) -> bool:
        """Whether all gradients (by parameter) are finite. Raises NotFinite where the run stops.

        On a GPU, and where the run stops, that is by the end of the next step: nothing leaves unseen.
        """
        if not self.skips and gradients and all(queues(gradient.device) for gradient in gradients.values()):
            self.look()
            for numbers, values in _by_device(gradients):
                self._unread.append((self._at, numbers, Later(largest_of_each(values))))
            return True
        fine = len(self.allows_gradients(gradients)) == len(gradients)
        self._whole = self._whole or not fine
        return fine

    def look(self) -> None:
        """Raise NotFinite for what is known by now of the step before."""
        unread, self._unread = self._unread, []
        for at, numbers, later in unread:
            for number, found in zip(numbers, later.numbers(), strict=True):
                if not math.isfinite(found):
                    self._refuse_gradient(number, found, at)

    def _refuse_gradient(self, number: int, found: float, at: At) -> None:
        name, word = self._layout.tensors[number].name, "NaN" if math.isnan(found) else "Inf"
        self._refuse(name, f"{GRADIENT} {name} holds {word} in {when(*at)}. {LOOK}. {SKIP}")

    def allows_gradients(self, gradients: Mapping[int, torch.Tensor]) -> list[int]:
        """The parameters whose gradients are finite. Raises NotFinite where the run stops.

        With `push_at = "step"` it is all of them, or none.
        """
        fine = list[int]()
        for number, found in self._largest(gradients).items():
            if math.isfinite(found):
                fine.append(number)
            else:
                self._refuse_gradient(number, found, self._at)
        return [] if self.skips_steps and self._skipped else fine

    def _largest(self, gradients: Mapping[int, torch.Tensor]) -> dict[int, float]:
        """Of each gradient; of those on one GPU in one look."""
        found = dict[int, float]()
        for numbers, values in _by_device(gradients):
            if queues(values[0].device):
                found |= zip(numbers, largest_of_each(values).tolist(), strict=True)
            else:
                found |= zip(numbers, map(largest, values), strict=True)
        return {number: found[number] for number in gradients}

    def _refuse(self, key: int | str, fault: str) -> bool:
        text = f"{self._name}: {fault}"
        if not self.skips:
            raise NotFinite(text)
        self._skipped.setdefault(key, text)
        return False

    def _of_statistics(self, slice_: Slice, made: Gathered, what: str, at: At) -> str:
        assert made.values is not None  # nothing has a largest value of 0
        found = found_in(self._layout, slice_, made.values, room_of(slice_))
        assert found is not None  # the largest is one
        told = room_of(slice_).beyond(found.value)
        return f"{what} {found.names} holds {told} in {when(*at)}. {LOOK}. {SKIP}"

    def _of_buffer(self, slice_: Slice, what: str, at: At) -> str:
        names = listed(self._layout.tensors[part.tensor].name for part in slice_.parts)
        return f"{what} {names} holds NaN in {when(*at)}. {LOOK}. {SKIP}"

    def _of_weights(
        self,
        slice_: Slice,
        made: Gathered,
        room: Room,
        weight: float,
        what: str,
        source: Source | None,
        at: At,
    ) -> str:
        assert made.values is not None  # nothing has a largest value of 0
        found = found_in(self._layout, slice_, made.values, room)
        assert found is not None  # the largest is one
        told = f"holds {room.beyond(found.value)}"
        if weight != 1.0 and math.isfinite(found.value):
            told = f"times its weight of {weight:g} reaches {room.beyond(found.value)},"
        elif weight != 1.0 and source is None and not math.isnan(found.value):
            told = f"times its weight of {weight:g} {told}"
        elif weight != 1.0 and source is not None and not math.isnan(found.value):
            given = [source(part.tensor) for part in slice_.parts]
            if all(x is None or math.isfinite(largest(real(x.detach()))) for x in given):
                told = f"times its weight of {weight:g} is more than {room.form} has room for"
        return f"{what} {found.names} {told} in {when(*at)}. {remedy(found.value, room.form)}"
