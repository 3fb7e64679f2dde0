"""Policies, codecs and other classes that a description names and that are not there, or are made otherwise."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
from config_runs import TWO_PARTIES, fault_of_file


class Halfway:
    """Is made as a channel is, and is none."""

    def __init__(self, edge: object) -> None:
        pass


CHOICES = [
    ('sync.policy = "mixed stalenes=4"', "sync.policy.stalenes", "did you mean `staleness`?"),
    ('sync.policy = "mixed staleness=4.5"', "sync.policy.staleness", "found '4.5'; allowed: an integer"),
    ('sync.policy = "mixed staleness=-2"', "sync.policy.staleness", "0 or more, or -1"),
    ('sync.policy = "hfa k1=2, k2=3"', "sync.policy.k1", "did you mean `k1=2`?"),
    ('sync.policy = "hfa k1=2 k1=3"', "sync.policy.k1", "found '3' as a second value; allowed: each parameter once"),
    ('sync.policy = "collections:Countr"', "sync.policy", "did you mean `Counter`?"),
    ('sync.policy = "math:pi"', "sync.policy", 'found "math:pi": a float'),
    ('sync.policy = "collections:Counter"', "sync.policy", "without `gathered`, `lockstep`, `plans`"),
    ('optimizer.rule = "collections:Counter"', "optimizer.rule", "without `adopt`, `apply`, `export`"),
    ('lan.channel = "test_wrong_choices:Halfway"', "lan.channel", "without `dial`, `listen`; allowed: a class with"),
    ('wan.channel = "no_such_channels:Mine"', "wan.channel", "No module named 'no_such_channels'"),
    ('wan.channel = "datagram fec=1.5"', "wan.channel.fec", "allowed: a number from 0 to 1"),
    ('wan.codec_down = "topk ratio=0.1 decay=0.9"', "wan.codec_down", "decay would lose a part"),
    ("sync.quorum = 0.5", "sync.quorum", "each step is the mean over all workers"),
    ('sync = {policy = "mixed", quorum = 0.5}', "sync.quorum", "parties do not wait for each other anyway"),
    ('sync = {policy = "esync", quorum = 0.5}', "sync.quorum", "has nobody wait for long"),
    ('sync = {policy = "hfa k1=2 k2=2", quorum = 0.5}', "sync.quorum", "the workers of a party wait for each other"),
    ('sync = {policy = "diloco every=8 overlap=2", quorum = 0.5}', "sync.quorum", "without fragments and overlap"),
    ('sync = {policy = "diloco every=8", quorum = 0.5}', "sync.quorum", 'run.on_loss = "continue"'),
    ('sync.buffers = "average"', "sync.buffers", "no weights are averaged"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "key", "piece"), CHOICES, ids=[line for line, _, _ in CHOICES])
def test_a_choice_that_does_not_exist_is_told_at_its_key_and_line(
    tmp_path: Path, line: str, key: str, piece: str
) -> None:
    fault = fault_of_file(tmp_path, f"# a run\n{line}\n{TWO_PARTIES}")
    assert fault.where == f"{key} (line 2)"
    assert piece in str(fault)


WRONG_CODECS = [
    ("topk ratoi=0.1", ".ratoi", "did you mean `ratio`?"),
    ("topk ratio=1%", ".ratio", "found '1%'; allowed: a number (did you mean `ratio=0.01`?)"),
    ("topk ratio=2", ".ratio", "found 2.0"),
    ("dense ratio=2", ".ratio", "allowed: no parameters"),
    ("mpq size_lower_bound=0", ".size_lower_bound", "found 0; allowed: an integer from 1 to"),
    ("no_such_module:Codec", "", "No module named 'no_such_module'"),
    ("collections:Counter", "", "TypeError"),
]
KEYS = cycle(["wan.codec_up", "wan.codec_down", "lan.codec_up", "lan.codec_down"])


@pytest.mark.parametrize(
    ("key", "spec", "parameter", "piece"), [(next(KEYS), *told) for told in WRONG_CODECS]
)
def test_a_wrong_codec_is_told_at_its_tier_and_way(
    tmp_path: Path, key: str, spec: str, parameter: str, piece: str
) -> None:
    fault = fault_of_file(tmp_path, f'{TWO_PARTIES}\n[{key[:3]}]\n{key[4:]} = "{spec}"\n')
    assert fault.where == f"{key}{parameter} (line 10)"
    assert piece in str(fault)
