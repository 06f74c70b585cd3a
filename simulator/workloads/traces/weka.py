"""WEKA's kv-cache-tester sessions of coding agents: one JSON object a file, or a folder of them.

https://github.com/callanjfox/kv-cache-tester, traces (Apache-2.0). Requests follow each other: one is sent
`think_time` (s) after the answer before it; where that is missing, it is what `t` and `api_time` leave.
Sessions know no common clock, so all begin at 0. A sub-agent is a session of its own that begins at its
`t`: the think time of its parent covers it, and its requests' own `t` starts again at 0.

`hash_ids` name whole blocks of 64 tokens and only within the file; a name of its own covers the rest of a
prompt. What `tool_tokens` and `system_tokens` count is the same in all sessions that agree in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from operator import eq
from pathlib import Path
from typing import NamedTuple

from simulator.engine.request import Content
from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival, Turn
from simulator.workloads.traces.json_rows import SECONDS, JsonRow
from simulator.workloads.traces.trace_file import open_text

REQUESTS_KEY = "requests"
BLOCK_KEY = "block_size"
SUBAGENT = "subagent"
IDS_PER_FILE = 1 << 40
TAIL = 1 << 39  # names of prompts' last, partial blocks start here
ROWS_PER_CHAIN = 1 << 16


def read(path: Path) -> Iterator[Arrival]:
    """Sessions, file by file, then their sub-agents in order of time; a file is read as it is needed."""
    delegated: list[tuple[int, int, int]] = []
    files = session_files(path)
    for number, file in enumerate(files):
        session = _load(file)
        rows = list(session.records(REQUESTS_KEY))
        delegated += [
            (row.time_ns("t", SECONDS), number, i) for i, row in enumerate(rows) if _delegates(row)
        ]
        own = [row for row in rows if not _delegates(row)]
        if own:
            yield _arrival(_chain(session, session, own, number, 0), 0)
    for start_ns, number, place in sorted(delegated):
        session = _load(files[number])
        agent = list(session.records(REQUESTS_KEY))[place]
        rows = list(agent.records(REQUESTS_KEY))
        if rows:
            yield _arrival(_chain(session, agent, rows, number, place + 1), start_ns)


def session_files(path: Path) -> list[Path]:
    """The file itself, or a folder's JSON files in order of their names."""
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def _delegates(row: JsonRow) -> bool:
    return row.fields.get("type") == SUBAGENT


class _Chain(NamedTuple):
    """Requests that follow each other, and how their blocks are named."""

    rows: Sequence[JsonRow]
    block_tokens: int
    own_name: int  # added to ids, which count within a file
    tail_name: int
    common: tuple[int, ...]  # ids of the tools and the system prompt, with which the first request begins
    common_name: int


def _chain(session: JsonRow, agent: JsonRow, rows: Sequence[JsonRow], number: int, place: int) -> _Chain:
    """The requests of one agent; ``number`` of its file, ``place`` of the agent in it."""
    block_tokens = session.tokens(BLOCK_KEY)
    prefix = [agent.tokens(key, least=0) for key in ("tool_tokens", "system_tokens")]
    named = blake2b(f"{prefix} {block_tokens}".encode(), digest_size=6).digest()
    own_name = number * IDS_PER_FILE
    return _Chain(
        rows,
        block_tokens,
        own_name,
        own_name + TAIL + place * ROWS_PER_CHAIN,
        rows[0].ids("hash_ids")[: sum(prefix) // block_tokens],
        -(int.from_bytes(named, "big") << 20),
    )


def _arrival(chain: _Chain, start_ns: int) -> Arrival:
    told = [_request(chain, place) for place in range(len(chain.rows))]
    requests = [*(_answered(*pair, chain.block_tokens) for pair in pairwise(told)), told[-1]]
    waits_ns = [_think_ns(before, row) for before, row in pairwise(chain.rows)]
    later = tuple(Turn(wait, *request) for wait, request in zip(waits_ns, requests[1:], strict=True))
    return Arrival(start_ns, *requests[0], later=later)


_Told = tuple[int, int, int, Content]  # prompt, output, limit and what the prompt says


def _answered(told: _Told, after: _Told, block_tokens: int) -> _Told:
    """A request whose answer is named as well, where the prompt after it goes on from it."""
    prompt, output, limit, content = told
    known, following = content.ids[: prompt // block_tokens], after[3].ids[: after[0] // block_tokens]
    if len(following) * block_tokens < prompt or following[: len(known)] != known:
        return told
    return prompt, output, limit, Content(following, block_tokens, names_answer=True)


def _request(chain: _Chain, place: int) -> _Told:
    row = chain.rows[place]
    prompt, output = row.tokens("in"), row.tokens("out", least=0)
    return prompt, output, output, _content(chain, place, prompt)


def _content(chain: _Chain, place: int, prompt_tokens: int) -> Content:
    row = chain.rows[place]
    ids, blocks = row.ids("hash_ids"), prompt_tokens // chain.block_tokens
    if len(ids) != blocks:
        raise row.error(
            f"hash_ids must hold {blocks} ids, one for each whole {chain.block_tokens} of "
            f"{prompt_tokens} tokens, not {len(ids)}"
        )
    common = sum(map(eq, ids, chain.common))
    names = [chain.common_name - block for block in range(common)]
    names += [chain.own_name + name for name in ids[common:]]
    if prompt_tokens % chain.block_tokens:
        names.append(chain.tail_name + place)
    return Content(tuple(names), chain.block_tokens)


def _think_ns(before: JsonRow, row: JsonRow) -> int:
    if row.fields.get("think_time") is not None:
        return row.time_ns("think_time", SECONDS)
    answered_ns = before.time_ns("t", SECONDS)
    if before.fields.get("api_time") is not None:
        answered_ns += before.time_ns("api_time", SECONDS)
    return max(0, row.time_ns("t", SECONDS) - answered_ns)


def _load(path: Path) -> JsonRow:
    with open_text(path) as text:
        try:
            found = json.loads(text.read())
        except json.JSONDecodeError as error:
            raise TraceError(
                f"{path}:{error.lineno}: must be one complete JSON object ({error.msg}); "
                "is the file truncated?"
            ) from error
    if not isinstance(found, dict):
        raise TraceError(f"{path}: must be one JSON object, a session")
    return JsonRow(str(path), found)
