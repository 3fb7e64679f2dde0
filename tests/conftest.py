"""What all tests have in common: one thread of arithmetic each, and no judgement by the clock."""

import gc
import random
import re

import pytest
import torch
from exploring import register
from fault_table import write_table

# The tests that are to cover lines. Tracing makes a test on the virtual clock take twice as long, or more.
COVERING = re.compile(
    r"tests/((codecs|node|rounds|sync|wire)/|train/test_(esync|local_policies|async_policies|row_servers\.py::test_one_)"
    r"|simulation/test_(replicas|overlay)\.py::(?!test_the_storms_would)|.*that_hits_shards)"
)

torch.set_num_threads(1)
gc.set_threshold(100_000, 20, 20)  # hundreds of nodes live in a process and leave few cycles behind
register()


def pytest_runtest_setup() -> None:
    """What a test draws without a seed of its own does not depend on the tests before it."""
    random.seed(0)
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not COVERING.match(item.nodeid):
            item.add_marker(pytest.mark.no_cover)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", metavar="FILE", help="what came of each fault, as JSON")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--fault-table"):
        write_table(config.getoption("--fault-table"), terminalreporter)
