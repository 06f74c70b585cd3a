"""A cost profile: how long each operator of one model takes on one kind of GPU, and who measured it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn

from simulator.errors import ProfileError

FORMAT = "servetwin-profile/1"
CHECKSUM = "checksum"
Kind = Literal["measured", "imported", "roofline"]
LARGEST = 1e18
"""Above every time (30 years in ns) and every count that means anything."""
TOKEN_OPERATORS = ("dense", "experts", "all_reduce")
"""Operators whose time depends only on the tokens computed in an iteration, prompt and answer alike."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Time in ns of all layers together, at rising knots; straight lines between them."""

    knots: tuple[float, ...]
    ns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Attention of prompt chunks as a curve over *effective pairs*.

    Effective pairs = query-key pairs + ``pairs_per_token`` x tokens + ``pairs_per_chunk`` x chunks: the
    two weights stand for the masked part of the diagonal tiles and for tiles that a short chunk leaves
    empty. ``keys_per_token``: the longest mean context of a query that was measured. In a share of the
    layers (``windowed_share``) a query sees at most ``window_keys`` keys.
    """

    pairs_per_token: float
    pairs_per_chunk: float
    curve: Curve
    keys_per_token: float
    window_keys: int = 0
    windowed_share: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of decoding rows: ``ns[i][j]`` for ``rows[i]`` rows that each read ``contexts[j]`` keys.

    A row of ``ns`` may be shorter than ``contexts``: what did not fit into memory was not measured.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    ns: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything the clock needs to know of one (model, hardware, dtype, tensor parallelism)."""

    name: str
    kind: Kind
    model: str
    hardware: str
    dtype: str
    tensor_parallel: int
    by_tokens: Mapping[str, Curve]
    head: Curve
    prefill_attention: PrefillAttention
    decode_attention: DecodeAttention
    host_ns: float  # per iteration
    host_row_ns: float = 0.0  # and per sequence in it
    notes: tuple[str, ...] = ()
    reference_ns: tuple[float, ...] = ()  # of backend.reference, timed when the rest was measured
    mixed_decode_attention: DecodeAttention | None = None  # of rows beside prompt chunks; None: no dearer
    server_overhead_ns: int = 0  # per request, outside the engine: HTTP, tokenisation, queue hand-off
    host_prompt_ns: float = 0.0  # per iteration with prompts
    padded_prefill_attention: PrefillAttention | None = None  # of left-padded batches; None: no different
    padded_decode_attention: DecodeAttention | None = None
    step_error: float | None = None  # median relative error of times held out from the fit

    def for_padded_batches(self) -> Profile:
        """The profile of an engine that pads its prompts, where attention takes another way."""
        prefill, decode = self.padded_prefill_attention, self.padded_decode_attention
        if prefill is None or decode is None:
            return self
        return replace(
            self, prefill_attention=prefill, decode_attention=decode, mixed_decode_attention=None
        )


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """What a result says about the clock it was made with."""

    name: str
    kind: Kind
    notes: tuple[str, ...] = ()
    reference_ns: tuple[float, ...] = ()  # as in `Profile`
    server_overhead_ns: int = 0  # as in `Profile`
    step_error: float | None = None  # as in `Profile`


