"""What a description's choices and a training script do together."""

from __future__ import annotations

import re

import pytest
from config_runs import two_parties

from geomx.config.compatibility.choices import Choices
from geomx.config.compatibility.decision import Decision, decide
from geomx.config.compatibility.script import Script

ADAM = Script("AdamW", keeps="squares", momentum=True)
OWN = Script("Lion", elementwise=False)


def decided(script: Script, *overrides: str) -> Decision:
    return decide(Choices.of(two_parties(*overrides)), script)


@pytest.mark.parametrize(
    ("script", "overrides", "on_server"),
    [
        (ADAM, [], True),
        (ADAM, ["optimizer.place=workers"], False),
        (ADAM, ["sync.policy=hfa"], False),
        (OWN, [], False),
        (OWN, ["optimizer.rule=lion:Lion"], True),
        (Script(clips=True), [], False),
        (Script(clips=True), ["optimizer.place=server"], True),
        (Script(clips=True), ["wan.codec_down=int8"], True),
        (Script(clips=True), ["wan.codec_up=int8"], False),
        (Script(clips=True), ["run.on_loss=wait"], True),
        (Script(clips=True), ["run.on_loss=continue"], True),
        (Script(clips=True), ["sync.policy=mixed"], True),
    ],
)
def test_where_the_optimizer_steps(script: Script, overrides: list[str], on_server: bool) -> None:
    found = decided(script, *overrides)
    assert (found.on_server, found.refusals) == (on_server, ())


@pytest.mark.parametrize(
    ("script", "overrides", "says"),
    [
        (OWN, ["optimizer.place=server"], "Lion cannot run on the global servers"),
        (OWN, ["sync.policy=mixed"], "where Lion cannot run"),
        (OWN, ["run.on_loss=wait"], r'run\.on_loss = "wait" with Lion on the workers'),
        (OWN, ["run.on_loss=continue"], r'set run\.on_loss = "stop"'),
        (OWN, ["worker.overlap=forward"], "needs an optimizer on the global servers"),
        (ADAM, ["lan.codec_up=bisparse momentum=0.9"], "lan.codec_up .* and so has AdamW"),
        (Script(steps=90), ["sync.policy=hfa k1=50 k2=2"], "every 100 steps, but a worker takes only 90"),
        (ADAM, ["wan.codec_up=topk ratio=0.01", "run.strict=true"], r"on gradients with AdamW .*run\.strict"),
    ],
)
def test_what_is_refused(script: Script, overrides: list[str], says: str) -> None:
    found = decided(script, *overrides).refusals
    assert len(found) == 1
    assert re.search(says, found[0])


@pytest.mark.parametrize(
    ("script", "certain"),
    [(ADAM, [True]), (Script(), [False]), (Script("SGD", keeps="nothing"), [])],
)
def test_what_it_costs_may_depend_on_an_optimizer_that_is_not_known(
    script: Script, certain: list[bool]
) -> None:
    costs = decided(script, "wan.codec_up=topk ratio=0.01").costs
    assert [cost.is_certain for cost in costs] == certain


@pytest.mark.parametrize(
    ("policy", "steps", "says"),
    [
        ("diloco every=20", 240, "12 times in 240 steps.*20 % with an outer momentum"),
        ("diloco every=20 lr=1.0 momentum=0", 240, "12 times in 240 steps.* 9 % higher; take"),
        ("hfa k1=10 k2=2", 499, "24 times"),
        ("hfa k1=10 k2=2", 500, ""),
        ("hfa k1=10 k2=2", None, ""),
    ],
)
def test_few_means_cost(policy: str, steps: int | None, says: str) -> None:
    costs = decided(Script(steps=steps), f"sync.policy={policy}").costs
    assert [bool(re.search(says, cost.text)) for cost in costs] == [True] * bool(says)
