"""Sums that overflow, weights that an optimizer loses, and numbers that a codec has no room for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from finite_runs import BAD_WORKER, Script, assert_same_runs, settings, told, weightless
from live_runs import small_model, train, weights

from geomx.errors import NotFinite, RunFailed
from geomx.node.topology import Edge
from geomx.train import LiveRun


def large(
    run: LiveRun,
    gradients: dict[str, float],
    lr: float = 0.1,
    weight: float = 1.0,
    dtype: torch.dtype = torch.float32,
    **attached: Any,
) -> tuple[Any, Any]:
    """One step whose gradient of 2.bias is that of each worker; the weights before and behind it."""
    model = small_model(dtype=dtype)
    model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=lr), **attached)
    before = weights(model)
    model[2].bias.register_hook(lambda g: torch.full_like(g, gradients[run.name]))
    run.weight(weight)
    model(torch.ones(1, 20, dtype=dtype)).sum().backward()
    optimizer.step()
    return before, weights(model)


IN_A = {"A/0": 3e38, "A/1": 3e38, "B/0": 0.0}
AT_THE_ROOT = {"A/0": 2e38, "A/1": 0.0, "B/0": 3e38}


@pytest.mark.parametrize(
    ("codec", "gradients", "where", "whose"),
    [("dense", IN_A, "A", "A/0, A/1"), ("int8", AT_THE_ROOT, "global/0", "A/0, A/1, B/0")],
)
def test_a_sum_that_overflows_is_found_where_it_is_made(
    codec: str, gradients: dict[str, float], where: str, whose: str
) -> None:
    edge = {"lan": Edge(codec, "dense"), "wan": Edge(codec, codec)}
    with pytest.raises(RunFailed) as caught:
        train([2, 1], lambda run: large(run, gradients), settings(codec, "stop"), **edge)
    assert (caught.value.node, caught.value.error) == (where, "NotFinite")
    text = f"{where}: the sum of what {whose} sent for 2.bias overflows float32 (at most 3.403e+38) in step 1"
    assert text in str(caught.value)


@pytest.mark.parametrize(("gradients", "where"), [(IN_A, "A"), (AT_THE_ROOT, "global/0")])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_sum_that_overflows_is_skipped(
    gradients: dict[str, float], where: str, clip_norm: float | None
) -> None:
    results, simulator = train(
        [2, 1], lambda run: large(run, gradients, clip_norm=clip_norm), settings(pack_below=1), skips=True
    )
    for before, behind in results.values():
        if where == "global/0":
            assert torch.equal(before["2.bias"], behind["2.bias"])
        assert bool(behind["2.bias"].isfinite().all())
        assert not torch.equal(before["2.weight"], behind["2.weight"])
    ((node, fields),) = told(simulator)
    assert (node, fields["part"]) == (where, "1 slice")


def test_a_weight_that_a_gradient_overflows_with_is_told() -> None:
    gradients = {"A/0": 1e38, "B/0": 0.0}
    with pytest.raises(
        NotFinite, match=r"of 2.bias times its weight of 32 is more than float32 has room for in "
    ):
        train([1, 1], lambda run: large(run, gradients, weight=32.0), settings(on_nonfinite="stop"))


EACH_1000 = {"A/0": 1e3, "B/0": 1e3}


@pytest.mark.parametrize(("codec", "on_nonfinite"), [("dense", "stop"), ("int8", "skip")])
def test_weights_that_overflow_end_the_run(codec: str, on_nonfinite: str) -> None:
    """The optimizer has changed them: nothing can be skipped any more."""
    more = settings(on_nonfinite=on_nonfinite)
    edge, skips = Edge("dense", codec), on_nonfinite == "skip"
    with pytest.raises(RunFailed, match=r"global/0 cannot send the new values of 2.bias in step 1 "):
        train([1, 1], lambda run: large(run, EACH_1000, lr=3e38), more, wan=edge, skips=skips)


# -- what a codec has no room for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "form"),
    [
        ("topk ratio=0.5 size_lower_bound=1", "float32"),
        ("bisparse values=float32 size_lower_bound=1", "float32"),
        ("bf16", "bf16"),
        ("int8 size_lower_bound=1", "int8"),
        ("int4 size_lower_bound=1", "int4"),
        ("sign size_lower_bound=1", "sign"),
        ("topk values=int2 size_lower_bound=1", "int2"),
    ],
)
def test_numbers_beyond_a_form_are_told_and_not_capped(codec: str, form: str) -> None:
    script = Script(1e39, dtype=torch.float64)
    with pytest.raises(NotFinite) as caught:
        train([2, 1], script, settings(codec, "stop"), lan=Edge(codec, "dense"))
    text = str(caught.value)
    assert "A/1: the gradient of 2.bias times its weight of 5 reaches 5e+39, too large for " in text
    assert f"{form} (at most 3.4" in text or f"{form} (at most 3.3" in text
    assert 'Choose a codec with a larger range: "dense", or "fp16", which scales each slice' in text
    ours, simulator = train([2, 1], script, settings(codec, push_at="step"), lan=Edge(codec, "dense"))
    compared = Script(None, weightless, dtype=torch.float64)
    theirs, _ = train([2, 1], compared, settings(codec, push_at="step"), lan=Edge(codec, "dense"))
    assert_same_runs(ours, theirs)
    assert [node for node, _ in told(simulator)] == [BAD_WORKER]


@pytest.mark.parametrize("codec", ["dense", "fp16"])
def test_what_has_room_for_them_carries_them(codec: str) -> None:
    script = Script(1e39, dtype=torch.float64)
    results, _ = train([2, 1], script, settings(codec, "stop"), lan=Edge(codec, "dense"))
    for found in results.values():
        assert float(found["2.bias"][3]) < -1e36
        assert bool(found["2.bias"].isfinite().all())


def test_a_sum_beyond_the_wans_form_is_told_by_the_local_server() -> None:
    def script(run: LiveRun) -> None:
        large(run, dict.fromkeys(("A/0", "A/1", "B/0"), 3e38), dtype=torch.float64)

    text = (
        r"A: the sum of what A/0, A/1 sent for .*2.bias reaches 6e\+38, "
        r"too large for float32 \(at most 3.403e\+38\), in step 1"
    )
    wan = Edge("topk ratio=0.5 size_lower_bound=1", "dense")
    with pytest.raises(RunFailed, match=text) as caught:
        train([2, 1], script, settings(on_nonfinite="stop"), wan=wan)
    assert caught.value.node == "A"
