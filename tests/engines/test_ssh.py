"""The engine `ssh` on machines that are only reached over a network, by real sshds."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_machines import ROOT, SYSTEMD, Machines, copy_examples, machines, needs_machines
from transcripts import play

from geomx import __version__
from geomx.config import Run
from geomx.launch.provision import Keys

pytestmark = [needs_machines, pytest.mark.engines, pytest.mark.lab]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("engines"), "paris", "tokyo", "boston") as made:
        yield made


def exported(path: Path | str) -> str:
    """The line of a site's `setup` that has its Python find geomx."""
    return f"export PYTHONPATH={path} OMP_NUM_THREADS=1"


def described(ground: Machines, name: str, epochs: int = 3, **site: str) -> Path:
    """A run of three sites; `site`: more keys of tokyo's table, as TOML."""
    folder = ground.folder / name
    folder.mkdir()
    copy_examples(folder)
    source = exported(ROOT / "src")
    common = {
        "engine": f'"ssh config={ground.config}"',
        "python": f'"{sys.executable}"',
        "setup": f'["{source}"]',
        "restart": "{ most = 3 }",
    }
    lines = [
        f'run = {{ script = "cnn.py", arguments = ["--epochs", "{epochs}"], on_loss = "continue" }}',
        f'global = {{ addresses = ["{ground.lab.address("paris")}:9000"] }}',
    ]
    for party in ("paris", "tokyo", "boston"):
        lines += ["[[party]]", f'name = "{party}"', "workers = 1"]
    for party in ("paris", "tokyo", "boston"):
        table = {"party": f'"{party}"', "hosts": f'["{party}"]', **common}
        table |= site if party == "tokyo" else {}
        lines += ["[[site]]", *(f"{key} = {value}" for key, value in table.items())]
        lines += ['serves = ["global"]'] if party == "paris" else []
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")
    return folder / f"{name}.toml"


@pytest.mark.grids  # `test_three_engines.py` has one by ssh, too
def test_a_run_over_three_machines_from_up_to_down(ground: Machines) -> None:
    file = str(described(ground, "whole", epochs=6))
    up = ground.geomx("up", file)
    assert (up.returncode, up.stderr) == (0, "")
    assert "tokyo (ssh): tokyo, tokyo/0" in up.stdout
    assert ground.geomx("up", file).stdout.count("runs already") == 3
    ground.on("tokyo", "pkill -9 -f '[c]nn.py'")
    attached = ground.geomx("attach", file, "--plain")
    assert attached.returncode == 0, attached.stdout + attached.stderr
    states = ground.geomx("status", file).stdout
    assert states.count(" ended ") == 7
    assert re.search(r"tokyo/0 .* ended +\d:\d\d +1 ", states)
    assert (
        "keeper: tokyo/0 was killed by SIGKILL; it is started again"
        in ground.geomx("logs", file, "tokyo/0").stdout
    )
    records = ground.folder / "whole" / "records"
    assert ground.geomx("down", file, "--records", str(records)).returncode == 0
    report = ground.geomx("report", file, str(records), "--json", str(records / "report.json"))
    assert report.returncode == 0, report.stderr
    assert json.loads((records / "report.json").read_text())["ended"] == "well"
    for name in ("paris", "tokyo", "boston"):
        assert ground.on(name, "ls ~/.geomx").returncode
        assert ground.on(name, "pgrep -f 'keeper.p[y]|geom[x] (serve|worker)|cnn.p[y]'").stdout == ""


