"""The files that a description names: the script, certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from config_runs import TWO_PARTIES, fault_of

from geomx import cli
from geomx.config import EVERY_FILE, load_whole

TLS = '[tls]\ncertificate = "c.pem"\nkey = "k.pem"\nauthority = "a.pem"\n'


@pytest.fixture
def with_script(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(f'[run]\nscript = "code/train.py"\n{TWO_PARTIES}')
    (tmp_path / "code").mkdir()
    return tmp_path / "run.toml"


@pytest.fixture
def with_tls(tmp_path: Path) -> Path:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    issued.private_key_pem.write_to_path(tmp_path / "k.pem")
    authority.cert_pem.write_to_path(tmp_path / "a.pem")
    (tmp_path / "k.pem").chmod(0o600)
    (tmp_path / "run.toml").write_text(TLS + TWO_PARTIES)
    return tmp_path / "run.toml"


# -- the script ----------------------------------------------------------------------------------------


def test_a_script_that_is_not_there_is_a_fault_with_the_nearest_file(with_script: Path) -> None:
    folder = with_script.parent
    (folder / "code" / "trian.py").touch()
    fault = fault_of(with_script)
    assert fault.where == "run.script (line 2)"
    assert fault.found == f"{folder}/code/train.py: No such file or directory"
    assert fault.hint == f"did you mean `{folder}/code/trian.py`?"


def test_a_script_that_is_a_folder_is_a_fault_and_one_that_is_there_is_none(with_script: Path) -> None:
    script = with_script.parent / "code" / "train.py"
    script.mkdir()
    assert fault_of(with_script).found == f"the folder {script}"
    script.rmdir()
    script.touch()
    assert load_whole(with_script, needed=("script", "tls")).run.script is not None


def test_a_secret_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(f'[run]\nsecret_file = "paris.secret"\n{TWO_PARTIES}')
    fault = fault_of(run)
    assert fault.where == "run.secret_file (line 2)"
    assert f"geomx secret {tmp_path}/paris.secret" in fault.hint
    secret = tmp_path / "paris.secret"
    secret.mkdir()
    assert "no file" in fault_of(run).found
    secret.rmdir()
    secret.touch(0o600)
    assert "of 0 bytes" in fault_of(run).found
    secret.write_text("x" * 64)
    secret.chmod(0o644)
    assert "chmod 600" in fault_of(run).hint
    secret.chmod(0o600)
    assert load_whole(run, needed=EVERY_FILE).run.secret_file == secret


def test_check_and_run_say_the_same_before_anything_starts(
    with_script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for command in ("check", "run"):
        assert cli.main([command, str(with_script)]) == 2
        told.append(capsys.readouterr())
    assert told[0] == told[1]
    assert "run.script (line 2)" in told[0].err


def test_a_description_can_be_checked_on_a_machine_that_runs_no_node(
    with_script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_script.write_text(f"{with_script.read_text()}\n{TLS}")
    assert cli.main(["check", str(with_script), "--elsewhere"]) == 0
    assert "A/1" in capsys.readouterr().out


# -- certificates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        (0o600, ""),
        (0o644, "everybody can read (mode 0644)"),
        (0o640, "its group can read (mode 0640)"),
        (0o604, "everybody can read (mode 0604)"),
    ],
)
def test_a_private_key_that_others_can_read_is_a_fault(with_tls: Path, mode: int, who: str) -> None:
    key = with_tls.parent / "k.pem"
    key.chmod(mode)
    if not who:
        assert load_whole(with_tls, needed=("script", "tls")).tls.key == key
        return
    fault = fault_of(with_tls)
    assert fault.where == "tls.key (line 3)"
    assert who in fault.found
    assert fault.hint == f"chmod 600 {key}"


def test_a_certificate_that_is_not_there_is_a_fault_with_the_nearest_file(with_tls: Path) -> None:
    folder = with_tls.parent
    (folder / "c.pem").rename(folder / "cc.pem")
    fault = fault_of(with_tls)
    assert (fault.where, fault.found) == ("tls.certificate (line 2)", f"{folder}/c.pem")
    assert fault.hint == f"No such file or directory; did you mean `{folder}/cc.pem`?"


def test_a_key_of_another_certificate_is_a_fault(with_tls: Path) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(with_tls.parent / "k.pem")
    assert fault_of(with_tls).where == "tls.certificate (line 2)"
