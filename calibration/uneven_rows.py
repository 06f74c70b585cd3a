"""What decode attention costs more when its rows read unequally many keys, from LLMServingSim's profiles.

Their skew_fit.csv holds, for batches of a few long and many short rows, how far the time lies on the way
from "all rows as long as the mean" to "all as long as the longest" (alpha), in buckets of the chunk beside
them, of rows, of (mean - shortest) / (longest - shortest), of the longest and of the chunk's prefix.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from calibration.measurements import Sample
from simulator.cost_model import PiecewiseLinear
from simulator.errors import ProfileError

LEAST_CHUNK = 256  # tokens; shorter chunks leave the GPU empty, so that the rows beside them come cheaper
LONGEST_PREFIX = 4096  # tokens before a chunk, for the same reason: one long row of keys hides the others
COLUMNS = ("pc", "n_label", "skew_rate_label", "kv_big_label", "kp_label", "alpha", "n_samples")
PREFIX_BUCKETS = ("kp=0", "kp<=512", "kp<=1k", "kp<=2k", "kp<=4k")  # up to LONGEST_PREFIX
ROW_BUCKETS = ("n<=2", "n<=4", "n<=8", "n<=16", "n<=32", "n<=64", "n<=128", "n<=256")
KEY_BUCKETS: Mapping[str, float] = {"kvB<=1k": 1024, "kvB<=4k": 4096, "kvB<=16k": float("inf")}
RATE_BUCKETS: Mapping[str, float] = {"sr<=5%": 0.05, "sr<=15%": 0.15, "sr<=40%": 0.4, "sr<=70%": 0.7}


class Spread(NamedTuple):
    """How unequal the contexts of a batch are: longest / mean, (mean - shortest) / (longest - shortest)."""

    longest_over_mean: float
    rate: float


@dataclass(frozen=True, slots=True)
class Penalties:
    """Alphas by (whether beside a chunk, row bucket, key bucket) at one spread of contexts."""

    alphas: Mapping[tuple[bool, str, str], float]
    longest_over_mean: float

    def applied(self, samples: Sequence[Sample], *, mixed: bool) -> list[Sample]:
        """The samples of equal rows, as they would be with unequal rows of the same mean."""
        curves = {rows: _curve(samples, rows) for rows in {sample.at[0] for sample in samples}}
        return [self._uneven(sample, curves[sample.at[0]], mixed) for sample in samples]

    def _uneven(self, sample: Sample, curve: PiecewiseLinear, mixed: bool) -> Sample:
        rows, total = sample.at
        if rows == 1:
            return sample
        longest = total / rows * self.longest_over_mean
        extra = curve(longest * rows) - sample.ns
        return sample._replace(ns=sample.ns + max(0.0, self._alpha(rows, longest, mixed) * extra))

    def _alpha(self, rows: float, longest: float, mixed: bool) -> float:
        bucket = ROW_BUCKETS[min(bisect_left([2**power for power in range(1, 9)], rows), 7)]
        keys = next(label for label, most in KEY_BUCKETS.items() if longest <= most)
        return self.alphas.get((mixed, bucket, keys), 0.0)


def _curve(samples: Sequence[Sample], rows: float) -> PiecewiseLinear:
    line = sorted((sample.at[1], sample.ns) for sample in samples if sample.at[0] == rows)
    return PiecewiseLinear([total for total, _ in line], [ns for _, ns in line])


def read_penalties(path: Path, spread: Spread) -> Penalties:
    """The part of the table that belongs to batches of one spread."""
    wanted = _rate_bucket(spread.rate)
    found: dict[tuple[bool, str, str], list[float]] = {}
    for row in _rows(path):
        if row["skew_rate_label"] == wanted and row["kp_label"] in PREFIX_BUCKETS:
            chunk = int(row["pc"])
            if chunk == 0 or chunk >= LEAST_CHUNK:
                key = (chunk > 0, row["n_label"], row["kv_big_label"])
                found.setdefault(key, []).append(float(row["alpha"]))
    return Penalties({key: fmean(alphas) for key, alphas in found.items()}, spread.longest_over_mean)


def _rate_bucket(rate: float) -> str:
    return next((label for label, most in RATE_BUCKETS.items() if rate <= most), "sr>70%")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise ProfileError(f"{path}: not found; without it only batches of equal rows can be priced")
    with path.open(encoding="utf-8", newline="") as text:
        reader = csv.DictReader(text)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ProfileError(f"{path}:1: columns must be {','.join(COLUMNS)}")
        yield from reader