def test_an_up_that_cannot_start_everywhere_starts_nothing_and_says_what_to_do(ground: Machines) -> None:
    older = f"{ground.folder / 'older'}:{ROOT / 'src'}"
    (ground.folder / "older" / "geomx-0.0.1.dist-info").mkdir(parents=True)
    (ground.folder / "older" / "geomx-0.0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: geomx\nVersion: 0.0.1\n"
    )
    bare = f'"{Path(sys.executable).resolve()}"'  # without this environment's packages
    bad = {
        "away": ({"hosts": '["nowhere"]'}, "nobody knows this name"),
        "deaf": ({"hosts": '["paris2"]'}, "no sshd listens there"),
        "bare": ({"python": '"python9"'}, "no Python `python9` .*: install it, or name another one"),
        "past": ({"setup": "[]", "python": bare}, "geomx is not installed for"),
        "full": ({"folder": '"/proc/geomx"'}, "0 MB are free at /proc: 500 are needed"),
        "old": (
            {"setup": f'["{exported(older)}"]'},
            f"geomx 0.0.1 is installed, and {__version__} here: install the same version on all machines",
        ),
        "late": ({"setup": '["modul load cuda"]'}, "its `setup` failed: .*modul: (command )?not found"),
    }
    if (library := next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)) is not None:
        ahead = f"export LD_PRELOAD={library} FAKETIME=+1h"
        words = r"its clock is 3,(59|60)\d s off: let it be set by NTP"
        bad["ahead"] = ({"setup": f'["{exported(ROOT / "src")}", "{ahead}"]'}, words)
    for name, (site, words) in bad.items():
        file = str(described(ground, name, **site))
        up = ground.geomx("up", file)
        assert up.returncode == 1, name
        assert up.stderr.startswith("geomx: nothing was started, since\n  tokyo (ssh): "), up.stderr
        assert re.search(words, up.stderr), up.stderr
        assert up.stdout == ""
    for name in ("paris", "boston"):
        assert ground.on(name, "ls ~/.geomx").returncode


def test_the_page_s_transcript(ground: Machines) -> None:
    folder = ground.folder / "page"
    folder.mkdir()
    instead = {
        "PARIS": ground.lab.address("paris"),
        "hosts = [": f'engine = "ssh config={ground.config}"\nhosts = [',
    }
    play("on-ssh.md", folder, ground.geomx, instead)


def test_a_machine_that_shows_another_key_and_a_port_that_is_taken_are_told(ground: Machines) -> None:
    known = (ground.folder / "known_hosts").read_text()
    at, theirs = ground.lab.address("tokyo"), (ground.folder / "paris.key.pub").read_text()
    false = [line for line in known.splitlines(keepends=True) if not line.startswith(f"{at} ")]
    (ground.folder / "false_hosts").write_text("".join([*false, f"{at} {theirs}"]))
    (ground.folder / "false_config").write_text(
        ground.config.read_text().replace("known_hosts", "false_hosts")
    )
    file = str(described(ground, "posing", engine=f'"ssh config={ground.folder / "false_config"}"'))
    up = ground.geomx("up", file)
    assert (up.returncode, up.stdout) == (1, "")
    assert "tokyo (ssh): tokyo: its host key is another one than known_hosts has: find out why" in up.stderr

    first, second = (str(described(ground, name, epochs=60)) for name in ("first", "second"))
    assert ground.geomx("up", first).returncode == 0
    try:
        ground.until(first, "global/0", "listening at")
        up = ground.geomx("up", second)
        assert (up.returncode, up.stdout) == (1, "")
        assert (
            f"no server can listen at {ground.lab.address('paris')}:9000 (Address already in use)"
            in up.stderr
        )
    finally:
        for file in (first, second):
            assert ground.geomx("down", file).returncode == 0


@pytest.mark.grids
@pytest.mark.parametrize("after_s", [0.8, 1.3, 1.8])
def test_where_the_user_s_machine_dies_within_up_status_tells_and_up_goes_on(
    ground: Machines, after_s: float
) -> None:
    file = str(described(ground, f"gone{after_s}", epochs=60))
    try:
        ground.call(["timeout", "-s", "KILL", str(after_s), sys.executable, "-m", "geomx", "up", file])
        assert ground.geomx("status", file).stdout.count("(ssh)") == 7
        again = ground.geomx("up", file)
        assert (again.returncode, again.stderr) == (0, "")
        ground.until(file, "paris/0", "epoch  1")
        assert ground.geomx("status", file).stdout.count(" running ") == 7
    finally:
        assert ground.geomx("down", file).returncode == 0


