"""Which scenarios stand side by side: the grid that ``--vary KEY=V1,V2,...`` options span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

from simulator.errors import ScenarioError, UserError
from simulator.scenario import Scenario
from simulator.scenario_file import read_scenario
from simulator.scenario_lines import plain_value

MOST_ALTERNATIVES = 64
EXAMPLE = "engine.policy=static,vllm-v1"
OPENING = {"[": "]", "{": "}"}


class Vary(NamedTuple):
    """One key and the values, as written, that it takes in turn."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One combination of varied values: the scenario that it gives, or why there is none."""

    name: str
    values: Mapping[str, str]
    scenario: Scenario | None
    notes: tuple[str, ...] = ()
    reason: str = ""


def parse_vary(text: str) -> Vary:
    """``KEY=V1,V2,...``: values are parted by commas outside brackets and quotes."""
    key, equals, written = text.partition("=")
    values = tuple(value.strip() for value in _split(written))
    if not equals or not key.strip() or values == ("",):
        raise UserError(f"--vary {text}: must be KEY=V1,V2,..., such as {EXAMPLE}")
    if "" in values:
        raise UserError(
            f"--vary {text}: value {values.index('') + 1} of {len(values)} is empty; write null for none"
        )
    return Vary(key.strip(), values)


def _split(text: str) -> Iterator[str]:
    """The parts of a text between its commas, but for those within brackets or quotes."""
    start, closing, quote = 0, "", ""
    for index, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and text[start:index].rstrip()[-1:] in ("", "[", "{", ":", ","):
            quote = sign
        elif sign in OPENING:
            closing = OPENING[sign] + closing
        elif closing and sign == closing[0]:
            closing = closing[1:]
        elif sign == "," and not closing:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def read_alternatives(
    path: Path, varied: Sequence[str], overrides: Sequence[str] = (), seed: int | None = None
) -> list[Alternative]:
    """Every combination of the varied values, the first key changing slowest.

    A combination whose values do not go together is an alternative with a reason; a value that no
    combination accepts is an error of the input, as is a mistake in the file.
    """
    grid = [parse_vary(text) for text in varied]
    _check_grid(grid)
    combinations = list(product(*(vary.values for vary in grid)))
    keys = [vary.key for vary in grid]
    names = _names(keys, combinations)
    alternatives = [
        _read(path, name, dict(zip(keys, values, strict=True)), overrides, seed)
        for name, values in zip(names, combinations, strict=True)
    ]
    _refuse_hopeless_values(grid, alternatives)
    return alternatives


def _check_grid(grid: Sequence[Vary]) -> None:
    keys = [vary.key for vary in grid]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UserError(f"--vary {twice}: is varied twice; give all its values at once: {twice}=V1,V2,...")
    if "seed" in keys:
        raise UserError("--vary seed: seeds are no alternatives; --repeat N runs each with N seeds")
    sizes = [len(vary.values) for vary in grid]
    count = prod(sizes)
    if count > MOST_ALTERNATIVES:
        sum_ = " x ".join(map(str, sizes))
        told = f"{sum_} values give {count}" if len(sizes) > 1 else str(count)
        raise UserError(f"--vary: {told} alternatives; at most {MOST_ALTERNATIVES} stand side by side")
    if count == 1:
        (vary, *_) = grid
        raise UserError(
            f"--vary {vary.key}={vary.values[0]}: one alternative compares with nothing; "
            f"give two values or more, such as {EXAMPLE}"
        )


def _names(keys: Sequence[str], combinations: Sequence[tuple[str, ...]]) -> list[str]:
    """Words speak for themselves, numbers need the end of their key, and what is ambiguous all of it."""
    names = [
        " ".join(_named(key, value) for key, value in zip(keys, values, strict=True))
        for values in combinations
    ]
    if len(set(names)) == len(set(combinations)):
        return names
    return [
        " ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
        for values in combinations
    ]


def _named(key: str, value: str) -> str:
    if isinstance(plain_value(value), str) and value[0] not in "[{":
        return value.strip("'\"") or value
    return f"{key.rpartition('.')[2]}={value}"


def _read(
    path: Path, name: str, values: Mapping[str, str], overrides: Sequence[str], seed: int | None
) -> Alternative:
    varied = [f"{key}={value}" for key, value in values.items()]
    try:
        scenario, notes = read_scenario(path, overrides, seed, varied)
    except ScenarioError as error:
        return Alternative(name, values, None, reason=str(error))
    return Alternative(name, values, scenario, notes)


def _refuse_hopeless_values(grid: Sequence[Vary], alternatives: Sequence[Alternative]) -> None:
    """Raise what is said about values with which no combination gives a scenario, each line once."""
    lines: dict[str, None] = {}
    for vary in grid:
        for value in vary.values:
            concerned = [one for one in alternatives if one.values[vary.key] == value]
            if all(one.scenario is None for one in concerned):
                lines.update(dict.fromkeys(concerned[0].reason.splitlines()))
    if lines:
        raise ScenarioError("\n".join(lines))
