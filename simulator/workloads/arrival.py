"""What a workload is made of: one record per request, as the outside world knows it."""

from __future__ import annotations

from typing import NamedTuple

from simulator.engine.request import Content


class Arrival(NamedTuple):
    """One request as the client sends it, with the answer length that only the model will decide.

    ``output_tokens`` is never shown to a scheduler: the simulated executor owns it.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    output_limit: int
    content: Content | None = None
    priority: int = 0
    timeout_ns: int = 0  # the longest wait for its turn that the client asks for; 0: no wish
