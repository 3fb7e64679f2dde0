"""The command line: what is understood, what is refused, and which status it ends with."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import geomx
from geomx import cli

TOML = """
[run]
script = "train.py"
[[party]]
name = "A"
workers = 2
"""
SHOW_PLACE = """
import json, os, sys
print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith("GEOMX_")}]))
"""


@pytest.fixture
def toml(tmp_path: Path) -> str:
    path = tmp_path / "demo.toml"
    path.write_text(TOML)
    (tmp_path / "train.py").touch()
    return str(path)


WITHOUT_TORCH = """
import json, sys, geomx
assert [m for m in sys.modules if m.startswith(("geomx", "torch"))] == ["geomx"]
from geomx.cli import main
for words, expected in json.loads(sys.argv[1]):
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    assert (status or 0) == expected, words
    assert not {"torch", "rich"} & sys.modules.keys(), words
"""


def test_what_needs_no_torch_does_not_import_it_nor_does_importing_geomx(toml: str) -> None:
    """Nor does a server that cannot listen; an address that is taken is told at once."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        taken = ["serve", toml, "--role", "global", f'global.addresses=["{address}"]', "wan.codec_up=fp16"]
        commands = [
            (["--help"], 0),
            (["--version"], 0),
            (["run", "--help"], 0),
            (["check", toml], 0),
            (taken, 2),
        ]
        argv = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: geomx") == 2
    assert done.stderr.startswith(f"geomx: global/0: 1 fault\n  - global.addresses[0]: found {address}")


def test_every_public_name_is_there() -> None:
    assert len(geomx.__all__) <= 15
    for name in set(geomx.__all__) - {"join", "LiveRun"}:
        assert getattr(geomx, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        _ = geomx.jion


def test_check_prints_the_tree_and_what_is_to_be_said_of_it(
    toml: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hfa = ["sync.policy=hfa k1=20 k2=10", "lan.codec_up=fp16"]
    assert cli.main(["check", toml, "run.shards=2", *hfa]) == 0
    out, err = capsys.readouterr()
    assert not err
    for node in ("global/0", "global/1", "A/0", "A/1"):
        assert node in out
    assert out.endswith(
        '\n\nnote: with sync.policy = "hfa k1=20 k2=10" the means inside a party are sent dense, since they are means '
        'of weights; lan.codec_up = "fp16" applies to exchanges with the global servers only\n'
    )


def test_faults_of_the_description_are_one_message_and_status_2(
    toml: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", toml, "run.shards=0", "sync.polisy=fsa"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "run.shards" in err
    assert "sync.polisy" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", cli.EXAMPLES)
def test_help_ends_with_examples_that_are_understood(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*(["inspect"] if name == "codec" else []), name, "--help"])
    _, _, shown = capsys.readouterr().out.partition("\nexamples:\n")
    assert len(shown.splitlines()) == len(cli.EXAMPLES[name])
    for line in shown.splitlines():
        assert callable(cli._parse(shlex.split(line)[1:]).action)


@pytest.mark.parametrize("where", [["run.shards=2", "--keep"], ["--keep", "run.shards=2"]])
def test_settings_may_stand_anywhere(toml: str, where: list[str]) -> None:
    arguments = cli._parse(["run", toml, *where, "--report", "r.json", "run.seed=3"])
    assert set(arguments.overrides) == {"run.shards=2", "run.seed=3"}
    assert (arguments.keep, arguments.report) == (True, Path("r.json"))


@pytest.mark.parametrize(
    "words", ["", "fly", "run", "check x.toml --nope", "serve x.toml", "run x.toml --keep stray"]
)
def test_wrong_usage_ends_with_status_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2
    assert "usage: geomx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("serve {} --role global --shard 1", "--shard: found 1"),
        ("serve {} --role global --party A", "--party: found A"),
        ("serve {} --role local", "--party: found nothing"),
        ("serve {} --role local --party B", "B"),
        ("serve {} --role local --party A --shard 0", "--shard: found 0"),
        ("worker {} --party A --rank 2 -- true", "--rank: found 2"),
        ("worker {} --party B --rank 0 -- true", "B"),
        ("worker {} --party A -- true", "--rank: found nothing; allowed: 0 to 1"),
        ("worker {} --party A --rank 0", "found nothing"),
        ("worker {} --party A --rank 0 -- /nowhere/python", "found /nowhere/python"),
        ("run {} run.script=trian.py", "trian.py: No such file"),
        (
            "check {} run.on_loss=wait optimizer.place=workers",
            'run.on_loss (override `run.on_loss=wait`): found "wait"; allowed: "stop"',
        ),
        ("run {} run.script=", "run.script"),
        ("run {} run.script=.", "found the folder"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(
    toml: str, words: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.format(toml).split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("geomx: ")
    assert fault in err


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(
    toml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')")
    assert cli.main(["run", toml, "--report", f"{toml}/deep/r.json"]) == 2
    assert f"--report: found {toml}/deep/r.json (Not a directory)" in capsys.readouterr().err


def test_a_job_of_torchrun_takes_the_workers_ranks_from_there(
    toml: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda _, argv, environment: executed.append((argv, environment)))
    monkeypatch.setenv("GEOMX_RANK", "5")
    cli.main(["worker", toml, "--party", "A", "party.A.inside=collective", "--", "torchrun", "train.py"])
    ((argv, environment),) = executed
    assert argv == ["torchrun", "train.py"]
    place = {name: value for name, value in environment.items() if name.startswith("GEOMX_")}
    assert place == {"GEOMX_RUN": toml, "GEOMX_SET": "party.A.inside=collective", "GEOMX_PARTY": "A"}


def test_a_worker_is_its_command_in_its_place(toml: str, tmp_path: Path) -> None:
    words = ["worker", toml, "--party", "A", "run.seed=7", "--rank", "1", 'run.arguments=["a b"]', "--"]
    environment = os.environ | {"GEOMX_RECORDS": str(tmp_path / "r"), "GEOMX_RANK": "5"}
    argv = [sys.executable, "-m", "geomx", *words, sys.executable, "-c", SHOW_PLACE, "x=1", "--rank", "9"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    arguments, place = json.loads(done.stdout)
    assert arguments == ["x=1", "--rank", "9"]
    assert place == {
        "GEOMX_RUN": toml,
        "GEOMX_SET": "run.seed=7 'run.arguments=[\"a b\"]'",
        "GEOMX_PARTY": "A",
        "GEOMX_RANK": "1",
        "GEOMX_RECORDS": str(tmp_path / "r"),
    }


def test_ctrl_c_is_status_130_without_a_traceback(
    toml: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    monkeypatch.setattr(cli, "describe", lambda run: os.kill(os.getpid(), signal.SIGINT))
    try:
        assert cli.main(["check", toml]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""


@pytest.mark.processes
def test_who_reads_may_have_enough(tmp_path: Path) -> None:
    """As `geomx ... | head` does."""
    (tmp_path / "run.toml").write_text("[[party]]\nname = 'p'\nworkers = 100\n")
    command = [sys.executable, "-m", "geomx", "check", str(tmp_path / "run.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (process.returncode, told) == (0, b"")


def test_check_refuses_what_attach_would_refuse_whatever_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "optimizer.place = 'workers'\nworker.overlap = 'forward'\n[[party]]\nname = 'p'\nworkers = 1\n"
    (tmp_path / "run.toml").write_text(text)
    assert cli.main(["check", str(tmp_path / "run.toml")]) == 1
    assert 'overlap = "forward" needs an optimizer on the global servers' in capsys.readouterr().err
