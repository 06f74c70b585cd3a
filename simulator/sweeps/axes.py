"""What a sweep varies: ``KEY=V1,V2,...``, ranges such as ``1:16:1`` and ``1:256:x2``, spans to search."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from math import prod
from typing import NamedTuple

from simulator.alternatives import parse_vary
from simulator.errors import UserError

MOST_POINTS = 100_000
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER})(?::(.+))?")
FACTOR = re.compile(r"x(.+)")
FORMS = "LOW:HIGH:STEP, LOW:HIGH:xFACTOR or LOW:HIGH:log"


class Span(NamedTuple):
    """Every number from ``low`` to ``high``, or every whole one; ``log``: spread by ratio."""

    low: float
    high: float
    whole: bool
    log: bool


class Axis(NamedTuple):
    """One key and what it may be: values as written, or, where a search chooses, a span."""

    key: str
    values: tuple[str, ...]
    span: Span | None = None


def parse_axis(text: str, *, search: bool = False) -> Axis:
    """One ``--vary`` option. A grid takes every value of a range, a search any number of its span."""
    vary = parse_vary(text)
    only = RANGE.fullmatch(vary.values[0]) if len(vary.values) == 1 else None
    if search and only is not None and only[3] in (None, "log"):
        return Axis(vary.key, (), _span(text, only))
    values = tuple(value for written in vary.values for value in _expanded(text, written))
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise UserError(f"--vary {text}: {twice} is given twice")
    return Axis(vary.key, values)


def axes_of(texts: Sequence[str], *, search: bool = False) -> tuple[Axis, ...]:
    """All that is varied, each key once."""
    axes = tuple(parse_axis(text, search=search) for text in texts)
    if not axes:
        raise UserError("sweep: needs --vary KEY=V1,V2,..., such as --vary engine.max_num_seqs=32:512:x2")
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UserError(f"--vary {twice}: is varied twice; give all its values at once: {twice}=V1,V2,...")
    return axes


def axes_from(vary: Mapping[str, str | Sequence[object]], *, search: bool = False) -> tuple[Axis, ...]:
    """What a program varies: for each key a list of values, or text as ``--vary`` takes it."""
    from simulator.scenario_lines import flow

    axes = []
    for key, values in vary.items():
        if isinstance(values, str):
            axes.append(parse_axis(f"{key}={values}", search=search))
        else:
            axes.append(Axis(key, tuple(flow(value) for value in values)))
    if not axes or not all(axis.values or axis.span for axis in axes):
        raise UserError("sweep: every key that varies needs values, such as {'replicas': [1, 2, 4]}")
    return tuple(axes)


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Every point of the grid, the first key changing slowest."""
    sizes = [len(axis.values) for axis in axes]
    if prod(sizes) > MOST_POINTS:
        told = " x ".join(map(str, sizes))
        raise UserError(
            f"--vary: {told} values give {prod(sizes):,} points, more than {MOST_POINTS:,}; "
            "use coarser ranges, or --search N to try N of them"
        )
    keys = [axis.key for axis in axes]
    return (dict(zip(keys, row, strict=True)) for row in product(*(axis.values for axis in axes)))


def _span(text: str, found: re.Match[str]) -> Span:
    low, high = _bounds(text, found)
    whole = "." not in found[0] and "e" not in found[0].lower()
    log = found[3] == "log"
    if log and low <= 0:
        raise UserError(f"--vary {text}: a logarithmic range starts above 0, not at {low}")
    return Span(float(low), float(high), whole, log)


def _expanded(text: str, written: str) -> Iterator[str]:
    """The values that a range stands for; anything else is itself."""
    found = RANGE.fullmatch(written)
    if found is None:
        yield written
        return
    low, high = _bounds(text, found)
    step = "x2" if found[3] == "log" else found[3] or "1"
    factor = FACTOR.fullmatch(step)
    size = _number(text, factor[1] if factor else step)
    if (factor and (size <= 1 or low <= 0)) or size <= 0:
        raise UserError(
            f"--vary {text}: {written} never gets from {low} to {high}; "
            "a step is above 0, a factor above 1 and what it multiplies above 0"
        )
    value = low
    for _ in range(MOST_POINTS + 1):
        if value > high:
            return
        yield _plain(value)
        value = value * size if factor else value + size
    raise UserError(f"--vary {text}: {written} holds more than {MOST_POINTS:,} values")


def _bounds(text: str, found: re.Match[str]) -> tuple[Decimal, Decimal]:
    low, high = Decimal(found[1]), Decimal(found[2])
    if high < low:
        raise UserError(f"--vary {text}: a range goes upwards, not from {low} to {high}")
    return low, high


def _number(text: str, written: str) -> Decimal:
    if re.fullmatch(NUMBER, written) is None:
        raise UserError(f"--vary {text}: {written!r} is no step; a range is {FORMS}")
    return Decimal(written)


def _plain(value: Decimal) -> str:
    """Without an exponent and without zeros at its end, so that 0.30 is 0.3."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
