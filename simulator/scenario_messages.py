"""What is wrong with a scenario, in words: pydantic's findings as lines that name the key and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import log10
from typing import Any, NamedTuple, TypeAlias

from simulator.scenario_lines import KeyPath, Value, dotted

Schema: TypeAlias = Mapping[str, Any]

LARGEST_SHOWN = 10**20  # from here on, the magnitude of a whole number says enough


class Complaint(NamedTuple):
    """One thing wrong: the keys to blame, the first of them most, and the sentence about it."""

    keys: tuple[KeyPath, ...]
    sentence: str


def complaints(errors: Iterable[Mapping[str, Any]], schema: Schema) -> Iterator[Complaint]:
    """Turn the errors of one pydantic validation into complaints.

    ``schema`` is the JSON schema of what was validated: it says which parts of an error's location are
    keys of the file (the others name the alternative of a union), what keys exist and what they mean.
    """
    for error in errors:
        path, node = locate(error["loc"], schema)
        if error["type"] == "combination":
            yield from _combinations(error, path)
        elif error["type"] == "extra_forbidden":
            yield _unknown_key(path, error["loc"], schema)
        elif error["type"] in ("union_tag_invalid", "union_tag_not_found"):
            yield _alternative(error, path)
        else:
            chosen_by = _discriminator(error["loc"][:-2], schema)
            keys = (path, (*path[:-1], chosen_by)) if chosen_by else (path,)
            yield Complaint(keys, f"{dotted(path)} {_sentence(error, node)}")


def locate(location: Iterable[str | int], schema: Schema) -> tuple[KeyPath, Schema]:
    """Key path in the file of an error's location, and the schema node of what stands there."""
    node: Schema = schema
    path: KeyPath = ()
    for part in location:
        node = resolved(node, schema)
        if "discriminator" in node and part in node["discriminator"]["mapping"]:
            node = {"$ref": node["discriminator"]["mapping"][part]}
            continue
        path = (*path, part)
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return path, node


def _discriminator(location: tuple[str | int, ...], schema: Schema) -> str | None:
    """The key that chose between alternatives at a location, if such a key there is."""
    _, node = locate(location, schema)
    choice = node.get("discriminator")
    return str(choice["propertyName"]) if choice else None


