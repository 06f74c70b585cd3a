"""Counts and figures of a capacity answer in words."""

from __future__ import annotations

from math import isfinite

from simulator.planning.criteria import Attainment, Criterion
from simulator.planning.steady_state import Interval
from simulator.summary_words import milliseconds, percent, three_digits


def counted(number: int, noun: str) -> str:
    """``1 replica``, ``2 replicas``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figure_words(criterion: Criterion, figure: Interval) -> str:
    """``410 ms [380, 455]``, in one unit."""
    if isinstance(criterion, Attainment):
        return (
            f"{percent(figure.value)} [{percent(max(0.0, figure.low))}, {percent(min(1.0, figure.high))}]"
        )
    value = milliseconds(figure.value)
    if not isfinite(figure.half_width):
        return f"{value} [no interval]" if isfinite(figure.value) else "beyond all bounds"
    number, _, unit = value.rpartition(" ")
    scale = figure.value / float(number.replace(",", "")) if float(number.replace(",", "")) else 1.0
    low, high = (three_digits(max(0.0, end) / scale) for end in (figure.low, figure.high))
    return f"{number} {unit} [{low}, {high}]"
