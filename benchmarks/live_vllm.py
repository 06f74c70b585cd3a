"""vLLM's half of live.py, run by the Python of its own environment: requests in, seconds out."""

from __future__ import annotations

import json
import sys
import time


def main(folder: str, dtype: str) -> None:
    from vllm import LLM, SamplingParams

    engine = LLM(
        folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=1024,
        max_num_batched_tokens=4096,
        max_num_seqs=256,
        distributed_executor_backend="uni",
    )
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": tokens} for tokens, _ in asked]
        limits = [
            SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True, detokenize=False)
            for _, limit in asked
        ]
        started = time.perf_counter()
        answers = engine.generate(prompts, limits, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert [len(answer.outputs[0].token_ids) for answer in answers] == [limit for _, limit in asked]
        print(f"SECONDS {seconds}", flush=True)


main(*sys.argv[1:])
