"""Which beams a simulated search goes on with: a fixed rule, since no model is there to score them."""

from __future__ import annotations

GOLDEN, WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


def chosen_parents(request_id: int, tokens: int, beams: int) -> list[int]:
    """For each beam, which of the previous step's beams it continues: each of them is as likely as another.

    ``tokens``: the answer's length after this step. The choice depends on nothing else, so it is the same
    in every run, whatever else is in the batch. Uniform choice is an assumption; docs/reproductions.md
    compares the sharing that follows from it with what the vLLM paper measured. The draws are SplitMix64's
    (Steele, Lea and Flood, OOPSLA 2014).
    """
    state = _mix((request_id << 32) + tokens)
    return [_mix(state + (place + 1) * GOLDEN) * beams >> 64 for place in range(beams)]


def _mix(state: int) -> int:
    state &= WORD
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & WORD
    return state ^ (state >> 31)
