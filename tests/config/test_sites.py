"""The tables of sites: each node has one place."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_runs import TWO_PARTIES, two_parties

from geomx.config import Run
from geomx.config.compatibility.choice_rules import check_choices
from geomx.config.files import file_problems
from geomx.errors import ConfigError

LOCAL = 'engine = "local"'
WHOLE = f'{{ party = "A", serves = ["global"], {LOCAL} }}, {{ party = "B", {LOCAL} }}'


def test_with_sites_a_run_needs_no_secret_of_its_own_unless_its_nodes_are_started_by_hand() -> None:
    run = two_parties(f"site=[{WHOLE}]", 'global.addresses=["203.0.113.7:1"]')
    assert not list(file_problems(run, ("proof",)))
    assert [problem.path for problem in file_problems(run, ("hand",))] == [("run", "secret_file")]
    assert not list(file_problems(run.changed(['global.addresses=["127.0.0.1:1"]']), ("hand",)))


def test_a_description_goes_on_from_another_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(f'run.name = "r"\nwan.codec_up = "fp16"\n{TWO_PARTIES}')
    sites = tmp_path / "sites.toml"
    sites.write_text(f'extends = "train.toml"\nsite = [{WHOLE}]\n[wan]\ncodec_down = "fp16"\n')
    run = Run.load(sites)
    assert (run.run.name, run.wan.codec_up, run.wan.codec_down, len(run.sites)) == ("r", "fp16", "fp16", 2)
    (tmp_path / "train.toml").write_text(f'wan.codec_up = "fp61"\n{TWO_PARTIES}')
    with pytest.raises(ConfigError, match=r"wan\.codec_up \(train\.toml, line 1\)"):
        Run.load(sites)
    (tmp_path / "train.toml").write_text('extends = "more.toml"')
    with pytest.raises(ConfigError, match="which extends another itself"):
        Run.load(sites)
    for name in ('"../train.toml"', '"train.json"', "1"):
        sites.write_text(f"extends = {name}")
        with pytest.raises(ConfigError, match=r"extends \(line 1\).*in the same folder"):
            Run.load(sites)


def test_a_login_node_says_nothing_of_how_many_machines_there_are() -> None:
    slurm = 'engine = "slurm", hosts = ["login"], workers_each = 1'
    assert (
        two_parties(f"site=[{WHOLE.replace(LOCAL, slurm, 1)}]", "party.A.workers=3").sites[0].workers_each
        == 1
    )


@pytest.mark.parametrize(
    ("sites", "fault"),
    [
        (f'{{ party = "A", {LOCAL} }}, {{ party = "B", {LOCAL} }}', "no site for `global`"),
        (f'{{ party = "A", serves = ["global"], {LOCAL} }}', "no site for `B`"),
        (f"{WHOLE}, {{ {LOCAL} }}", "nothing would run here"),
        (f'{WHOLE}, {{ party = "B", {LOCAL} }}', r"site\[1\] has it already"),
        (f'{WHOLE}, {{ serves = ["gobal"], {LOCAL} }}', "did you mean `global`"),
        (f'{WHOLE}, {{ party = "C", {LOCAL} }}', "allowed: `A`, `B`"),
        (WHOLE.replace(LOCAL, 'engine = "ssh"', 1), r"site\[0\]\.hosts .*found nothing"),
        (
            WHOLE.replace(LOCAL, 'hosts = ["a", "b"], workers_each = 1', 1),
            "2 or more: 3 workers on 2 machines",
        ),
        (WHOLE.replace(LOCAL, f"{LOCAL}, workers_each = 1", 1), "only with other engines"),
        (WHOLE.replace(LOCAL, f'{LOCAL}, hosts = ["a"]', 1), "only with other engines"),
        (WHOLE.replace(LOCAL, f"{LOCAL}, restart = {{}}", 1), "only with run.on_loss"),
        (WHOLE.replace(LOCAL, 'engine = "ray", folder = "x"', 1), "the cluster places the nodes"),
        (WHOLE.replace(LOCAL, 'engine = "ray", hosts = ["a", "b"]', 1), "one at most"),
        (WHOLE.replace(LOCAL, 'hosts = ["-oProxyCommand=x"]', 1), r"hosts\[0\]"),
    ],
)
def test_what_is_wrong_with_sites_is_told(sites: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        two_parties(f"site=[{sites}]", "party.A.workers=3")


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        ("slurm partion=gpu", "did you mean `partition`"),
        ("kubernetes", r"image: nothing.*image=\.\.\., which it needs"),
        ("other:Engine", "nothing to import"),
    ],
)
def test_what_is_wrong_with_an_engine_s_parameters_is_told(engine: str, fault: str) -> None:
    whole = WHOLE.replace(LOCAL, f'engine = "{engine}"', 1)
    run = two_parties(f"site=[{whole}]")
    with pytest.raises(ConfigError, match=fault):
        check_choices(run)
