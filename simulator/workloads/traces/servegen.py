"""ServeGen's pools: clients of a service, each with its rate, burstiness and lengths window by window.

https://github.com/alibaba/ServeGen, data (Apache-2.0). A client is `chunk-N-trace.csv`, without a header:
start of a window (s), requests/s, coefficient of variation, Gamma or Weibull (empty: idle), shape, scale;
and `chunk-N-dataset.json`: windows of lengths, each a Python dict of shares, written as text.

A pool is a generator, not a recording. Every window of a client is a renewal process in equilibrium with
the window's rate and shape, so windows do not begin with a burst; scales are not read, since those of
Weibull windows contradict their rates. Upstream stretches each window's gaps instead, which fixes its
number of requests, and draws all lengths of a request with one variate; here they are independent.
"""

from __future__ import annotations

import ast
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from csv import reader
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.renewal import gamma_gaps, stationary_times_s, weibull_gaps
from simulator.workloads.traces.trace_file import NS_PER_S, open_text

COLUMNS = 6
WINDOW_S = 600.0  # of a client with a single one
GAPS = {"Gamma": gamma_gaps, "Weibull": weibull_gaps}
PROMPT_FIELDS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")
OUTPUT_FIELD = "output_tokens"
PURPOSE = 0x5E27E6E4  # tells these streams from others that are drawn with the same seed


class Window(NamedTuple):
    """A stretch of time of one client; ``rate_per_s`` 0: idle."""

    start_s: float
    rate_per_s: float
    pattern: str
    shape: float


class Lengths(NamedTuple):
    """A distribution of tokens."""

    tokens: NDArray[np.int64]
    upto: NDArray[np.float64]  # cumulative probability


class Client(NamedTuple):
    """One client of a pool: windows of arrivals and of lengths, the latter by their starts."""

    windows: Sequence[Window]
    length_starts_s: Sequence[float]
    lengths: Sequence[Mapping[str, Lengths]]


def read(path: Path, seed: int) -> Iterator[Arrival]:
    """Requests of one client's file, or of a folder of clients, in order of time, window by window."""
    files = client_files(path)
    clients = [_client(file) for file in files]
    root = SeedSequence(seed, spawn_key=(PURPOSE,))
    generators = [default_rng(child) for child in root.spawn(len(clients))]
    starts = sorted({window.start_s for client in clients for window in client.windows})
    first_s = starts[0] if starts else 0.0
    by_start = [{window.start_s: window for window in client.windows} for client in clients]
    lengths_s = [after - before for before, after in pairwise(starts)] or [WINDOW_S]
    for start_s, length_s in zip(starts, [*lengths_s, lengths_s[-1]], strict=False):
        parts = [
            _draw(client, windows[start_s], length_s, generator)
            for client, windows, generator in zip(clients, by_start, generators, strict=True)
            if start_s in windows
        ]
        yield from _in_order(parts, start_s - first_s)


def client_files(path: Path) -> list[Path]:
    """The file itself, or a folder's files of arrivals in order of their numbers."""
    if not path.is_dir():
        return [path]
    return sorted(path.glob("chunk-*-trace.csv"), key=lambda file: (len(file.name), file.name))


def _draw(client: Client, window: Window, length_s: float, generator: Generator) -> NDArray[np.int64]:
    """Rows of time since the window's start (ns), prompt and output tokens."""
    lengths = _lengths_at(client, window.start_s)
    if not window.rate_per_s or lengths is None:
        return np.empty((0, 3), np.int64)
    gaps = GAPS[window.pattern](window.rate_per_s, window.shape)
    times_s = stationary_times_s(gaps, window.rate_per_s, length_s, generator)
    fields = [field for field in PROMPT_FIELDS if field in lengths]
    prompts = [_sample(lengths[field], generator, len(times_s)) for field in fields]
    prompt = np.sum(prompts, axis=0, dtype=np.int64)
    output = _sample(lengths[OUTPUT_FIELD], generator, len(times_s))
    times_ns = np.floor(times_s * NS_PER_S).astype(np.int64)
    return np.stack([times_ns, np.maximum(prompt, 1), np.maximum(output, 1)], axis=1)


