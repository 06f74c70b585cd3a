"""Length distributions fitted to public data sets, under the names that a scenario uses.

A lognormal mixture is given as (weight, mean, standard deviation) of ln(tokens). Each preset names the
file that it was fitted to; `tests/simulator/workloads/test_presets.py` holds it against that file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from simulator.errors import ScenarioError
from simulator.workloads.lengths import (
    CopulaSampler,
    Lengths,
    Marginal,
    Sampler,
    lognormal_mixture,
    quantile_table,
    scaled_beta,
    uniform_marginal,
    whole_tokens,
)


class Preset(NamedTuple):
    """A named pair of length distributions; tables are computed when the sampler is asked for."""

    sampler: Callable[[], Sampler]
    description: str


def _sharegpt() -> Sampler:
    """NanoFlow, datasets/traces/sharegpt.csv (Apache-2.0): first turns of ShareGPT."""
    return CopulaSampler(
        prompt=lognormal_mixture((0.706, 3.101, 0.944), (0.294, 6.099, 1.268)),
        output=lognormal_mixture((0.289, 4.010, 1.258), (0.711, 5.826, 0.576)),
        rho=0.157,
        prompt_bounds=(1, 8192),
        output_bounds=(1, 2048),
    )


def _lmsys() -> Sampler:
    """NanoFlow, datasets/traces/lmsys.csv (Apache-2.0): token counts of LMSYS-Chat-1M."""
    return CopulaSampler(
        prompt=lognormal_mixture((0.878, 3.141, 1.172), (0.122, 5.980, 0.455)),
        output=lognormal_mixture((0.628, 3.922, 1.361), (0.372, 5.861, 0.407)),
        rho=0.230,
        prompt_bounds=(1, 4096),
        output_bounds=(1, 4096),
    )


AZURE_CONV_PROBABILITIES = (
    *(0, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.999, 1),
)
AZURE_CONV_PROMPTS = (
    *(2, 29, 120, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2735, 4083, 4092, 4142, 6212, 14050),
)
AZURE_CONV_OUTPUTS = (*(7, 16, 28, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 522, 601, 954, 1000),)


def _azure_conv() -> Sampler:
    """Quantiles of AzureLLMInferenceTrace_conv.csv, 2023: prompts pile up at lengths of templates.

    Derived from data of Microsoft's AzurePublicDataset, https://github.com/Azure/AzurePublicDataset,
    CC-BY-4.0; Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting",
    ISCA 2024.
    """
    return CopulaSampler(
        prompt=quantile_table(AZURE_CONV_PROBABILITIES, AZURE_CONV_PROMPTS),
        output=quantile_table(AZURE_CONV_PROBABILITIES, AZURE_CONV_OUTPUTS),
        rho=0.076,
        prompt_bounds=(2, 14050),
        output_bounds=(7, 1000),
    )


def _azure_code() -> Sampler:
    """AzureLLMInferenceTrace_code.csv, 2023; source and licence as for azure-conv."""
    return CopulaSampler(
        prompt=lognormal_mixture((0.307, 5.485, 1.306), (0.693, 7.650, 0.734)),
        output=lognormal_mixture((0.670, 2.373, 0.399), (0.330, 3.632, 0.920)),
        rho=-0.022,
        prompt_bounds=(3, 7437),
        output_bounds=(6, 1899),
    )


def _mooncake_conv() -> Sampler:
    """Mooncake, FAST25-release/traces/conversation_trace.jsonl (Apache-2.0)."""
    return CopulaSampler(
        prompt=lognormal_mixture((0.096, 6.809, 0.022), (0.904, 8.926, 1.072)),
        output=lognormal_mixture((0.334, 3.977, 1.611), (0.666, 6.013, 0.358)),
        rho=0.075,
        prompt_bounds=(891, 126195),
        output_bounds=(1, 2000),
    )


@dataclass(frozen=True, slots=True)
class ArxivSampler:
    """Vidur, arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv (MIT): all of its rows.

    5.1 % of the rows have outputs beyond 700 tokens after short prompts, probably an artefact of how the
    file was made; they are kept, since the preset stands for the file. Pairs beyond the file's own bound
    on their sum are drawn again, so fewer than `count` may come back.
    """

    prompt: Marginal
    output: Marginal
    tail_prompt: Marginal
    tail_output: Marginal
    tail_share: float = 0.051
    longest_total: int = 4096

    def __call__(self, generator: Generator, count: int) -> Lengths:
        """Lengths of up to `count` requests."""
        normal = generator.standard_normal((count, 3))
        in_tail = normal[:, 2] < NormalDist().inv_cdf(self.tail_share)
        prompt = np.where(in_tail, self.tail_prompt.tokens(normal[:, 0]), self.prompt.tokens(normal[:, 0]))
        output = np.where(
            in_tail,
            whole_tokens(self.tail_output.tokens(normal[:, 1]), 700, 4056),
            whole_tokens(self.output.tokens(normal[:, 1]), 5, 700),
        )
        prompt_tokens = whole_tokens(prompt, 1, 4054)
        fits = prompt_tokens + output <= self.longest_total
        return Lengths(prompt_tokens[fits], output[fits])


def _arxiv() -> Sampler:
    return ArxivSampler(
        prompt=scaled_beta(2.971, 1.578, 4096),
        output=lognormal_mixture((1, 5.054, 0.557)),
        tail_prompt=lognormal_mixture((1, 5.645, 1.83)),
        tail_output=uniform_marginal(700, 4056),
    )


PRESETS = {
    "sharegpt": Preset(_sharegpt, "ShareGPT, first turns: mean 297 in, 318 out"),
    "lmsys": Preset(_lmsys, "LMSYS-Chat-1M: mean 93 in, 220 out"),
    "azure-conv": Preset(_azure_conv, "chat at Azure: mean 1,136 in, 212 out"),
    "azure-code": Preset(_azure_code, "code at Azure: mean 1,977 in, 27 out"),
    "mooncake-conv": Preset(_mooncake_conv, "long chats at Kimi: mean 11,889 in, 345 out"),
    "arxiv": Preset(_arxiv, "papers to 4,096 tokens: mean 2,535 in, 265 out"),
}


def preset_sampler(name: str) -> Sampler:
    """The sampler behind a preset's name."""
    if name not in PRESETS:
        raise ScenarioError(f"workload.lengths.preset must be one of {', '.join(PRESETS)}, not {name!r}")
    return PRESETS[name].sampler()


def preset_descriptions() -> dict[str, str]:
    """Names of the presets, each with a line about it."""
    return {name: preset.description for name, preset in PRESETS.items()}
