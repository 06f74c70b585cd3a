"""The designed grid: which pieces of an iteration, and which whole iterations, are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

POINT_AXES: Mapping[str, tuple[str, ...]] = {
    "dense": ("tokens",),
    "head": ("rows",),
    "prefill_attention": ("chunks", "chunk_tokens", "start"),
    "decode_attention": ("rows", "context"),
    "padded_prefill_attention": ("rows", "width"),
    "padded_decode_attention": ("rows", "stored"),
    "scheduling": ("rows",),
    "block_copy": ("blocks",),
    "iteration": ("chunks", "chunk_tokens", "start", "rows", "context"),
    "padded_prompts": ("rows", "width"),
    "padded_step": ("rows", "width"),
    "reference_prompts": (),
    "reference_steps": (),
}
"""What each piece is told. Chunks are equal in a point; rows of an iteration read ``context`` keys on
average, those of `decode_attention` each. ``padded_prompts`` is the first iteration of a padded batch,
``padded_step`` one after it. The last two are what `backend.reference` runs."""
WHOLE = ("iteration", "padded_prompts", "padded_step")


class Point(NamedTuple):
    """One thing to time: a piece and where along its `POINT_AXES`."""

    piece: str
    at: tuple[int, ...]


class Limits(NamedTuple):
    """How far a device is measured."""

    tokens: int  # of one iteration
    rows: int
    context: int  # keys of one sequence
    keys: int  # of all sequences of an iteration; what the KV cache holds
    padded_tokens: int  # positions of a padded batch of prompts


def grid(limits: Limits) -> list[Point]:
    """All points within the limits, each once, in order of pieces."""
    found = (
        *(Point("dense", (tokens,)) for tokens in _upto(_half_octaves(limits.tokens), limits.tokens)),
        *(Point("head", (rows,)) for rows in _upto(_octaves(limits.rows), limits.rows)),
        *_prefill_attention(limits),
        *_decode_attention(limits),
        *_padded_attention(limits),
        *(Point("scheduling", (rows,)) for rows in _upto((1, 16, 64, 256), limits.rows)),
        *(Point("block_copy", (blocks,)) for blocks in (4, 32)),
        *_iterations(limits),
        *_padded_iterations(limits),
    )
    return list(dict.fromkeys(found))


def row_contexts(rows: int, context: int) -> list[int]:
    """How many keys each row of an iteration reads: evenly from half to one and a half times the mean."""
    if rows < 2:
        return [context] * rows
    return [max(2, round(context * (0.5 + i / (rows - 1)))) for i in range(rows)]


def _octaves(reach: int) -> list[int]:
    return [1 << power for power in range(reach.bit_length())]


def _half_octaves(reach: int) -> list[int]:
    """1, 2, 4, 8, then 3/2 between powers of two as well."""
    inner = [3 << power for power in range(3, max(reach.bit_length() - 1, 3))]
    return sorted({*_octaves(reach), *inner})


def _upto(values: object, limit: int) -> list[int]:
    assert isinstance(values, (list, tuple))
    return [value for value in values if value <= limit]


def _prefill_attention(limits: Limits) -> Iterator[Point]:
    for tokens in _upto((16, 64, 128, 256, 512, 1024, 2048, 4096, 8192), limits.tokens):
        yield Point("prefill_attention", (1, tokens, 0))
        for start in (256, 1024, 3072, 7168):
            if (
                start + tokens <= min(limits.context, limits.keys)
                and tokens <= 2 * start <= 16 * limits.tokens
            ):
                yield Point("prefill_attention", (1, tokens, start))
    for chunks, tokens in ((4, 16), (16, 16), (4, 128), (8, 64), (3, 512)):
        if chunks * tokens <= limits.tokens:
            yield Point("prefill_attention", (chunks, tokens, 0))


def _decode_attention(limits: Limits) -> Iterator[Point]:
    contexts = _upto((16, 64, 256, 1024, 4096, 16384), limits.context)
    for rows in _upto(_octaves(limits.rows), limits.rows):
        for context in contexts:
            if rows * context <= limits.keys or context == contexts[0]:
                yield Point("decode_attention", (rows, context))


def _padded_attention(limits: Limits) -> Iterator[Point]:
    for rows in _upto((1, 4, 16, 64), limits.rows):
        for width in _upto((16, 64, 256, 512, 1024, 2048), limits.context):
            if rows * width <= limits.padded_tokens:
                yield Point("padded_prefill_attention", (rows, width))
    contexts = _upto((16, 64, 256, 512, 1024, 2048), limits.context)
    for rows in _upto((1, 4, 16, 64), limits.rows):
        for stored in contexts:
            if rows * stored <= limits.keys // 2 or stored == contexts[0]:
                yield Point("padded_decode_attention", (rows, stored))


def _iterations(limits: Limits) -> Iterator[Point]:
    """Pure decodes, pure prompts and mixtures."""
    decodes = [(rows, context) for rows in _upto(_octaves(256), limits.rows) for context in (64, 320, 1200)]
    prompts = [(1, tokens, 0) for tokens in (16, 48, 160, 400, 1024, 2048, 4096, 8192)]
    prompts += [
        (1, 256, 1024),
        (1, 512, 768),
        (1, 1024, 1024),
        (4, 64, 0),
        (8, 64, 0),
        (2, 512, 0),
        (5, 200, 0),
    ]
    mixed = [
        (chunk, row)
        for chunk in ((1, 32, 0), (1, 128, 0), (1, 448, 64), (2, 160, 0))
        for row in ((3, 100), (14, 300), (50, 250), (120, 150))
    ]
    mixed += [((3, 600, 0), (14, 300)), ((3, 600, 0), (120, 150))]
    shapes = [
        *((0, 0, 0, *row) for row in decodes),
        *((*chunk, 0, 0) for chunk in prompts),
        *((*chunk, *row) for chunk, row in mixed),
    ]
    for shape in shapes:
        if fits(shape, limits):
            yield Point("iteration", shape)


def fits(shape: tuple[int, ...], limits: Limits) -> bool:
    """Whether an iteration is within the limits; its longest row reads half as much again as the mean."""
    chunks, tokens, start, rows, context = shape
    return (
        chunks * tokens + rows <= limits.tokens
        and rows <= limits.rows
        and max(start + tokens, 3 * context // 2) <= limits.context
        and chunks * (start + tokens) + rows * context <= limits.keys
    )


def _padded_iterations(limits: Limits) -> Iterator[Point]:
    for rows, width in ((1, 96), (1, 400), (3, 130), (8, 64), (4, 300), (16, 40), (30, 24)):
        if rows <= limits.rows and width < limits.context and rows * width <= limits.padded_tokens:
            yield Point("padded_prompts", (rows, width))
            yield Point("padded_step", (rows, width))
