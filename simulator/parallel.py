"""Independent pieces of work spread over the processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[int, Result]]:
    """The place and the result of every task, as they are done; what a task raises ends it all.

    ``function`` and tasks go to other processes, which stay for the next call, unless ``workers`` is 1.
    """
    if workers == 1 or len(tasks) < 2:
        yield from ((place, function(task)) for place, task in enumerate(tasks))
        return
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1, pre_dispatch="all")
    yield from pool(delayed(_placed)(function, place, task) for place, task in enumerate(tasks))


def _placed(function: Callable[[Task], Result], place: int, task: Task) -> tuple[int, Result]:
    return place, function(task)
