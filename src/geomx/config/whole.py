"""A description with everything that it names: what commands load before anything starts.

`Run.load` reads a description alone. Here what it names is looked for as well: its policy, its codecs and their
parameters, its files. Every fault has the line of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geomx.config.compatibility.choice_rules import problems_of_choices
from geomx.config.files import Needed, file_problems
from geomx.config.reading.document import read_text
from geomx.config.run import Run, document_of
from geomx.errors import ConfigError


def load_whole(path: str | Path, overrides: Sequence[str] = (), needed: tuple[Needed, ...] = ()) -> Run:
    """Read a description, and see to it that what it names is there and goes together.

    Args:
        path: of a `.toml`, or of a `.json` that `Run.save` wrote.
        overrides: `key=value`, in place of the file's.
        needed: which of its files must be on this machine.

    Raises:
        ConfigError: every fault, each with its key and line. What keys name is looked for when all keys are right.
    """
    source = str(path)
    document, faults = document_of(read_text(Path(path)), source, overrides)
    run = Run.of_document(document, source, faults)
    if problems := [*problems_of_choices(run), *file_problems(run, needed)]:
        raise ConfigError(source, document.faults(problems))
    return run
