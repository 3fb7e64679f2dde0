"""What a description's choices must be to each other."""

from __future__ import annotations

from typing import Any

import pytest
from config_runs import TWO_KINDS

from geomx.config import Run
from geomx.config.compatibility.choice_rules import check_choices
from geomx.errors import ConfigError

SIZES = ("party.A.dataset_size=9", "party.B.dataset_size=9")
TLS = ("tls.certificate=c", "tls.key=k", "tls.authority=a")


class Plain:
    """A channel that carries bytes, and carries out nothing else."""

    dial = listen = None

    def __init__(self, edge: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (("sync.policy=esync",), "party[1].inside"),
        (("sync.policy=downpour",), "party[1].inside"),
        (("sync.policy=downpour", "optimizer.place=workers"), "optimizer.place"),
        (("sync.policy=hfa", "optimizer.place=server"), "optimizer.place"),
        (("optimizer.compensation=dcasgd",), "optimizer.compensation"),
        (("sync.policy=diloco", "worker.overlap=forward"), "worker.overlap"),
        (("sync.policy=downpour", "optimizer.compensation=dcasgd"), "optimizer.compensation"),
        (("sync.buffers=average",), "sync.buffers"),
        (("sync.policy=downpour", "sync.weight=dataset_size", *SIZES), "sync.weight"),
        (("wan.codec_down=bisparse momentum=0.9",), "wan.codec_down"),
        (("sync.policy=diloco", "lan.codec_up=mpq momentum=0.9"), "lan.codec_up"),
        (("optimizer.rule=torch.optim:SGD", "optimizer.place=workers"), "optimizer.rule"),
        (("optimizer.rule=torch.optim:SGD", "sync.policy=hfa"), "optimizer.rule"),
        (("wan.channel=test_choice_rules:Plain", "wan.link={rate_mbps=10}"), "wan.channel"),
        (("wan.channel=test_choice_rules:Plain", "party.B.link={delay_ms=10}"), "wan.channel"),
        (("wan.channel=test_choice_rules:Plain", "party.B.pace_mbps=10"), "wan.channel"),
        (("lan.channel=test_choice_rules:Plain", "lan.link={rate_mbps=10}"), "lan.channel"),
        (("lan.channel=test_choice_rules:Plain", *TLS), "lan.channel"),
        (("wan.channel=test_choice_rules:Plain", "wan.congestion=cubic"), "wan.channel"),
        (("run.on_loss=wait", "optimizer.place=workers"), "run.on_loss"),
        (("run.on_loss=continue", "party.A.inside=collective"), "run.on_loss"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], refused: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_choices(Run.parse(TWO_KINDS, "two.toml", overrides))
    assert refused in [fault.where for fault in caught.value.faults]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("sync.policy=hfa", "optimizer.place=workers", "run.on_loss=continue"),
        ("wan.channel=test_choice_rules:Plain", "lan.link={rate_mbps=10}", "lan.congestion=cubic"),
        ("lan.channel=test_choice_rules:Plain", "wan.link={rate_mbps=10}"),
        TLS,
        ("run.on_loss=wait", "run.wait_s=60"),
        ("run.on_loss=continue", "run.least_parties=2", "run.least_workers=4"),
        ("sync.policy=mixed", "optimizer.compensation=dcasgd", "worker.overlap=forward"),
    ],
)
def test_what_goes_together_is_not(overrides: tuple[str, ...]) -> None:
    check_choices(Run.parse(TWO_KINDS, "two.toml", overrides))