def read_profile(path: Path) -> Profile:
    """The profile in a JSON file; a `ProfileError` of one line if it is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"profile {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"profile {path}: not a text file; expected JSON") from None
    return parse_profile(text, path.stem, str(path))


def parse_profile(text: str, name: str, where: str) -> Profile:
    """The profile in JSON ``text``; ``where`` names it in errors."""

    def constant(word: str) -> NoReturn:
        raise ProfileError(f"profile {where}: holds {word}; every number must be finite")

    try:
        fields = json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ProfileError(f"profile {where}:{error.lineno}: not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise ProfileError(
            f"profile {where}: not usable JSON: a number too long or brackets too deep"
        ) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ProfileError(f'profile {where}: not a ServeTwin profile; "format" must be "{FORMAT}"')
    if fields.get(CHECKSUM, checksum(fields)) != checksum(fields):
        raise ProfileError(
            f"profile {where}: was changed after it was fitted, as its checksum tells; fit it again, "
            f'or take "{CHECKSUM}" out to use it as it is'
        )
    return _Reader(where).profile(fields, name)


def checksum(fields: Mapping[str, Any]) -> str:
    """What a profile's content comes to, its own ``checksum`` left out."""
    rest = {name: value for name, value in fields.items() if name != CHECKSUM}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def shipped_profiles() -> Iterator[Profile]:
    """The profiles that come with ServeTwin, in order of name."""
    for file in _shipped_files():
        yield parse_profile(file.read_text(encoding="utf-8"), file.name.removesuffix(".json"), file.name)


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, in order."""
    return tuple(file.name.removesuffix(".json") for file in _shipped_files())


def find_profile(name_or_path: str, folder: Path) -> Profile:
    """A shipped profile by name, or one in a file; relative paths are taken from ``folder``."""
    for file in _shipped_files():
        if file.name == f"{name_or_path}.json":
            return parse_profile(file.read_text(encoding="utf-8"), name_or_path, file.name)
    path = folder / Path(name_or_path).expanduser()
    if path.suffix == ".json" or path.exists():
        return read_profile(path)
    names = ", ".join(profile_names()) or "none"
    raise ProfileError(
        f"profile {name_or_path!r} is not known: give auto, roofline, a path to a .json file "
        f"or a shipped one ({names})"
    )


def _shipped_files() -> list[Traversable]:
    try:
        folder = resources.files("calibration").joinpath("profiles")
    except ModuleNotFoundError:
        return []
    if not folder.is_dir():
        return []
    return sorted(
        (file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name
    )


class _Reader:
    """Turns decoded JSON into a `Profile`, naming the field in every complaint."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, message: str) -> NoReturn:
        raise ProfileError(f"profile {self.where}: {message}")

    def profile(self, fields: Mapping[str, Any], name: str) -> Profile:
        kind = self.text(fields, "kind")
        if kind not in ("measured", "imported", "roofline"):
            self.fail(f"kind must be measured, imported or roofline, not {kind!r}")
        operators, host = self.part(fields, "operators"), self.part(fields, "host")
        tensor_parallel = self.tensor_parallel(fields)
        return Profile(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            model=self.text(fields, "model"),
            hardware=self.text(fields, "hardware"),
            dtype=self.text(fields, "dtype"),
            tensor_parallel=tensor_parallel,
            by_tokens=self.by_tokens(operators, tensor_parallel),
            head=self.curve(self.operator(operators, "head"), "operators.head", "rows"),
            prefill_attention=self.prefill_attention(self.operator(operators, "prefill_attention")),
            decode_attention=self.decode_attention(self.operator(operators, "decode_attention")),
            host_ns=self.number(host.get("iteration_ns"), "host.iteration_ns"),
            host_row_ns=self.number(host.get("row_ns", 0), "host.row_ns"),
            notes=self.notes(fields),
            reference_ns=self.reference_ns(fields),
            mixed_decode_attention=self.other_decode_attention(operators, "mixed_decode_attention"),
            server_overhead_ns=self.server_overhead(fields),
            host_prompt_ns=self.number(host.get("prompt_ns", 0), "host.prompt_ns"),
            padded_prefill_attention=self.padded_prefill_attention(operators),
            padded_decode_attention=self.other_decode_attention(operators, "padded_decode_attention"),
            step_error=self.step_error(fields, host),
        )

    def by_tokens(self, operators: Mapping[str, Any], tensor_parallel: int) -> dict[str, Curve]:
        self.operator(operators, "dense")
        if tensor_parallel > 1:
            self.operator(operators, "all_reduce")
        return {
            name: self.curve(self.part(operators, name), f"operators.{name}", "tokens")
            for name in TOKEN_OPERATORS
            if name in operators
        }

    def server_overhead(self, fields: Mapping[str, Any]) -> int:
        if "server" not in fields:
            return 0
        return round(self.number(self.part(fields, "server").get("overhead_ns"), "server.overhead_ns"))

    def padded_prefill_attention(self, operators: Mapping[str, Any]) -> PrefillAttention | None:
        key = "padded_prefill_attention"
        return self.prefill_attention(self.part(operators, key), key) if key in operators else None

    def prefill_attention(
        self, fields: Mapping[str, Any], operator: str = "prefill_attention"
    ) -> PrefillAttention:
        field = f"operators.{operator}"
        names = ("pairs_per_token", "pairs_per_chunk", "keys_per_token")
        per_token, per_chunk, keys = (self.number(fields.get(name), f"{field}.{name}") for name in names)
        window, share = (
            self.number(fields.get(name, 0), f"{field}.{name}")
            for name in ("window_keys", "windowed_share")
        )
        if share > 1:
            self.fail(f"{field}.windowed_share must be between 0 and 1, not {share:g}")
        curve = self.curve(fields, field, "effective_pairs")
        return PrefillAttention(per_token, per_chunk, curve, keys, int(window), share)

    def other_decode_attention(self, operators: Mapping[str, Any], key: str) -> DecodeAttention | None:
        return self.decode_attention(self.part(operators, key), key) if key in operators else None

    def decode_attention(
        self, fields: Mapping[str, Any], operator: str = "decode_attention"
    ) -> DecodeAttention:
        field = f"operators.{operator}"
        rows = self.whole_knots(fields.get("rows"), f"{field}.rows")
        contexts = self.whole_knots(fields.get("contexts"), f"{field}.contexts")
        ns = self.table(fields.get("ns"), rows, len(contexts), field)
        return DecodeAttention(rows, contexts, ns)

    def table(
        self, value: Any, rows: Sequence[int], contexts: int, field: str
    ) -> tuple[tuple[float, ...], ...]:
        if not isinstance(value, list) or len(value) != len(rows):
            lists = len(value) if isinstance(value, list) else "no"
            self.fail(f"{field} has {len(rows)} rows but {lists} lists of times")
        ns = tuple(self.times(line, f"{field}.ns[{index}]") for index, line in enumerate(value))
        for index, line in enumerate(ns):
            if len(line) > contexts:
                self.fail(f"{field}.ns[{index}] has {len(line)} times but there are {contexts} contexts")
        for (fewer, below), (more, above) in pairwise(zip(rows, ns, strict=True)):
            if any(high < low for low, high in zip(below, above, strict=False)):
                self.fail(f"{field}: {more} rows take less time than {fewer} at the same context")
        return ns

    def curve(self, fields: Mapping[str, Any], field: str, axis: str) -> Curve:
        knots = self.knots(fields.get(axis), f"{field}.{axis}")
        ns = self.times(fields.get("ns"), f"{field}.ns")
        if len(knots) != len(ns):
            self.fail(f"{field} has {len(knots)} knots but {len(ns)} times")
        return Curve(knots, ns)

    def whole_knots(self, value: Any, field: str) -> tuple[int, ...]:
        knots = self.knots(value, field)
        if not all(knot.is_integer() for knot in knots):
            self.fail(f"{field} must be whole numbers")
        return tuple(int(knot) for knot in knots)

    def knots(self, value: Any, field: str) -> tuple[float, ...]:
        knots = self.numbers(value, field)
        if knots[0] <= 0 or any(later <= earlier for earlier, later in pairwise(knots)):
            self.fail(f"{field} must be > 0 and rise from knot to knot")
        return knots

    def times(self, value: Any, field: str) -> tuple[float, ...]:
        times = self.numbers(value, field)
        for earlier, later in pairwise(times):
            if later < earlier:
                self.fail(f"{field} falls from {earlier:g} to {later:g}; more work cannot take less time")
        return times

    def numbers(self, value: Any, field: str) -> tuple[float, ...]:
        if not isinstance(value, list) or not value:
            self.fail(f"{field} must be a list of numbers, not {_shown(value)}")
        return tuple(self.number(item, f"{field}[{index}]") for index, item in enumerate(value))

    def number(self, value: Any, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
            self.fail(f"{field} must be a number >= 0 and below {LARGEST:g}, not {_shown(value)}")
        return float(value)

    def tensor_parallel(self, fields: Mapping[str, Any]) -> int:
        value = fields.get("tensor_parallel")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(f"tensor_parallel must be a whole number >= 1, not {_shown(value)}")
        return value

    def reference_ns(self, fields: Mapping[str, Any]) -> tuple[float, ...]:
        if "reference_ns" not in fields:
            return ()
        times = self.numbers(fields["reference_ns"], "reference_ns")
        if not all(times):
            self.fail("reference_ns must be > 0")
        return times

    def step_error(self, fields: Mapping[str, Any], host: Mapping[str, Any]) -> float | None:
        """Of whole steps where those were held out; else the worst operator's; None: nothing was."""
        if "test_error" in host:
            test = self.part(host, "test_error")
            return self.number(test.get("median_with"), "host.test_error.median_with")
        if "held_out_error" not in fields:
            return None
        errors = self.part(fields, "held_out_error")
        medians = (
            self.number(self.part(errors, name).get("median"), f"held_out_error.{name}.median")
            for name in errors
        )
        return max(medians, default=None)

    def notes(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        notes = fields.get("notes", [])
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            self.fail(f"notes must be a list of sentences, not {_shown(notes)}")
        return tuple(notes)

    def text(self, fields: Mapping[str, Any], key: str) -> str:
        value = fields.get(key)
        if not isinstance(value, str) or not value:
            self.fail(f"{key} must be a name, not {_shown(value)}")
        return value

    def operator(self, operators: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        if key not in operators:
            self.fail(f"operator {key!r} is missing; an unpriced operator would count as free")
        return self.part(operators, key)

    def part(self, fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = fields.get(key)
        if not isinstance(value, dict):
            self.fail(f"{key} must be an object, not {_shown(value)}")
        return value


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    if value == []:
        return "an empty list"
    text = json.dumps(value) if not isinstance(value, Sequence) or isinstance(value, str) else "a list"
    return text if len(text) <= 40 else f"{text[:37]}..."
