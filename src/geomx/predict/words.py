"""What an algorithm and a codec give for their speed, in words."""

from __future__ import annotations

from geomx.codecs.contract import Codec
from geomx.observe.costs import Cost
from geomx.predict.facts import Rhythm, crosses_wan
from geomx.predict.steps import Prediction
from geomx.sync.contract import AccumulateStep, LocalStep


def trade_of_rhythm(rhythm: Rhythm, prediction: Prediction) -> str:
    """What training over a WAN changes with this policy."""
    first = next(filter(crosses_wan, rhythm.plans), rhythm.plans[0])
    if rhythm.step_controller is not None:
        steps = ", ".join(f"{name} {count:.3g}" for name, count in prediction.steps_of.items())
        return f"weights of workers part for as many steps as fit into a round ({steps}), then are averaged"
    if isinstance(first, LocalStep):
        return _of_local(rhythm, first)
    misses = f"a gradient misses {_updates(prediction.staleness)} of others on average"
    if isinstance(first, AccumulateStep):
        pushes, fetches = (sum(getattr(plan, key) for plan in rhythm.plans) for key in ("push", "fetch"))
        pushed, fetched = _every(rhythm.steps, pushes), _every(rhythm.steps, fetches)
        return f"workers go each their own way, push {pushed} and fetch {fetched}; {misses}"
    if rhythm.sync_group == "run":
        return "nothing: the arithmetic of one process on all batches"
    bound = ", and who is too far ahead waits" if rhythm.bounded else ""
    return f"parties do not wait for each other: {misses}{bound}"


def _of_local(rhythm: Rhythm, first: LocalStep) -> str:
    exchanges = [plan for plan in rhythm.plans if isinstance(plan, LocalStep) and plan.average == "run"]
    inside = sum(isinstance(plan, LocalStep) and plan.average == "party" for plan in rhythm.plans)
    parts = first.fragment[1]
    apart = rhythm.steps * parts // len(exchanges)  # from one exchange of a slice to the next
    text = f"weights of workers part for {_steps(apart)}, then are averaged"
    if inside:
        text += f" (inside a party {_every(rhythm.steps, inside + len(exchanges))})"
    if parts > 1:
        text += f", 1/{parts} of the model at a time"
    if first.overlap:
        text += f"; an average is taken in {_steps(first.overlap)} late"
    return text


def trade_of_codec(codec: Codec, cost: Cost) -> str:
    """What a codec keeps back."""
    if codec.lossless:
        return "nothing: every bit"
    if codec.ratio is not None:
        return f"{100 * codec.ratio:.3g} % of the entries a round, the rest in later ones"
    bits = 32 / cost.ratio
    return f"{bits:.2g} bits for a number; what rounding takes away goes with the next"


def _updates(count: int) -> str:
    return "1 update" if count == 1 else f"{count} updates"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"


def _every(steps: int, times: int) -> str:
    return "every step" if steps == times else f"every {steps // times:,} steps"