def resolved(node: Schema, schema: Schema) -> Schema:
    """The node itself, with a reference followed and what is optional taken as given."""
    options = [option for option in node.get("anyOf", ()) if "$ref" in option or "items" in option]
    if options:
        node = options[0]
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        found: Schema = schema["$defs"][name]
        return found
    return node


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` for the nearest known word, or nothing."""
    names = list(known)
    longer = [name for name in names if name.startswith(word + "_")]
    near = longer or difflib.get_close_matches(word, names, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def listed(words: Iterable[str], last: str = "or") -> str:
    """``a, b or c``."""
    *most, final = words
    return f"{', '.join(most)} {last} {final}" if most else final


def shown(value: object) -> str:
    """A value as a message quotes it: short, and as it is written in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return _shown_number(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if isinstance(value, list):
        return _shown_list(value)
    if isinstance(value, dict):
        return "a mapping"
    return "empty" if value is None else str(value)


def _shown_number(value: float) -> str:
    if isinstance(value, int):
        exponent = round(value.bit_length() * log10(2))
        return str(value) if abs(value) < LARGEST_SHOWN else f"{'-' if value < 0 else ''}1e{exponent}"
    return str(value) if value.is_integer() and abs(value) < LARGEST_SHOWN else f"{value:g}"


def _shown_list(values: list[object]) -> str:
    """The first few, as long as they are no lists themselves."""
    first = ["[...]" if isinstance(value, list) and value else shown(value) for value in values[:4]]
    return f"[{', '.join(first)}{', ...' if len(values) > 4 else ''}]"


def _combinations(error: Mapping[str, Any], path: KeyPath) -> Iterator[Complaint]:
    for keys, problem in error["ctx"]["problems"]:
        paths = tuple((*path, *_parts(key)) for key in keys)
        yield Complaint(paths, f"{dotted(paths[0])} {problem}")


def _parts(key: str) -> KeyPath:
    """A dotted key as a path; ``[0]`` is a place in a list."""
    return tuple(int(part[1:-1]) if part[0] == "[" else part for part in key.split(".")) if key else ()


def _unknown_key(path: KeyPath, location: tuple[str | int, ...], schema: Schema) -> Complaint:
    key = str(path[-1])
    _, parent = locate(location[:-1], schema)
    known = list(resolved(parent, schema)["properties"])
    sentence = f"{dotted(path)} is not a known key"
    if near := did_you_mean(key, known):
        return Complaint((path,), sentence + near)
    homes = [home for home in _homes(key, schema) if home != dotted(path[:-1])]
    if len(location) > len(path) and dotted(path[:-1]) in _homes(key, schema):
        return Complaint(
            (path,), f"{dotted(path)} is not a key of {location[-2]}; it knows {listed(known, 'and')}"
        )
    if homes:
        return Complaint((path,), f"{sentence} (did you mean {homes[0] + '.' if homes[0] else ''}{key}?)")
    return Complaint((path,), f"{sentence}; known are {listed(known, 'and')}")


def _homes(key: str, schema: Schema) -> list[str]:
    """Every dotted path under which ``key`` is known, alternatives included, shallowest first."""
    found: list[str] = []
    _collect(key, schema, schema, "", found)
    return sorted(dict.fromkeys(found), key=lambda home: home.count("."))


def _collect(key: str, node: Schema, schema: Schema, path: str, found: list[str]) -> None:
    node = resolved(node, schema)
    for option in node.get("oneOf", ()):
        _collect(key, option, schema, path, found)
    properties = node.get("properties", {})
    if key in properties:
        found.append(path)
    for name, child in properties.items():
        _collect(key, child, schema, f"{path}.{name}" if path else name, found)


def _alternative(error: Mapping[str, Any], path: KeyPath) -> Complaint:
    discriminator = error["ctx"]["discriminator"].strip("'")
    expected = [tag.strip("'") for tag in error["ctx"].get("expected_tags", "").split(", ") if tag]
    path = (*path, discriminator)
    if not expected:
        return Complaint((path,), f"{dotted(path)} is required")
    tag = error["ctx"]["tag"]
    value = error["input"].get(discriminator, tag) if isinstance(error["input"], dict) else tag
    near = did_you_mean(str(tag), expected)
    return Complaint((path,), f"{dotted(path)} must be {listed(expected)}, not {shown(value)}{near}")


def _sentence(error: Mapping[str, Any], node: Schema) -> str:
    template = SENTENCES.get(error["type"])
    if template is not None:
        return template(error["input"], error.get("ctx", {}), node)
    message = str(error["msg"])
    return f"is not right: {message[:1].lower()}{message[1:]}, not {shown(error['input'])}"


def _a_number(kind: str) -> Callable[[Value, Mapping[str, Any], Schema], str]:
    def sentence(value: Value, _context: Mapping[str, Any], node: Schema) -> str:
        described, _, _ = node.get("description", "").partition("; vllm serve")
        meaning = f" ({described})" if described else ""
        quotes = "; leave out the quotes" if isinstance(value, str) and _reads_as_number(value) else ""
        return f"must be {kind}{meaning}, not {shown(value)}{quotes}"

    return sentence


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _some_text(value: Value, _context: Mapping[str, Any], _node: Schema) -> str:
    quotes = "; put it in quotes" if isinstance(value, (bool, int, float)) else ""
    return f"must be text, not {shown(value)}{quotes}"


def _one_of(value: Value, context: Mapping[str, Any], _node: Schema) -> str:
    options = [option.strip("'") for option in context["expected"].replace(" or ", ", ").split(", ")]
    near = did_you_mean(value, options) if isinstance(value, str) else ""
    return f"must be {listed(options)}, not {shown(value)}{near}"


def _bound(sign: str, bound: str) -> Callable[[Value, Mapping[str, Any], Schema], str]:
    return lambda value, context, _node: f"must be {sign} {context[bound]:g}, not {shown(value)}"


def _a_list(value: Value, _context: Mapping[str, Any], node: Schema) -> str:
    entries = "mappings" if any("items" in option for option in node.get("anyOf", ())) else "numbers"
    return f"must be a list of {'two ' if 'maxItems' in node else ''}{entries}, not {shown(value)}"


def _plain(wanted: str) -> Callable[[Value, Mapping[str, Any], Schema], str]:
    return lambda value, _context, _node: f"must be {wanted}, not {shown(value)}"


SENTENCES: Mapping[str, Callable[[Any, Mapping[str, Any], Schema], str]] = {
    "missing": lambda _value, _context, _node: "is required",
    "expected": lambda value, context, _node: f"must be {context['wanted']}, not {shown(value)}",
    "literal_error": _one_of,
    "int_type": _a_number("a whole number"),
    "int_from_float": _a_number("a whole number"),
    "float_type": _a_number("a number"),
    "finite_number": _a_number("a finite number"),
    "bool_type": _plain("true or false"),
    "string_type": _some_text,
    "string_too_short": _plain("some text"),
    "greater_than": _bound(">", "gt"),
    "greater_than_equal": _bound(">=", "ge"),
    "less_than": _bound("<", "lt"),
    "less_than_equal": _bound("<=", "le"),
    "model_type": _plain("a mapping of keys"),
    "model_attributes_type": _plain("a mapping of keys"),
    "dict_type": _plain("a mapping of keys"),
    "tuple_type": _a_list,
    "too_long": _plain("a list of two numbers"),
}
