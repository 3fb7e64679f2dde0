"""A run's secret: its file, and who must have one."""

from __future__ import annotations

from pathlib import Path

import pytest

from geomx.config import Run
from geomx.drive.secret import LEAST_CHARACTERS, make_secret, secret_of
from geomx.errors import ConfigError


def run_with(path: Path) -> Run:
    return Run.parse(f'[run]\nsecret_file = "{path}"\n[[party]]\nname = "A"\nworkers = 1\n', "test.toml")


def test_a_secret_is_made_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    make_secret(one)
    make_secret(other)
    assert one.stat().st_mode & 0o777 == 0o600
    assert len(secret_of(run_with(one))) == 64
    assert secret_of(run_with(one)) != secret_of(run_with(other))


def test_a_secret_that_cannot_be_written_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="remove it first"):
        make_secret(path)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="nowhere/secret: found No such file or directory"):
        make_secret(tmp_path / "nowhere" / "secret")


@pytest.mark.parametrize(
    ("mode", "text", "told"),
    [
        (0o644, "x" * 64, "a file of mode 0644; allowed: mode 0600 (others can read it: chmod 600"),
        (0o640, "x" * 64, "a file of mode 0640"),
        (0o600, "x" * (LEAST_CHARACTERS - 1), "15 characters; allowed: 16 or more"),
        (0o600, " \n", "0 characters"),
        (0o600, None, "missing: No such file"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, mode: int, text: str | None, told: str) -> None:
    path = tmp_path / ("missing" if text is None else "secret")
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        secret_of(run_with(path))
    assert "run.secret_file" in str(caught.value)
    assert told in str(caught.value)


PARTY = '[[party]]\nname = "A"\nworkers = 1\n'
TLS = '[tls]\ncertificate = "c"\nkey = "k"\nauthority = "a"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[global]\naddresses = ["hub.example.org:7000"]\n' + PARTY, "global.addresses[0]"),
        ('[global]\naddresses = ["127.0.0.1:7000"]\nlisten = ["0.0.0.0:7000"]\n' + PARTY, "global.listen[0]"),
        (PARTY + 'address = "10.0.0.1:7001"\n', "party[0].address"),
        (PARTY + 'address = "localhost:7001"\nlisten = "[::]:7001"\n', "party[0].listen"),
    ],
)
def test_who_listens_beyond_loopback_needs_a_secret_or_certificates(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Run.parse(text, "test.toml")
    (fault,) = caught.value.faults
    assert fault.where.startswith("run.secret_file")
    assert f"since {key} = " in fault.allowed
    Run.parse('[run]\nsecret_file = "s"\n' + text, "test.toml")
    Run.parse(TLS + text, "test.toml")


@pytest.mark.parametrize("host", ["127.5.5.5", "[::1]", "localhost"])
def test_on_loopback_neither_is_needed(host: str) -> None:
    Run.parse(PARTY + f'address = "{host}:7001"\n', "test.toml")
