"""Iteration logs of a running engine: results of our own live runs, and per-step counters as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibration.black_box import LIMITS, Iteration, as_measurements, left_out_errors, refuse_thin_log
from calibration.measurements import Header, Measurements, decoded, read_lines
from simulator.engine.plan import IterationShape
from simulator.errors import ProfileError
from simulator.scenario_messages import shown

SUMS = ("prefill_tokens", "prefill_pairs", "decodes", "context_tokens")
ROWS = ("tokens", "context")
HINT = (
    f"a step gives duration_s and either {', '.join(SUMS)} or, per request, lists {' and '.join(ROWS)} "
    "(tokens computed, keys stored before)"
)
NS_PER_S = 1e9
LONGEST_S = 1e6
MOST = 10**15  # above every count that means anything
UNTIMED = {"iteration_ns": 0, "row_ns": 0, "derivation": "part of dense: fitted to whole iterations"}


def import_run(source: Path, header: Header) -> Measurements:
    """Operator measurements from a folder that ``servetwin run --output`` wrote."""
    from simulator.results import read_results

    results = read_results(source)
    table = results.iterations
    lines = zip(*(table[name].tolist() for name in table), strict=True)
    iterations = [_of_run(dict(zip(table, line, strict=True))) for line in lines]
    return _imported(iterations, replace(header, source=f"{header.source}: {source.name}"))


def _of_run(row: Mapping[str, Any]) -> Iteration:
    """One row of the iteration table; of its equal repeats, each with a longer context, the middle one."""
    repeats, decodes = row["repeats"], row["decodes"]
    shape = IterationShape(
        row["prefills"],
        row["prefill_tokens"],
        row["prefill_pairs"],
        decodes,
        row["context_tokens"] + decodes * (repeats - 1) // 2,
    )
    return Iteration(shape, (row["end_ns"] - row["start_ns"]) / repeats)


def import_steps(source: Path, header: Header) -> Measurements:
    """Operator measurements from JSON lines, one per step of an engine; see HINT for their fields."""
    lines = read_lines(source)
    iterations = [
        _step(decoded(line, f"{source}:{number}"), f"{source}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    return _imported(iterations, replace(header, source=f"{header.source}: {source.name}"))


def _step(values: Mapping[str, Any], where: str) -> Iteration:
    duration = values.get("duration_s")
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 < duration < LONGEST_S:
        raise ProfileError(
            f"{where}: duration_s must be a number of seconds > 0 and below {LONGEST_S:g}, "
            f"not {shown(duration)}; {HINT}"
        )
    rows = any(name in values for name in ROWS)
    shape = _shape_of_lists(values, where) if rows else _shape_of_sums(values, where)
    return Iteration(shape, duration * NS_PER_S)


def _shape_of_lists(values: Mapping[str, Any], where: str) -> IterationShape:
    tokens, context = (_counts(values.get(name), name, where) for name in ROWS)
    if len(tokens) != len(context):
        told = f"{len(tokens)} tokens and {len(context)} context"
        raise ProfileError(f"{where}: tokens and context must be equally long, not {told}; {HINT}")
    return shape_of_rows(tokens, context)


def shape_of_rows(tokens: Sequence[int], context: Sequence[int]) -> IterationShape:
    """Per request the tokens that a step computed and the keys stored before; one token is a decode.

    A request of which nothing was computed took no part.
    """
    prompts = [
        (count, start)
        for count, start in zip(tokens, context, strict=True)
        if count > 1 or (count and not start)
    ]
    decodes = [start + 1 for count, start in zip(tokens, context, strict=True) if count == 1 and start]
    return IterationShape(
        len(prompts),
        sum(count for count, _ in prompts),
        sum(count * start + count * (count + 1) // 2 for count, start in prompts),
        len(decodes),
        sum(decodes),
    )


def _counts(values: Any, name: str, where: str) -> list[int]:
    if not isinstance(values, list):
        raise ProfileError(f"{where}: {name} must be a list of whole numbers, not {shown(values)}; {HINT}")
    if wrong := [value for value in values if not _is_count(value)]:
        bounds = f"whole numbers from 0 to {MOST:.0e}"
        raise ProfileError(f"{where}: {name} must be a list of {bounds}, not of {shown(wrong[0])}; {HINT}")
    return list(values)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _shape_of_sums(values: Mapping[str, Any], where: str) -> IterationShape:
    prefills = {"prefills": int(values.get("prefill_tokens") not in (None, 0))}
    for name in (*SUMS, "prefills"):
        value = {**prefills, **values}.get(name)
        if not _is_count(value):
            raise ProfileError(
                f"{where}: {name} must be a whole number from 0 to {MOST:.0e}, not {shown(value)}; {HINT}"
            )
    prompt, pairs, decodes, context = (int(values[name]) for name in SUMS)
    shape = IterationShape(int(values.get("prefills", prompt > 0)), prompt, pairs, decodes, context)
    _refuse_impossible(shape, where)
    return shape


def _refuse_impossible(shape: IterationShape, where: str) -> None:
    """Sums that no step has, such as prompts without tokens or pairs without prompts."""
    prompts = (shape.prefills, shape.prefill_tokens, shape.prefill_pairs)
    if any(prompts) and not all(prompts):
        told = "prefills {}, prefill_tokens {} and prefill_pairs {}".format(*prompts)
        raise ProfileError(f"{where}: {told} do not go together: all must be 0, or none; {HINT}")
    if bool(shape.decodes) != bool(shape.context_tokens):
        told = f"decodes {shape.decodes} and context_tokens {shape.context_tokens}"
        raise ProfileError(f"{where}: {told} do not go together: both must be 0, or neither; {HINT}")


def _imported(iterations: Sequence[Iteration], header: Header) -> Measurements:
    """The log as operators, with its own left-out error and no host term beside it."""
    busy = [each for each in iterations if each.shape.prefills + each.shape.decodes and each.ns > 0]
    refuse_thin_log(busy)
    return as_measurements(
        busy, replace(header, checks={"iteration": left_out_errors(busy)}, limits=LIMITS, host=UNTIMED)
    )