REFUSED = {
    "revoked": (
        "TLS: CERTIFICATE_VERIFY_FAILED (certificate revoked)",
        "TLS: SSLV3_ALERT_CERTIFICATE_REVOKED",
    ),
    "of another node": ("its certificate does not name it", "its certificate does not name it"),
    "expired": (
        "TLS: CERTIFICATE_VERIFY_FAILED (certificate has expired)",
        "TLS: SSLV3_ALERT_CERTIFICATE_EXPIRED",
    ),
}


@pytest.mark.grids
def test_a_certificate_that_does_not_count_is_refused_and_both_sides_say_why(ground: Machines) -> None:
    path = described(ground, "certified", epochs=60)
    file, keys = str(path), path.with_suffix(".keys")

    def pair(node: str) -> dict[str, str]:
        return {
            end: (keys / "nodes" / f"{node.replace('/', '.')}.{end}").read_text() for end in ("pem", "key")
        }

    def shows(pair: dict[str, str]) -> None:
        """Tokyo's worker dies, and shows this certificate when it is started again."""
        for end, content in pair.items():
            put = f"cat > ~/.geomx/certified/tokyo.0/tls/tokyo.0.{end} <<'END'\n{content}END"
            assert ground.on("tokyo", put).returncode == 0
        assert ground.on("tokyo", "pkill -9 -f '[c]nn.py'").returncode == 0

    def both_say(why: str) -> None:
        server, worker = REFUSED[why]
        ground.until(file, "tokyo", server)
        ground.until(file, "tokyo/0", worker)

    assert ground.geomx("up", file).returncode == 0
    try:
        ground.until(file, "paris/0", "epoch  2")
        told = ground.geomx("provision", file, "--revoke", "tokyo/0").stdout
        assert "list of revoked certificates is in place: paris (ssh), tokyo (ssh), boston (ssh)" in told
        both_say("revoked")
        secret = (keys / "secret").read_text().strip()
        for name in ("paris", "tokyo", "boston"):
            assert ground.on(name, f"ps -eo args | grep '[{secret[0]}]{secret[1:]}'").stdout == ""
            assert ground.on(name, f"grep -r {secret} ~/.geomx/certified/*/logs").stdout == ""
            assert ground.on(name, "find ~/.geomx -perm /077").stdout == ""
        boston = pair("boston/0")
        Keys(Run.load(path), path).renew(days=0)
        shows(pair("tokyo/0"))
        both_say("expired")
        shows(boston)
        both_say("of another node")
    finally:
        assert ground.geomx("down", file).returncode == 0
    up = ground.geomx("up", file)
    assert (up.returncode, up.stdout) == (1, "")
    assert up.stderr.startswith(f"geomx: nothing was started: `geomx provision {file} --renew`, since\n")


@pytest.mark.grids
def test_a_keeper_is_a_unit_of_the_user_s_systemd_where_there_is_one(ground: Machines) -> None:
    if lacking := [name for name in (SYSTEMD, "/usr/bin/dbus-daemon") if not Path(name).exists()]:
        pytest.skip(f"no {', '.join(lacking)}: apt install systemd dbus")
    ground.start("paris3", managed=True)
    file = str(described(ground, "unit", epochs=60, hosts='["paris3"]'))
    unit = "geomx-unit-tokyo.0"
    assert f"kept by paris3: systemd, as {unit}" in ground.geomx("up", file).stdout
    try:
        ground.until(file, "paris/0", "epoch  1")
        ask = "XDG_RUNTIME_DIR=/run/user/0 systemctl --user is-active"
        assert ground.on("paris3", f"{ask} {unit}").stdout == "active\n"
        ground.on("paris3", "pkill -9 -f '[c]nn.py'")
        ground.until(file, "tokyo/0", "it is started again")
    finally:
        assert ground.geomx("down", file).returncode == 0
    assert ground.on("paris3", f"{ask} {unit}").stdout == "inactive\n"
    assert ground.on("paris3", "pgrep -f 'keeper.p[y]|cnn.p[y]'").stdout == ""
