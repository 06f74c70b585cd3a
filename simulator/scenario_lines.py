"""YAML that remembers where everything stood, without the surprises of YAML 1.1.

`no` and `on` are text, `1e3` is a number, `12:30` is text and `017` is an error, as people expect. Keys are
always text, a key given twice is an error, tags are refused and aliases may not blow a small file up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from simulator.errors import ScenarioError

Key: TypeAlias = str | int
KeyPath: TypeAlias = tuple[Key, ...]
Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"

MOST_BYTES = 1_000_000
MOST_VALUES = 10_000
MOST_LEVELS = 50

WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
WHOLE = re.compile(r"[-+]?[0-9]+")
DECIMAL = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")


class _Loader(yaml.CSafeLoader):
    """Composes nodes whose tag says only whether a scalar was quoted, or which tag was written."""

    def resolve(self, kind: type[yaml.Node], _value: str | None, implicit: tuple[bool, bool]) -> str:
        if kind is yaml.ScalarNode:
            return "plain" if implicit[0] else "quoted"
        return "collection"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written. ``order`` sorts places as a person meets them: source, then line."""

    order: tuple[int, int]
    text: str


class Flaw(NamedTuple):
    """Something wrong with the value at ``path``, about which nothing more needs to be said."""

    place: Place
    sentence: str
    path: KeyPath


@dataclass(slots=True)
class Source:
    """The plain values of one YAML text, the place of every key path, and what is wrong with single values.

    ``rank`` sorts sources. A source without numbered lines is one place, as a ``--set`` option is.
    """

    name: str
    rank: int = 0
    numbered: bool = True
    values: Value = None
    places: dict[KeyPath, Place] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)
    count: int = 0

    def place(self, line: int) -> Place:
        """The place of a line, counted from 0."""
        return Place((self.rank, line), f"{self.name}:{line + 1}" if self.numbered else self.name)

    def blame(self, line: int, problem: str, path: KeyPath) -> None:
        self.flaws.append(Flaw(self.place(line), problem, path))

    def refuse(self, line: int, problem: str) -> ScenarioError:
        """An error after which nothing else in the text can be judged."""
        return ScenarioError(f"{self.place(line).text}: {problem}")


def read_text(path: Path) -> str:
    """Text of a scenario file, or one line saying why it cannot be one."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ScenarioError(f"{path}: is a folder, not a scenario file")
        if size > MOST_BYTES:
            raise ScenarioError(f"{path}: is {size / 1e6:.0f} MB, too large for a scenario; is it a trace?")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(
            f"{path}: is not UTF-8 text (byte {error.start + 1}), so not a scenario"
        ) from None
    except OSError as error:
        raise ScenarioError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    if not text.strip():
        raise ScenarioError(f"{path}: is empty; a scenario gives at least model, hardware and workload")
    return text


def parse(source: Source, text: str, path: KeyPath = ()) -> None:
    """Fill ``source`` with the values of ``text``, as found under the key ``path``."""
    node = _compose(source, text)
    if node is not None:
        source.values = _build(source, node, path)


def _compose(source: Source, text: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
    except UnicodeEncodeError:
        raise source.refuse(0, "is not UTF-8 text") from None
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark is not None else 0
        raise source.refuse(line, _syntax_problem(error, text, line)) from None
    except yaml.reader.ReaderError as error:
        raise _control_character(source, text, error) from None
    finally:
        loader.dispose()


def _control_character(source: Source, text: str, error: yaml.reader.ReaderError) -> ScenarioError:
    line = text.count("\n", 0, error.position)
    return source.refuse(line, "holds a control character; is this a text file?")


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    lines = text.split("\n")
    if line < len(lines) and re.match(r" *\t", lines[line]):
        return "a tab cannot indent YAML; use spaces"
    if error.problem is not None and "another document" in error.problem:
        return "one file holds one scenario: remove the second '---' and what follows"
    return f"not YAML: {error.problem or error}"


def _build(source: Source, node: yaml.Node, path: KeyPath) -> Value:
    line = node.start_mark.line
    source.places.setdefault(path, source.place(line))
    source.count += 1
    if source.count > MOST_VALUES or len(path) > MOST_LEVELS:
        raise source.refuse(
            line, "holds too many or too deeply nested values; do aliases (*name) multiply?"
        )
    if node.tag not in ("plain", "quoted", "collection"):
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        source.blame(line, f"tag {tag} is not supported; leave it out", path)
        return None
    if isinstance(node, yaml.MappingNode):
        return {key: _build(source, value, (*path, key)) for key, value in _pairs(source, node, path)}
    if isinstance(node, yaml.SequenceNode):
        return [_build(source, item, (*path, index)) for index, item in enumerate(node.value)]
    return _scalar(source, node, path)


def _pairs(source: Source, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
    first: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line
        if not isinstance(key, yaml.ScalarNode):
            source.blame(line, "a key must be text, not a list or a mapping", path)
        elif key.value in first:
            earlier = f" (first on line {first[key.value] + 1})" if source.numbered else ""
            source.blame(line, f"duplicate key '{dotted((*path, key.value))}'{earlier}", (*path, key.value))
        else:
            first[key.value] = line
            source.places.setdefault((*path, key.value), source.place(line))
            yield key.value, value


def _scalar(source: Source, node: yaml.Node, path: KeyPath) -> Value:
    text: str = node.value
    if node.tag == "quoted":
        return text
    if LEADING_ZERO.fullmatch(text):
        problem = f"{dotted(path)} must not start with 0: write {int(text)}, or '{text}' for text"
        source.blame(node.start_mark.line, problem, path)
        return None
    return plain_value(text)


def plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means: YAML 1.2's core schema in decimal."""
    if text in WORDS:
        return WORDS[text]
    if WHOLE.fullmatch(text) and len(text) < 400:
        return int(text)
    if DECIMAL.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``workload.lengths.uniform.prompt[1]``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


class _Dumper(yaml.SafeDumper):
    """Writes what `parse` reads back: text that would be taken for something else is quoted."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    if not text.isprintable():
        style = '"'  # the only style in which every line break survives
    elif not isinstance(plain_value(text), str) or LEADING_ZERO.fullmatch(text):
        style = "'"
    else:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(values: Mapping[str, object]) -> str:
    """YAML of plain values, keys in the order given."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def flow(value: object) -> str:
    """A plain value on one line, as an option takes it: ``8``, ``vllm-v1``, ``{preset: sharegpt}``."""
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=MOST_BYTES,
    )
    return text.removesuffix("...\n").strip()
