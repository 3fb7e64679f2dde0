"""Every error survives a pickle, with its message and its fields."""

from __future__ import annotations

import inspect
import pickle

import pytest

from geomx import errors
from geomx.errors import ConfigError, Fault, FileUnwritable, GeomxError, NodeLost, RunFailed

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, GeomxError)]
SPECIAL = {
    ConfigError: ConfigError("run.toml", [Fault("wan", "1", "2", "3")]),
    FileUnwritable: FileUnwritable("report.json", "No space left on device", "try another one"),
    NodeLost: NodeLost("A/0", "silence"),
    RunFailed: RunFailed("B", "a fault", "NotFinite"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_as_what_it_was(kind: type[GeomxError]) -> None:
    error = SPECIAL.get(kind) or kind("what happened")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