def _lengths_at(client: Client, time_s: float) -> Mapping[str, Lengths] | None:
    """The window of lengths at a time, or the nearest before or else after it that has any."""
    place = bisect_right(client.length_starts_s, time_s) - 1
    order = [*range(place, -1, -1), *range(max(place + 1, 0), len(client.lengths))]
    return next((client.lengths[i] for i in order if client.lengths[i]), None)


def _sample(lengths: Lengths, generator: Generator, count: int) -> NDArray[np.int64]:
    places = np.searchsorted(lengths.upto, generator.random(count) * lengths.upto[-1], side="right")
    drawn: NDArray[np.int64] = lengths.tokens[np.minimum(places, len(lengths.tokens) - 1)]
    return drawn


def _in_order(parts: Sequence[NDArray[np.int64]], start_s: float) -> Iterator[Arrival]:
    if not parts:
        return
    rows = np.concatenate(parts)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    rows[:, 0] += round(start_s * NS_PER_S)
    for time_ns, prompt, output in rows.tolist():
        yield Arrival(time_ns, prompt, output, output)


# --- a client's two files ---


def _client(path: Path) -> Client:
    windows = list(_windows(path))
    dataset = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    if dataset == path or not dataset.exists():
        raise TraceError(f"{path}: its lengths are missing: {dataset.name} must lie beside it")
    lengths = _length_windows(dataset)
    return Client(windows, list(lengths), list(lengths.values()))


def _windows(path: Path) -> Iterator[Window]:
    with open_text(path) as text:
        rows = reader(text, skipinitialspace=True)
        for cells in rows:
            if cells:
                yield _window(cells, f"{path}:{rows.line_num}")


def _window(cells: Sequence[str], place: str) -> Window:
    try:
        start, rate, _, pattern, shape, _ = cells
        window = Window(float(start), float(rate), pattern, float(shape or 0))
    except ValueError:
        raise TraceError(
            f"{place}: must be start, rate, cv, pattern, shape, scale, not {','.join(cells)!r:.80}; "
            "is the file truncated?"
        ) from None
    if not (window.start_s >= 0 and 0 <= window.rate_per_s < 1e9):
        raise TraceError(f"{place}: start and rate must be >= 0, not {start} and {rate}")
    if not pattern:
        return window._replace(rate_per_s=0.0)
    if pattern not in GAPS or not 0 < window.shape < math.inf:
        raise TraceError(
            f"{place}: pattern must be Gamma or Weibull with a shape > 0, not {pattern} {shape}"
        )
    return window


def _length_windows(path: Path) -> dict[float, dict[str, Lengths]]:
    """Windows of lengths by their starts, s; those without data are empty."""
    with open_text(path) as text:
        try:
            found = json.loads(text.read())
            windows = {float(start): fields for start, fields in found.items()}
        except (ValueError, AttributeError) as error:
            raise TraceError(
                f"{path}: must be one JSON object of windows by their starts ({error})"
            ) from error
    return {
        start: _fields(fields, f"{path}: window {start:g}") for start, fields in sorted(windows.items())
    }


def _fields(fields: object, place: str) -> dict[str, Lengths]:
    if not isinstance(fields, dict) or OUTPUT_FIELD not in fields:
        raise TraceError(f"{place} must hold {OUTPUT_FIELD} and other lengths")
    wanted = [field for field in (*PROMPT_FIELDS, OUTPUT_FIELD) if field in fields]
    found = {field: _lengths(fields[field], f"{place}: {field}") for field in wanted}
    return {} if any(not len(one.tokens) for one in found.values()) else found


def _lengths(said: object, place: str) -> Lengths:
    """A distribution from the text of a Python dict, which is taken for data and never run."""
    try:
        shares = ast.literal_eval(str(said))
        tokens = np.array(list(shares), np.float64)
        upto = np.cumsum(np.array(list(shares.values()), np.float64))
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise TraceError(f"{place} must be a dict of tokens and their shares, not {said!r:.60}") from error
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < 2**31 and 0 < upto[-1] < math.inf):
        raise TraceError(f"{place} must hold token counts >= 0 with shares that add up, not {said!r:.60}")
    return Lengths(np.rint(tokens).astype(np.int64), upto)
