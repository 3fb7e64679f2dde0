"""A preset gives the keys that a description has not itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from geomx.config import Run, load_whole
from geomx.config.compatibility.choice_rules import check_choices
from geomx.config.compatibility.presets import PRESETS
from geomx.errors import ConfigError

PARTIES = "".join(f'[[party]]\nname = "{name}"\nworkers = 1\n' for name in "ABC")


def with_preset(name: str, *overrides: str) -> Run:
    return Run.parse(f'[run]\npreset = "{name}"\n{PARTIES}', "run.toml", overrides)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_description_that_holds(name: str) -> None:
    run = with_preset(name)
    check_choices(run)
    assert run != with_preset("")


def test_what_the_description_or_the_command_line_says_counts_first() -> None:
    changed = with_preset("slow-link", "wan.codec_down=int8")
    assert (changed.wan.codec_down, changed.lan.codec_down) == ("int8", "wan")
    assert with_preset("slow-link", "run.preset=geomx-fp16").wan.codec_up == "fp16"
    text = f'[run]\npreset = "slow-link"\n[sync]\npolicy = "fsa"\n{PARTIES}'
    run = Run.parse(text, "run.toml")
    assert (run.sync.policy, run.wan.codec_up[:4]) == ("fsa", "topk")


def test_geomx_sends_down_the_union_of_what_its_parties_send_up() -> None:
    assert with_preset("geomx-bisparse").wan.codec_down == "bisparse ratio=0.03 values=float32"
    mpq = with_preset("geomx-mpq")
    assert mpq.wan.codec_up == "mpq ratio=0.01 momentum=0.9 values=float32"
    assert (mpq.lan.codec_up, mpq.lan.codec_down) == ("tiny_fp16", "tiny_fp16")
    assert mpq.optimizer.place == "workers"


def test_what_a_preset_gives_is_named_where_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[run]\npreset = "slow-link"\n[worker]\noverlap = "forward"\n{PARTIES}')
    with pytest.raises(ConfigError, match=r"with sync\.policy = .diloco"):
        load_whole(path)
    with pytest.raises(ConfigError, match="did you mean `slow-link`"):
        with_preset("slow-lnk")


def test_a_saved_run_keeps_what_its_preset_has_given(tmp_path: Path) -> None:
    run = with_preset("slow-link", "wan.codec_down=int8")
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run
    assert run.run.preset == ""  # it is spent: a changed copy is not given its keys once more
    assert run.changed(["wan.codec_up=dense"]).wan.codec_up == "dense"
