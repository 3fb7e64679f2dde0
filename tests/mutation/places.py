"""Where the code can be changed to a purpose, by which of Cosmic Ray's operators, and which places are drawn."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

Position = tuple[int, int]  # line, column
FOR_READERS = {"final", "overload", "override"}  # decorators


@dataclass
class Place:
    """One spot, and all that can be made of it: an operator's name, and the how-manyth of its uses in the file."""

    file: str
    line: int
    key: str  # of the seed and the text around it: decides whether the place is drawn
    statement: int  # its first line
    at_import: bool  # outside of functions
    mutations: list[tuple[str, int]] = field(default_factory=list)


def draw(found: Mapping[str, list[Place]], number: int) -> dict[str, list[Place]]:
    """Of each package's places its share of the number, those with the lowest keys."""
    total = sum(map(len, found.values()))
    exact = {package: number * len(places) / total for package, places in found.items()}
    share = {package: int(part) for package, part in exact.items()}
    for package in sorted(exact, key=lambda one: share[one] - exact[one])[: number - sum(share.values())]:
        share[package] += 1
    return {
        package: sorted(places, key=lambda place: place.key)[: share[package]]
        for package, places in found.items()
    }


def mutated(source: str, place: Place) -> tuple[str, str]:
    """The operator that the place's key chooses, and the file after it; one that leaves no Python is passed over."""
    for name, occurrence in random.Random(place.key).sample(place.mutations, len(place.mutations)):
        code = mutate_code(source, operators()[name], occurrence)
        try:
            with warnings.catch_warnings(action="ignore"):
                compile(code, place.file, "exec")
            return name.rpartition("/")[2], code
        except SyntaxError:
            continue
    raise ValueError(f"{place.file}:{place.line}: no operator leaves a program there")


@cache
def operators() -> dict[str, Operator]:
    """Those that need no arguments."""
    kinds = {name: cosmic_ray.plugins.get_operator(name) for name in cosmic_ray.plugins.operator_names()}
    return {name: kind() for name, kind in kinds.items() if not kind.arguments()}


def places(root: Path, package: str, seed: int) -> list[Place]:
    """Of all files in a folder and the folders in it."""
    found: dict[str, Place] = {}
    for path in sorted((root / package).rglob("*.py")):
        source = path.read_text()
        module, lines = ast.parse(source), source.splitlines()
        idle = [span(part) for part in without_meaning(module)]
        here: dict[Position, Place] = {}
        for name, occurrence, position in uses(source):
            if any(first <= position < last for first, last in idle):
                continue
            if position not in here:
                line, column = position
                text = f"{seed} {column} " + "\n".join(lines[max(line - 2, 0) : line + 1])
                while (key := hashlib.sha256(text.encode()).hexdigest()) in found:
                    text += " again"
                file = str(path.relative_to(root))
                here[position] = found[key] = Place(file, line, key, *standing(module, line))
            here[position].mutations.append((name, occurrence))
    return list(found.values())


def uses(source: str) -> Iterator[tuple[str, int, Position]]:
    """All that the operators can do to a file; the number is what `mutate_code` calls an occurrence."""
    nodes = list(ast_nodes(get_ast(source)))
    for name, operator in operators().items():
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        yield from ((name, occurrence, start) for occurrence, start in enumerate(starts))


def without_meaning(module: ast.Module) -> Iterator[ast.AST | None]:
    """What is there for readers and type checkers. Docstrings are no operator's business."""
    for node in ast.walk(module):
        if isinstance(node, ast.arg | ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.returns
            yield from (
                one for one in node.decorator_list if ast.unparse(one).rpartition(".")[2] in FOR_READERS
            )
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield node
    for node in module.body:  # Event = Started | Opened
        if isinstance(node, ast.Assign) and re.fullmatch("[A-Z][A-Za-z]*[a-z]", ast.unparse(node.targets[0])):
            yield node.value


def span(node: ast.AST | None) -> tuple[Position, Position]:
    """From where to where; a decorator's begins with its @."""
    if not isinstance(node, ast.expr | ast.stmt):
        return (0, 0), (0, 0)
    return (node.lineno, node.col_offset - 1), (node.end_lineno or 0, node.end_col_offset or 0)


def standing(module: ast.Module, line: int) -> tuple[int, bool]:
    """The first line of the statement around a line, and whether no function is around it."""
    statements = [node for node in ast.walk(module) if isinstance(node, ast.stmt)]
    around = [node for node in statements if node.lineno <= line <= (node.end_lineno or 0)]
    functions = [node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    at_import = not any(node.body[0].lineno <= line for node in functions)
    return max((node.lineno for node in around), default=line), at_import
