"""The tables of sites: each node has one place."""

from __future__ import annotations

import pytest
from config_runs import two_parties

from geomx.errors import ConfigError

LOCAL = 'engine = "local"'
WHOLE = f'{{ party = "A", serves = ["global"], {LOCAL} }}, {{ party = "B", {LOCAL} }}'


def test_with_sites_a_run_needs_no_secret_of_its_own() -> None:
    assert len(two_parties(f"site=[{WHOLE}]", 'global.addresses=["203.0.113.7:1"]').sites) == 2


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
        (WHOLE.replace(LOCAL, 'hosts = ["-oProxyCommand=x"]', 1), r"hosts\[0\]"),
    ],
)
def test_what_is_wrong_with_sites_is_told(sites: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        two_parties(f"site=[{sites}]", "party.A.workers=3")
