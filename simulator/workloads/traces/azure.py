"""Azure LLM inference traces of 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens` as CSV.

https://github.com/Azure/AzurePublicDataset (data under CC-BY-4.0). Time stamps come naive or with an
offset, with any number of decimals (2023: seven) or none; only differences matter, so a naive one is
taken for UTC. Further columns, such as NumImages of the 2025 multimodal trace, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from simulator.errors import TraceError
from simulator.workloads.arrival import Arrival
from simulator.workloads.traces.trace_file import NS_PER_S, CsvTable, RowClock, open_text, token_count

TIME_COLUMN = "TIMESTAMP"
PROMPT_COLUMN = "ContextTokens"
OUTPUT_COLUMN = "GeneratedTokens"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DIGITS = "0123456789"
SHORTEST_TIME = len("2023-11-16 18:15:46")


def read(path: Path) -> Iterator[Arrival]:
    """The requests in order, streamed; the first arrives at 0."""
    with open_text(path) as text:
        table = CsvTable(path, text)
        time, prompt, output = map(table.position, (TIME_COLUMN, PROMPT_COLUMN, OUTPUT_COLUMN))
        clock = RowClock(path, TIME_COLUMN)
        instants = Instants()
        for line, row in table:
            try:
                time_ns = instants.since_epoch_ns(row[time])
            except ValueError as error:
                raise _wrong_time(row[time], path, line) from error
            arrival_ns = clock.since_first(time_ns, line)
            prompt_tokens = token_count(row[prompt], path, line, PROMPT_COLUMN)
            output_tokens = token_count(row[output], path, line, OUTPUT_COLUMN)
            yield Arrival(arrival_ns, prompt_tokens, output_tokens, output_tokens)


def _wrong_time(cell: str, path: Path, line: int) -> TraceError:
    return TraceError(
        f"{path}:{line}: {TIME_COLUMN} must be a time such as 2023-11-16 18:15:46.6805900, not {cell!r}"
    )


class Instants:
    """Reads ISO 8601 dates with times; remembers the last whole second, which the next mostly shares."""

    def __init__(self) -> None:
        self._second: str | None = None
        self._second_ns = 0

    def since_epoch_ns(self, text: str) -> int:
        """ns since 1970; digits beyond the ninth decimal are dropped. Raises ValueError.

        `datetime` keeps six decimals, so the fraction is read apart from it.
        """
        head, dot, tail = text.partition(".")
        zone = tail.lstrip(DIGITS)
        fraction = tail[: len(tail) - len(zone)]
        if dot and not fraction:
            raise ValueError(text)
        second = head + zone
        if second != self._second:
            self._second_ns = _whole_second_ns(head, zone)
            self._second = second
        return self._second_ns + int((fraction + "000000000")[:9])


def _whole_second_ns(head: str, zone: str) -> int:
    if head[4:5] != "-" or len(head) < SHORTEST_TIME:
        raise ValueError(head)  # fromisoformat would take bare digits for a date
    moment = datetime.fromisoformat(head + zone)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * NS_PER_S
