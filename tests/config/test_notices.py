"""What is told of a description that has no fault."""

from __future__ import annotations

import pytest
from config_runs import TWO_KINDS, two_parties

from geomx.config import Run, notices


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("lan.codec_down=tiny_fp16",), 'lan.codec_down = "tiny_fp16" applies'),
        (
            ("lan.codec_up=bf16", "lan.codec_down=bf16"),
            'lan.codec_up = "bf16" and lan.codec_down = "bf16" apply',
        ),
    ],
)
def test_means_inside_a_party_use_no_codec(overrides: tuple[str, ...], named: str) -> None:
    (notice,) = notices(two_parties("sync.policy=hfa k1=50 k2=2", *overrides))
    assert f"{named} to exchanges with the global servers only" in notice


@pytest.mark.parametrize(
    "overrides",
    [
        ("sync.policy=hfa",),
        ("sync.policy=hfa", "lan.codec_down=dense", "wan.codec_up=int4"),
        ("sync.policy=hfa k1=200 k2=1", "lan.codec_up=fp16"),
        ("sync.policy=diloco", "lan.codec_up=fp16"),
        ("sync.policy=esync", "lan.codec_up=fp16"),
        ("sync.policy=hfa", "lan.codec_up=fp16", "party.A.workers=1"),
    ],
)
def test_nothing_is_told_where_codecs_apply_to_all_that_they_could(overrides: tuple[str, ...]) -> None:
    assert notices(two_parties(*overrides)) == []


def test_a_party_that_reduces_by_itself_does_without_its_server() -> None:
    more = ("sync.policy=hfa", "lan.codec_up=fp16")
    assert len(notices(Run.parse(TWO_KINDS, "two.toml", more))) == 1
    assert notices(Run.parse(TWO_KINDS, "two.toml", (*more, "party.A.inside=collective"))) == []
