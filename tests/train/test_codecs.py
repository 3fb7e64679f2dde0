"""Training through codecs: every edge, both directions, wherever the optimizer runs, with any number of shards."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import assert_equal, batch, begin, place_of, samples_of, small_model, train, weights

from geomx.codecs.spec import size_bounds_of
from geomx.config.compatibility.choices import CodecUp
from geomx.errors import Unsupported
from geomx.node.topology import Edge
from geomx.sync import policies
from geomx.train import LiveRun, Settings

CUT = Settings(slice_elements=512, pack_below=100)
SMALL = "size_lower_bound=100"  # of the model here, one tensor has 1000 elements or more
LOSSY = [
    "fp16", "bf16", f"int8 {SMALL}", f"int4 stochastic=true {SMALL}", f"sign {SMALL}",
    f"two_bit threshold=0.05 {SMALL}", f"topk ratio=0.2 {SMALL}", f"bisparse ratio=0.2 {SMALL}",
    "bisparse ratio=0.2 values=int4", f"mpq ratio=0.2 {SMALL}", "tiny_fp16",
]  # fmt: skip


def script(steps: int = 15) -> Any:
    def main(run: LiveRun) -> tuple[float, float, dict[str, torch.Tensor]]:
        model: Any = small_model(seed=place_of(run), dtype=torch.float32)
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.15))
        x, y = batch(place_of(run), samples_of(place_of(run)), torch.float32)
        losses = []
        for _ in range(steps):
            run.weight(len(x))
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses[0], losses[-1], weights(model)

    return main


def check(results: dict[str, Any]) -> None:
    """It learns, and every replica has the same bits."""
    for _, _, values in results.values():
        assert_equal(values, results["A/0"][2])
    before, after = (sum(result[part] for result in results.values()) for part in (0, 1))
    assert after < 0.3 * before


@pytest.mark.parametrize(("codec", "place", "shards"), each_value(LOSSY, ["server", "workers"], [1, 3]))
def test_replicas_stay_equal_and_learn(codec: str, place: Any, shards: int) -> None:
    settings = Settings(slice_elements=512, pack_below=100, place=place)
    results, _ = train([2, 1], script(), settings, shards, wan=Edge(codec, codec))
    check(results)


@pytest.mark.parametrize(
    ("lan", "wan"), [("bf16", "bisparse ratio=0.2 values=int8"), ("bisparse ratio=0.3", "dense")]
)
def test_every_edge_has_its_own(lan: str, wan: str) -> None:
    results, _ = train([2, 2], script(), CUT, wan=Edge(wan, wan), lan=Edge(lan, lan))
    check(results)


def test_one_shard_and_three_end_with_the_same_bits() -> None:
    edge = Edge("bisparse ratio=0.2 values=int4", "int8")
    one, three = (train([1, 2], script(), CUT, shards, wan=edge)[0] for shards in (1, 3))
    assert_equal(one["A/0"][2], three["A/0"][2])


def test_lossy_training_ends_near_exact_training() -> None:
    """Error feedback on both ends: what is lost in a round is not lost for good."""
    exact, _ = train([1, 1], script(40), CUT)
    lossy, _ = train([1, 1], script(40), CUT, wan=Edge("int4", "int4"))
    for name, expected in exact["A/0"][2].items():
        torch.testing.assert_close(
            lossy["A/0"][2][name], expected, rtol=0, atol=0.002
        )  # without feedback 0.007


def test_fewer_bytes_cross_the_wan() -> None:
    sent = {}
    for codec in ("dense", f"bisparse ratio=0.01 {SMALL}"):
        _, simulator = train([1, 1], script(15), wan=Edge(codec, codec))
        sent[codec] = simulator.sent_bytes("A", "global/0"), simulator.sent_bytes("global/0", "A")
    for dense, sparse in zip(*sent.values(), strict=True):
        assert sparse < dense / 3  # the first weights, messages' heads and tiny tensors are dense


@pytest.mark.parametrize(("bound", "tiny"), [(1000, [64, 320, 5]), (300, [64, 5])])
def test_with_mpq_tiny_tensors_cross_the_lan_in_half_precision_and_large_ones_whole(
    bound: int, tiny: list[int]
) -> None:
    steps, sent = 20, {}
    wan = f"mpq ratio=0.2 size_lower_bound={bound}"
    settings = Settings(size_bounds=size_bounds_of(wan))
    for lan in ("dense", f"tiny_fp16 size_lower_bound={bound}"):
        results, simulator = train([2, 1], script(steps), settings, wan=Edge(wan, wan), lan=Edge(lan, lan))
        check(results)
        sent[lan] = [simulator.sent_bytes("A/1", "A"), simulator.sent_bytes("A", "A/1")]
    dense, half = sent.values()
    exponent_bytes = 2  # of the slice that they share
    saved = steps * (2 * sum(tiny) - exponent_bytes)
    assert [before - now for before, now in zip(dense, half, strict=True)] == [saved, saved]


def test_means_inside_a_party_travel_dense_whatever_the_codecs_of_the_lan() -> None:
    settings, how = Settings(policy=policies.make("hfa k1=2 k2=2")), {"policy": "hfa k1=2 k2=2"}
    sent = []
    for lan in ("dense", "fp16"):
        _, simulator = train([2, 1], script(8), settings, lan=Edge(lan, lan), **how)
        sent.append([simulator.sent_bytes("A/1", "A"), simulator.sent_bytes("A", "A/1")])
    exchanges, slices, elements = 2, 2, 1280 + 64 + 320 + 5
    saved = exchanges * (2 * elements - 2 * slices)
    assert [before - now for before, now in zip(*sent, strict=True)] == [saved, saved]


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), True),
        (torch.optim.Adagrad, True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), False),
        (lambda p: torch.optim.RMSprop(p, momentum=0.1), False),
        (torch.optim.AdamW, False),
    ],
)
def test_momentum_does_not_count_twice(make: Any, allowed: bool) -> None:
    settings = Settings(codecs_up=(CodecUp.of("wan.codec_up", "bisparse momentum=0.9"),))
    with nullcontext() if allowed else pytest.raises(Unsupported, match="would count twice"):
        train([1, 1], lambda run: begin(run, lambda model: make(model.parameters())), settings)
