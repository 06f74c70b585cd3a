"""A first scenario file in which every key is explained, written from the descriptions of the keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from simulator.errors import UserError
from simulator.scenario import Scenario
from simulator.scenario_lines import dump
from simulator.settings import Settings

WIDTH = 100
COMMENT_COLUMN = 34
EXAMPLE = {
    "name": "chat on one H100",
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": "h100-sxm",
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 8.0},
        "lengths": {"preset": "sharegpt"},
        "requests": 1000,
    },
    "slo": {"ttft_ms": 200.0, "tpot_ms": 50.0},
}


def write_starter(path: Path) -> None:
    """Write the example scenario, explained; what is there already is never replaced."""
    text = starter(path.name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path}: exists already; name another file") from None


def starter(name: str) -> str:
    """The example as YAML: keys that it sets, and commented out the keys that it leaves alone."""
    scenario = Scenario.model_validate(EXAMPLE)
    head = (
        f"# Run it:          servetwin simulate {name}",
        f"# Change a key:    servetwin simulate {name} --set workload.arrivals.rate_per_s=20",
        f"# What to deploy:  servetwin capacity {name}",
        "# Only model, hardware and workload are required; keys behind a # show what else there is.",
        "",
    )
    return "\n".join((*head, *_lines(scenario, 0))) + "\n"


def _lines(settings: Settings, depth: int, kinds: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys of one level, each with what it means. ``kinds``: what the first key may be instead."""
    indent = "  " * depth
    for key, field in type(settings).model_fields.items():
        value, meaning = getattr(settings, key), _meaning(field, kinds)
        kinds = ()
        if isinstance(value, Settings):
            yield from _explained(f"{indent}{key}:", field.description or "")
            yield from _lines(value, depth + 1, _kinds(field))
        elif value is None:
            yield from _explained(f"{indent}# {key}:", meaning)
        else:
            yield from _explained(indent + dump({key: value}).strip(), meaning)


def _explained(text: str, meaning: str) -> Iterator[str]:
    """A line with its comment behind it, which goes on below where it is long."""
    first, *more = textwrap.wrap(meaning, WIDTH - COMMENT_COLUMN - 4, break_on_hyphens=False) or [""]
    yield f"{text:{COMMENT_COLUMN}} # {first}" if first else text
    for line in more:
        yield f"{'':{COMMENT_COLUMN}} #   {line}"


def _meaning(field: FieldInfo, kinds: tuple[str, ...]) -> str:
    words = kinds
    for option in (field.annotation, *get_args(field.annotation)):
        if get_origin(option) is Literal and len(get_args(option)) > 1:
            words = get_args(option)
    return "; one of: ".join(filter(None, (field.description, " | ".join(words))))


def _kinds(field: FieldInfo) -> tuple[str, ...]:
    """What tells the alternatives of a key apart: every process of arrivals, every policy of an engine."""
    if not isinstance(field.discriminator, str):
        return ()
    tags = (option.model_fields[field.discriminator].annotation for option in get_args(field.annotation))
    return tuple(word for tag in tags for word in get_args(tag))
