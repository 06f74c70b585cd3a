"""Replay a recorded trace, twice as fast too, and plot the latency that each share of requests saw.

    python examples/replay_trace.py [TRACE] [PAGE.html]

Without a trace it replays the one beside it: 400 requests in Azure's format, drawn at random.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from plotly.graph_objects import Figure

import simulator

TRACE = Path(__file__).with_name("trace.csv")
SHARES = np.linspace(0.01, 1, 100)


def main(trace: str = str(TRACE), page: str = "percentiles.html") -> None:
    figure = Figure(
        layout={"xaxis": {"title": "TTFT in ms", "type": "log"}, "yaxis": {"title": "share in %"}}
    )
    for speed in (1, 2):
        run = simulator.simulate(
            {
                "name": f"trace at {speed}x",
                "model": "meta-llama/Llama-3.1-8B",
                "hardware": "h100-sxm",
                "workload": {
                    "arrivals": {"process": "trace", "file": trace, "rate_scale": speed},
                    "lengths": {"trace": True},
                },
            }
        )
        ttft_ms = run.latencies_ms["ttft"]
        figure.add_scatter(x=np.nanquantile(ttft_ms, SHARES), y=100 * SHARES, name=run.scenario.name)
        waited_s = np.nanmax(run.requests["scheduled_s"] - run.requests["arrival_s"])
        p99 = run.summary["ttft_ms"]["p99"]
        print(
            f"{run.scenario.name}: {len(ttft_ms)} requests, TTFT p99 {p99:.0f} ms, "
            f"longest wait {waited_s:.2f} s"
        )
    figure.write_html(page, include_plotlyjs=True)
    print(f"plot: {page}")


if __name__ == "__main__":
    main(*sys.argv[1:])
