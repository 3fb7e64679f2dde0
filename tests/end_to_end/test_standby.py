"""Another process stands by, and takes the place of a global server that dies or stands still: with the same bits."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fault_rows import USUAL
from real_runs import RealRun

from geomx.launch.local.ports import Ports

pytestmark = pytest.mark.processes
STEPS = 60
TAKES_OVER = "goes on from its log"


class Pair(RealRun):
    """A run whose global server has two addresses. Both processes are called by their place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, STEPS)
        self.second = Ports()
        places = [self.address("global/0"), f"127.0.0.1:{self.second.hold()}"]
        self.settings = (
            *USUAL,
            "run.on_loss=wait",
            "run.wait_s=60",
            "limits.start_s=60",
            f"store.url=file://{folder}/store",
            "store.lease_s=1",
            f"global.addresses=[{places}]",
            f"global.listen=[{places}]",
        )

    def stand_by(self) -> None:
        self._spawn("standby", [*self._command("global/0", list(self.settings), []), "--standby"])

    def close(self) -> None:
        super().close()
        self.second.close()


def trained(folder: Path, disturb: Callable[[Pair], None]) -> set[str]:
    """What the workers' weights are in the end."""
    folder.mkdir()
    run = Pair(folder)
    with closing(run):
        run.start(run.nodes, *run.settings)
        run.until("global/0", "listening")
        run.stand_by()
        run.until("standby", "stands by")
        disturb(run)
        run.end_well()
        assert not list((folder / "store").rglob("*-*"))
        return run.weights()


def kill_one_after_the_other(run: Pair) -> None:
    run.until("B/0", "step 10\n")
    run.signal("global/0", signal.SIGKILL)
    run.until("B/0", "step 20\n")
    run.processes["global/0"].join()
    run.start(["global/0"], *run.settings)
    run.until("global/0", "stands by")
    run.until("B/0", "step 30\n")
    run.signal("standby", signal.SIGKILL)
    run.until("global/0", TAKES_OVER)


def stop_and_go_on(run: Pair) -> None:
    run.until("B/0", "step 10\n")
    run.signal("global/0", signal.SIGSTOP)
    run.until("standby", TAKES_OVER)
    run.signal("global/0", signal.SIGCONT)
    (_, said) = run.wait(["global/0"])["global/0"]
    assert "another process" in said
    run.nodes.remove("global/0")
    run.processes["standby"].join()
    assert run.processes["standby"].exitcode == 0, run.report()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The weights of the undisturbed run."""
    return trained(tmp_path_factory.mktemp("standby") / "calm", lambda run: None)


@pytest.mark.parametrize("disturb", [kill_one_after_the_other, stop_and_go_on])
def test_the_weights_are_those_of_the_undisturbed_run(
    tmp_path: Path, disturb: Callable[[Pair], None], calm: set[str]
) -> None:
    assert len(calm) == 1
    assert trained(tmp_path / "disturbed", disturb) == calm
