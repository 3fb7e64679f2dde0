"""What each site of a run is to run: nodes, machines, addresses, files. Nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geomx.config import Run
from geomx.errors import ConfigError
from geomx.launch.engines import jobs
from geomx.launch.engines.contract import Credentials, Job
from geomx.launch.engines.jobs import jobs_of, with_addresses


def run_of(tmp_path: Path, *sites: str, run: str = "", party: str = "", address: str = "hub:9000") -> Run:
    """paris with 4 workers, tokyo with 3, and these tables of sites."""
    (tmp_path / "train.py").write_text("print('train')\n")
    text = f"""
        run = {{ script = "train.py", arguments = ["--epochs", "3"]{run} }}
        {f'global = {{ addresses = ["{address}"] }}' if address else ""}
        party = [{{ name = "paris", workers = 4{party} }}, {{ name = "tokyo", workers = 3 }}]
        site = [{", ".join(sites)}]
        """
    return Run.parse(text, str(tmp_path / "sites.toml"))


def jobs_for(tmp_path: Path, *sites: str, **more: str) -> list[Job]:
    return jobs_of(
        run_of(tmp_path, *sites, **more), tmp_path / "sites.toml", Credentials({"secret": b"hush"})
    )


PARIS = '{ party = "paris", serves = ["global"], hosts = ["me@p1", "p2"] }'
TOKYO = '{ party = "tokyo", engine = "slurm", workers_each = 2 }'


def test_servers_are_on_the_first_machine_and_workers_shared_evenly(tmp_path: Path) -> None:
    paris, tokyo = jobs_for(tmp_path, PARIS, TOKYO)
    assert {node.name: node.machine for node in paris.nodes} == {
        "global/0": 0, "paris": 0, "paris/0": 0, "paris/1": 0, "paris/2": 1, "paris/3": 1
    }  # fmt: skip
    assert [node.machine for node in tokyo.nodes] == [0, 0, 0, 1]
    assert [node.name for node in paris.nodes if node.vital] == ["global/0"]
    assert [node.name for node in paris.nodes if node.serves] == ["global/0", "paris"]


def test_who_is_dialled_on_another_machine_has_its_name_else_loopback(tmp_path: Path) -> None:
    run = with_addresses(run_of(tmp_path, PARIS, TOKYO))
    assert run.address_of("paris").startswith("p1:")
    assert run.address_of("tokyo").startswith("127.0.0.1:")
    paris, tokyo = jobs_for(tmp_path, PARIS, TOKYO)
    assert paris.nodes[-1].dials == (run.address_of("paris"),)
    assert paris.nodes[1].dials == tokyo.nodes[0].dials == ("hub:9000",)
    own = f"party.tokyo.address={{HOST}}:{run.address_of('tokyo').rpartition(':')[2]}"  # Slurm chooses the machine
    assert all(own in node.argv for node in tokyo.nodes)
    (_, alone) = jobs_for(tmp_path, PARIS, TOKYO.replace(", workers_each = 2", ""))
    assert not any("HOST" in word for node in alone.nodes for word in node.argv)


def test_the_global_server_s_address_must_be_given_unless_all_is_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"global\.addresses"):
        jobs_for(tmp_path, PARIS, TOKYO, address="")
    here = [
        f'{{ party = "{name}", engine = "local"{more} }}'
        for name, more in (("paris", ', serves = ["global"]'), ("tokyo", ""))
    ]
    assert jobs_for(tmp_path, *here, address="")[0].nodes[0].listens[0].startswith("127.0.0.1:")


def test_a_server_that_several_addresses_lead_to_can_be_described_as_its_pod_is_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, PARIS.replace('hosts = ["me@p1", "p2"]', 'engine = "kubernetes image=i"'), TOKYO)
    run = run.changed(['global.addresses=[["a:1", "b:2"]]', "run.on_loss=wait", "store.url=s3://bucket/run"])
    server = jobs_of(run, tmp_path / "sites.toml", Credentials({"secret": b"hush"}))[0].nodes[0]
    given = [word for word in server.argv if word.startswith("global.listen=")]
    assert server.name == "global/0"
    assert given == ['global.listen=[["0.0.0.0:1", "0.0.0.0:2"]]']
    assert run.changed(given).listen_address_of("global/0", 1) == "0.0.0.0:2"


def test_workers_that_reduce_among_themselves_know_the_first_and_their_place_on_the_machine(
    tmp_path: Path,
) -> None:
    paris, _ = jobs_for(tmp_path, PARIS, TOKYO, party=', inside = "collective"')
    last = paris.nodes[-1].environment
    assert (last["RANK"], last["WORLD_SIZE"], last["LOCAL_RANK"], last["LOCAL_WORLD_SIZE"]) == (
        "3",
        "4",
        "1",
        "2",
    )
    assert last["MASTER_ADDR"] == "p1"


def test_files_that_travel_are_the_script_s_and_those_that_are_named(tmp_path: Path) -> None:
    for name in ("models/net.py", "data/x.csv", "data/y.bin", ".git/hook.py", "env/lib.py", "env/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    paris, _ = jobs_for(tmp_path, PARIS, TOKYO, run=', files = ["data/*.csv"]')
    named = {name for name in paris.files if name.startswith("work/")}
    assert named == {"work/train.py", "work/models/net.py", "work/data/x.csv", "work/.geomx-run.json"}
    described = json.loads(paris.files["work/.geomx-run.json"])
    assert described["run"]["secret_file"] == "../secret"
    assert str(tmp_path) not in paris.files["work/.geomx-run.json"].decode()
    assert paris.nodes[-1].argv[-4:] == ("PYTHON", "train.py", "--epochs", "3")


@pytest.mark.parametrize(
    ("run", "script", "fault"),
    [
        (', files = ["nothing/*"]', True, r"run\.files: found nothing/\*"),
        ("", False, r"run\.script: found .*train\.py: no such file"),
    ],
)
def test_files_that_are_not_there_are_told(tmp_path: Path, run: str, script: bool, fault: str) -> None:
    described = run_of(tmp_path, PARIS, TOKYO, run=run)
    if not script:
        (tmp_path / "train.py").unlink()
    with pytest.raises(ConfigError, match=fault):
        jobs_of(described, tmp_path / "sites.toml", Credentials())


def test_more_files_than_can_be_sent_are_told_with_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MOST_BYTES", 1 << 20)
    (tmp_path / "big.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(ConfigError, match=r"2 MiB in 2 files.*1 MiB at most.*big\.bin"):
        jobs_for(tmp_path, PARIS, TOKYO, run=', files = ["big.bin"]')


@pytest.mark.parametrize(
    ("on_loss", "restart", "most"),
    [("", "", 0), (', on_loss = "continue"', "", 3), (', on_loss = "wait"', ", restart = { most = 7 }", 7)],
)
def test_who_dies_is_started_again_where_the_run_goes_on_without_it(
    tmp_path: Path, on_loss: str, restart: str, most: int
) -> None:
    (paris, _) = jobs_for(tmp_path, PARIS.replace(" }", f"{restart} }}"), TOKYO, run=on_loss)
    assert paris.restart.most == most


def test_who_only_looks_needs_the_description_alone(tmp_path: Path) -> None:
    described = run_of(tmp_path, PARIS, TOKYO)
    (tmp_path / "train.py").unlink()
    assert [job.name for job in jobs_of(described, tmp_path / "sites.toml")] == ["paris", "tokyo"]


def test_without_sites_there_is_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \[\[site\]\]"):
        jobs_for(tmp_path, address="127.0.0.1:9000")
