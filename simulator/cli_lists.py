"""What a scenario may name, as rows for ``servetwin list``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, object]


def _models() -> Sequence[Row]:
    from simulator.models import describe_models

    return describe_models()


def _hardware() -> Sequence[Row]:
    from simulator.hardware import describe_hardware

    return describe_hardware()


def _profiles() -> Sequence[Row]:
    from simulator.profile import shipped_profiles

    return [
        {
            "name": profile.name,
            "kind": profile.kind,
            "model": profile.model,
            "hardware": profile.hardware,
            "dtype": profile.dtype,
            "tensor_parallel": profile.tensor_parallel,
        }
        for profile in shipped_profiles()
    ]


def _policies() -> Sequence[Row]:
    return list(_alternatives("engine", "policy"))


def _workloads() -> Sequence[Row]:
    from simulator.workloads.presets import preset_descriptions

    presets = [
        {"key": "lengths.preset", "name": name, "description": text}
        for name, text in preset_descriptions().items()
    ]
    return [*_arrivals(), *presets]


def _arrivals() -> Iterator[Row]:
    for row in _alternatives("arrivals", "process"):
        yield {"key": "arrivals.process", **row}


def _formats() -> Sequence[Row]:
    from simulator.workloads.export import WRITERS
    from simulator.workloads.traces.trace import format_descriptions

    read = format_descriptions()
    turns = "Mooncake's rows, and turns with their delays"
    only_written = {name: turns for name in WRITERS if name not in read}
    return [
        {
            "name": name,
            "read": "yes" if name in read else "",
            "written": "yes" if name in WRITERS else "",
            "description": text,
        }
        for name, text in {**read, **only_written}.items()
    ]


def _alternatives(field: str, discriminator: str) -> Iterator[Row]:
    """Names and descriptions of the alternatives of a scenario's field, from its JSON schema."""
    from simulator.scenario import Scenario

    schema: dict[str, Any] = Scenario.model_json_schema()
    holder = schema if field in schema["properties"] else schema["$defs"]["WorkloadSettings"]
    for option in holder["properties"][field]["oneOf"]:
        properties = schema["$defs"][option["$ref"].rpartition("/")[2]]["properties"]
        named = properties[discriminator]
        yield {"name": named["const"], "description": named["description"]}


LISTINGS: Mapping[str, Callable[[], Sequence[Row]]] = {
    "models": _models,
    "hardware": _hardware,
    "profiles": _profiles,
    "policies": _policies,
    "workloads": _workloads,
    "formats": _formats,
}
