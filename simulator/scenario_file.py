"""Reads a scenario from YAML and options, and says all that is wrong with it at once, line by line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import ValidationError

from simulator.engine_settings import DEFAULT_POLICY, Engine
from simulator.errors import ScenarioError, UserError
from simulator.scenario import Scenario
from simulator.scenario_lines import Flaw, KeyPath, Place, Source, Value, dotted, dump, parse, read_text
from simulator.scenario_messages import Complaint, complaints, shown

PATH_KEYS = ("file", "empirical", "model", "profile")
"""Keys of a scenario, wherever they stand, that may name a file or folder."""


class Loaded(NamedTuple):
    """A scenario and what was decided while reading it that one should know."""

    scenario: Scenario
    notes: tuple[str, ...]


class Draft(NamedTuple):
    """The text of a scenario before it is read: what errors call it, and where its paths start.

    ``name``: of the scenario where the text gives none.
    """

    label: str
    text: str
    folder: Path
    name: str
    numbered: bool = True


def load_scenario(path: Path, overrides: Sequence[str] = (), seed: int | None = None) -> Scenario:
    """The scenario in a file, with ``key=value`` overrides and a seed laid over it."""
    return read_scenario(path, overrides, seed).scenario


def read_scenario(
    path: Path, overrides: Sequence[str] = (), seed: int | None = None, varied: Sequence[str] = ()
) -> Loaded:
    """The scenario in a file, with ``--set`` overrides, a seed and then ``--vary`` values laid over it.

    Where they switch the policy, keys that the file sets for its own policy and the new one lacks are left
    out, with a note. Raises one ScenarioError that holds a line for each thing wrong, in the order in which
    they stand.
    """
    return read_draft(draft_in(path), overrides, seed, varied)


def draft_in(path: Path) -> Draft:
    """The scenario in a file as it stands."""
    return Draft(str(path), read_text(path), path.parent, path.stem)


def draft_of(values: Mapping[str, object], folder: Path = Path()) -> Draft:
    """A scenario that a program made, its values as a file would give them."""
    return Draft("scenario", dump(values), folder, "unnamed", numbered=False)


def read_draft(
    draft: Draft, overrides: Sequence[str] = (), seed: int | None = None, varied: Sequence[str] = ()
) -> Loaded:
    """As `read_scenario`, of a text at hand."""
    source = Source(draft.label, numbered=draft.numbered)
    parse(source, draft.text)
    if source.values is None and not source.flaws:
        raise ScenarioError(
            f"{draft.label}: is empty; a scenario gives at least model, hardware and workload"
        )
    if not isinstance(source.values, dict):
        raise ScenarioError(
            f"{draft.label}:1: a scenario is a mapping of keys such as 'model: ...', nothing else"
        )
    options = [(f"--set {text}", text) for text in overrides]
    if seed is not None:
        options.append((f"--seed {seed}", f"seed={seed}"))
    options += [(f"--vary {text}", text) for text in varied]
    own_policy = _policy(source.values)
    for rank, (label, text) in enumerate(options, start=1):
        _lay_over(source, source.values, Source(label, rank, numbered=False), text)
    notes = _leave_out_foreign_keys(source, source.values, own_policy)
    source.values.setdefault("name", draft.name)
    return Loaded(_validated(source, draft.folder), notes)


def load_placed(draft: Draft, overrides: Sequence[str] = (), seed: int | None = None) -> Loaded:
    """As `read_draft`, with every path that starts at the scenario's folder made absolute."""
    scenario, notes = read_draft(draft, overrides, seed)
    values = _placed(scenario.model_dump(mode="json", exclude_none=True), draft.folder)
    return Loaded(Scenario.model_validate(values), notes)


def _placed(values: dict[str, Value], folder: Path) -> dict[str, Value]:
    placed: dict[str, Value] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            placed[key] = _placed(value, folder)
        elif isinstance(value, list):
            placed[key] = [_placed(item, folder) if isinstance(item, dict) else item for item in value]
        else:
            named = key in PATH_KEYS and isinstance(value, str)
            placed[key] = _absolute(str(value), folder) if named else value
    return placed


def _absolute(name: str, folder: Path) -> str:
    path = folder / Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _policy(values: dict[str, Value]) -> str | None:
    """The policy that the values ask for, if it can be told."""
    engine = values.get("engine", {})
    policy = engine.get("policy", DEFAULT_POLICY) if isinstance(engine, dict) else None
    return policy if isinstance(policy, str) else None


def _leave_out_foreign_keys(
    source: Source, values: dict[str, Value], own_policy: str | None
) -> tuple[str, ...]:
    """Where options switched the policy, drop the file's keys that only its own policy has."""
    engine, policy = values.get("engine"), _policy(values)
    known = _keys_of(policy)
    if policy == own_policy or not known or not isinstance(engine, dict):
        return ()
    touched = {
        place[1]
        for place, where in source.places.items()
        if len(place) > 1 and place[0] == "engine" and where.order[0] > 0
    }
    own = _keys_of(own_policy)
    foreign = [key for key in engine if key in own and key not in known and key not in touched]
    for key in foreign:
        del engine[key]
    return tuple(f"the file's engine.{key} is left out: no key of this policy" for key in foreign)


