"""What a run leaves behind: every metric, file and page is computed from these tables and nothing else."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import NamedTuple

from numpy import int64
from numpy.typing import NDArray


class Sharing(NamedTuple):
    """KV blocks held, summed over iterations; how many more there would be if the sequences of a request
    shared none; and blocks copied because one of several holders wrote to them."""

    held: int
    saved: int
    copies: int

    def plus(self, other: Sharing) -> Sharing:
        """Both together."""
        return Sharing(self.held + other.held, self.saved + other.saved, self.copies + other.copies)


NO_SHARING = Sharing(0, 0, 0)


@dataclass(frozen=True, slots=True)
class RunTables:
    """The requests and the iterations of one run, simulated or live, as columns of int64.

    ``requests``, one row per offered request, in order of ``id``:

    - ``id``; ``replica`` that served it
    - ``arrival_ns``; ``scheduled_ns``: start of its first iteration; ``first_token_ns``; ``finished_ns``;
      each -1 where it never happened
    - ``prompt_tokens``; ``output_tokens`` generated so far; ``output_limit`` declared on arrival
    - ``status``: 0 completed, 1 rejected, 2 failed, 3 unfinished when the run ended
    - ``preemptions``; ``cached_tokens``: prompt tokens found in the cache

    ``reasons``: request id -> why it was rejected, failed or left unfinished.

    ``iterations``, per replica in order of time, replicas one after the other; a row stands for ``repeats``
    equal plans, one after the other:

    - ``replica``; ``start_ns`` of the first; ``end_ns`` of the last
    - ``prefills``: prompt chunks; ``prefill_tokens``: positions computed for them, padding included;
      ``prefill_pairs``: query-key pairs
    - ``decodes``: rows; ``context_tokens``: keys that they read in the first repeat
    - ``padding_tokens``: how many of the positions (prefill tokens + decode rows) are waste
    - ``preempted``: requests evicted; ``waiting``: requests queued; ``kv_blocks_used``: in the last repeat

    All columns but the times count one of the ``repeats``; ``waiting`` is as the first began.

    ``gap_ns``, ``gap_rows``: a time of ``gap_ns[i]`` between two tokens of a request was seen by
    ``gap_rows[i]`` tokens; the pooled inter-token latency is this weighted distribution.
    A length may come up more than once.

    ``kv_blocks``: capacity of each replica's KV cache; 0 where the policy keeps none. Of several
    replicas ``replica_blocks`` holds that of each, and ``kv_blocks`` is the largest.

    A request of several sequences is one row: its ``output_tokens`` are those of its longest sequence, its
    first token the first of any, its end the end of all; ``decodes`` and gaps count sequences. ``sharing``:
    what such requests share where the policy knows of them.
    """

    requests: MutableMapping[str, NDArray[int64]]
    reasons: dict[int, str]
    iterations: MutableMapping[str, NDArray[int64]]
    gap_ns: NDArray[int64]
    gap_rows: NDArray[int64]
    kv_blocks: int
    replica_blocks: tuple[int, ...] = ()
    sharing: Sharing = NO_SHARING

    def total_kv_blocks(self, replicas: int) -> int:
        """KV blocks of all replicas together."""
        return sum(self.replica_blocks) or self.kv_blocks * replicas
