"""Random workloads for a scheduler under pressure, drawn from a seed and written as plain values."""

from __future__ import annotations

from typing import Any

from numpy.random import Generator, default_rng

LONGEST = 96  # tokens of the longest request, prompt and answer

Workload = dict[str, Any]

# What a theme's workloads stress, and how many of the longest request their KV cache may hold.
ROOM = {"pressure": 1.3, "priorities": 1.3, "prefixes": 2, "chunks": 4, "seats": 4, "everything": 2}
THEMES = tuple(ROOM)
PER_THEME = 100


def draw_themes() -> dict[str, list[Workload]]:
    """The workloads on which our engine is compared with the real one."""
    return {theme: draw_workloads(theme, PER_THEME, seed=0) for theme in THEMES}


def uncomputed_hit(*, forget_uncomputed: bool) -> Workload:
    """The one quirk of the real scheduler that our engine does not copy, and how it is with it mended.

    Request 0 gets 10 tokens, then, in the same step, has to make way for the more urgent request 1. The
    real scheduler keeps cache entries for these 10 tokens, which are then never computed, and when request
    0 comes back it takes those 8 of them for computed whose blocks have not been reused.
    """
    long = {"step": 0, "prompt": 52, "limit": 1, "output": 1, "priority": 3}
    urgent = {"step": 1, "prompt": 5, "limit": 9, "output": 4, "priority": 0}
    rest = {"opening": 0, "shared": 0, "abort_step": None}
    return {
        "name": f"uncomputed-{'forgotten' if forget_uncomputed else 'found'}",
        "forget_uncomputed": forget_uncomputed,
        "blocks": 52,
        "block_size": 1,
        "tokens_per_id": 1,
        "engine": {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "max_model_len": LONGEST,
            "chunked_prefill": True,
            "long_prefill_token_threshold": 10,
            "priorities": True,
            "full_isl_gate": False,
            "watermark": 0.0,
            "prefix_caching": True,
        },
        "requests": [{**long, **rest}, {**urgent, **rest}],
    }


def draw_workloads(theme: str, count: int, seed: int) -> list[Workload]:
    """``count`` workloads that stress one thing; the same for the same seed."""
    draws = default_rng([THEMES.index(theme), seed])
    return [_workload(draws, theme, f"{theme}-{seed}-{i}") for i in range(count)]


def _workload(draws: Generator, theme: str, name: str) -> Workload:
    block_size = int(draws.choice([1, 2, 3, 4, 8, 16]))
    engine = _engine(draws, theme)
    longest_blocks = -(-(LONGEST - 1) // block_size)
    blocks = int(longest_blocks * draws.uniform(1, ROOM[theme]))
    span = int(draws.choice([1, block_size, 2 * block_size, 8]))
    return {
        "name": name,
        "forget_uncomputed": False,
        "blocks": blocks,
        "block_size": block_size,
        "tokens_per_id": span,
        "engine": engine,
        "requests": _requests(draws, theme, span),
    }


def _engine(draws: Generator, theme: str) -> dict[str, Any]:
    seats = int(draws.integers(1, 5) if theme == "seats" else draws.integers(3, 17))
    chunked = bool(draws.random() < (1.0 if theme == "chunks" else 0.7))
    budgets = [seats, seats + 1, seats + 7, 24, 40, LONGEST, 3 * LONGEST]
    if theme != "chunks":
        budgets = budgets[2:]
    budget = max(seats, int(draws.choice(budgets)))
    capped = draws.random() < _share(theme, "chunks", 0.4)
    threshold = int(draws.choice([1, 3, 7, 20])) if capped else 0
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget if chunked else max(budget, LONGEST),
        "max_model_len": LONGEST,
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "priorities": bool(draws.random() < _share(theme, "priorities", 0.2)),
        "full_isl_gate": bool(draws.random() < 0.6),
        "watermark": float(draws.choice([0.0, 0.0, 0.0, 0.05, 0.2])),
        "prefix_caching": bool(draws.random() < _share(theme, "prefixes", 0.4)),
    }


def _share(theme: str, own: str, otherwise: float) -> float:
    """How often a feature is on: always in its own theme, half the time where everything is mixed."""
    return 1.0 if theme == own else 0.5 if theme == "everything" else otherwise


def _requests(draws: Generator, theme: str, span: int) -> list[dict[str, Any]]:
    requests, step = [], 0
    aborts = theme == "everything"
    for _ in range(int(draws.integers(4, 21))):
        step += int(draws.choice([0, 0, 0, 0, 1, 2, 5, 15]))
        prompt = int(draws.integers(1, 72))
        limit = int(draws.integers(1, min(40, LONGEST - prompt) + 1))
        output = limit if draws.random() < 0.5 else int(draws.integers(1, limit + 1))
        requests.append(
            {
                "step": step,
                "prompt": prompt,
                "limit": limit,
                "output": output,
                "priority": int(draws.integers(0, 4)),
                **_opening(draws, prompt, span),
                "abort_step": step + int(draws.integers(1, 30))
                if aborts and draws.random() < 0.1
                else None,
            }
        )
    return requests


def _opening(draws: Generator, prompt: int, span: int) -> dict[str, int]:
    """How many tokens of one of three openings a prompt starts with: none, some whole spans, or all."""
    kind = draws.random()
    if kind < 0.25:
        shared = 0
    elif kind < 0.4:
        shared = prompt
    else:
        shared = int(draws.integers(0, prompt // span + 1)) * span
    return {"opening": int(draws.integers(0, 3)), "shared": shared}