def _keys_of(policy: str | None) -> Collection[str]:
    """Keys of the engine section under a policy; none where there is no such policy."""
    fields = (settings.model_fields for settings in get_args(Engine))
    return next((keys for keys in fields if keys["policy"].default == policy), ())


def to_yaml(scenario: Scenario) -> str:
    """The scenario with every default written out; reading it back gives an equal scenario."""
    return dump(scenario.model_dump(mode="json", exclude_none=True))


def _lay_over(source: Source, values: dict[str, Value], option: Source, text: str) -> None:
    """Set one ``key=value`` in the values, remembering that an option said so."""
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or "" in path:
        raise option.refuse(0, "must be KEY=VALUE, such as engine.max_num_seqs=64")
    parse(option, value, path)
    for depth, part in enumerate(path[:-1], start=1):
        child = values.get(part)
        if child is None:
            child = values[part] = {}
            source.places[path[:depth]] = option.place(0)
        if not isinstance(child, dict):
            option.blame(0, f"{dotted(path[:depth])} holds no keys, it is {shown(child)}", path[:depth])
            child = {}
        values = child
    values[path[-1]] = option.values
    _take_places(source, option, path)


def _take_places(source: Source, option: Source, path: KeyPath) -> None:
    """What an option says replaces whatever stood at and under its key, its problems included."""
    depth = len(path)
    kept = {place: where for place, where in source.places.items() if place[:depth] != path}
    source.places = {**kept, path: option.place(0), **option.places}
    source.flaws = [flaw for flaw in source.flaws if flaw.path[:depth] != path] + option.flaws


def _validated(source: Source, folder: Path) -> Scenario:
    try:
        scenario = Scenario.model_validate(source.values)
        found = list(_outside(scenario, folder))
    except ValidationError as error:
        found = list(complaints(error.errors(include_url=False), Scenario.model_json_schema()))
    else:
        if not found and not source.flaws:
            return scenario
    flaws = source.flaws + [
        Flaw(_place(source, complaint), complaint.sentence, complaint.keys[0])
        for complaint in found
        if not _covered(source, complaint.keys[0])
    ]
    flaws.sort(key=lambda flaw: flaw.place.order)
    raise ScenarioError("\n".join(f"{flaw.place.text}: {flaw.sentence}" for flaw in flaws))


def _place(source: Source, complaint: Complaint) -> Place:
    """The blamed key that an option set last, else the first one written, else what should hold it."""
    written = [source.places[key] for key in complaint.keys if key in source.places]
    options = [place for place in written if place.order[0] > 0]
    if written:
        return options[-1] if options else written[0]
    key = complaint.keys[0]
    return next(
        source.places[key[:depth]] for depth in range(len(key), -1, -1) if key[:depth] in source.places
    )


def _covered(source: Source, key: KeyPath) -> bool:
    """Whether something has already been said about this value or one around it."""
    return any(flaw.path and flaw.path == key[: len(flaw.path)] for flaw in source.flaws)


def _outside(scenario: Scenario, folder: Path) -> Iterator[Complaint]:
    """Names and files outside the scenario that are unknown, missing or do not fit."""
    from simulator.hardware import load_hardware
    from simulator.models import load_model
    from simulator.profile import find_profile

    yield from _complaint(("hardware",), lambda: load_hardware(scenario.hardware))
    for key, group in scenario.groups():
        if group.hardware is not None:
            yield from _complaint((*key, "hardware"), partial(load_hardware, group.hardware))
        if group.profile not in (None, "auto", "roofline"):
            yield from _complaint((*key, "profile"), partial(find_profile, group.profile, folder))
    yield from _complaint(("model",), lambda: load_model(model_path(scenario.model, folder)))
    if scenario.profile not in ("auto", "roofline"):
        yield from _complaint(("profile",), lambda: find_profile(scenario.profile, folder))
    arrivals, lengths = scenario.workload.arrivals, scenario.workload.lengths
    if arrivals.process == "trace":
        yield from _missing_file(("workload", "arrivals", "file"), arrivals.file, folder, folders=True)
    if lengths.empirical is not None:
        yield from _missing_file(("workload", "lengths", "empirical"), lengths.empirical, folder)


def model_path(model: str, folder: Path) -> str:
    """A scenario's model as `load_model` wants it: a path is taken from the scenario's folder."""
    path = folder / Path(model).expanduser()
    return str(path) if path.exists() else model


def _complaint(key: KeyPath, look: Callable[[], object]) -> Iterator[Complaint]:
    try:
        look()
    except UserError as error:
        yield Complaint((key,), str(error))


def _missing_file(key: KeyPath, name: str, folder: Path, *, folders: bool = False) -> Iterator[Complaint]:
    found = folder / name
    if not (found.is_file() or (folders and found.is_dir())):
        kind = "is a folder" if found.is_dir() else "no such file"
        yield Complaint((key,), f"{dotted(key)}: {kind}: {found}")
