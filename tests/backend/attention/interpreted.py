"""Compares the Triton kernels with the reference in Triton's interpreter; run by test_triton.py."""

from __future__ import annotations

import sys

import torch

from backend.attention import reference, triton_kernels
from tests.backend.attention.cases import TOLERANCES, Shape, make_case

CASES = (
    (Shape(2, 2, 64, 16, torch.float32), [1, 16, 17, 600], []),
    (Shape(3, 3, 80, 32, torch.float32), [65, 513, 1100], ["window", "sinks"]),
    (Shape(1, 8, 32, 1, torch.bfloat16), [1, 130], ["softcap"]),
    (Shape(6, 1, 128, 128, torch.float16), [300, 9], ["window"]),
    (Shape(2, 3, 96, 16, torch.bfloat16), [70], ["sinks", "softcap", "window"]),
    (Shape(1, 1, 20, 16, torch.float32), [513], ["sinks"]),
)


def main() -> None:
    for number, (shape, lengths, options) in enumerate(CASES):
        case = make_case(shape, lengths, options, seed=number)
        tolerance = TOLERANCES[shape.dtype]
        together = case.decode(triton_kernels.KERNELS)
        torch.testing.assert_close(together, case.decode(reference.KERNELS), rtol=tolerance, atol=tolerance)
        for row in range(len(lengths)):
            if not torch.equal(case.rows([row]).decode(triton_kernels.KERNELS)[0], together[row]):
                sys.exit(f"case {number}: row {row} depends on its batch mates")
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        query = torch.randn(min(37, lengths[longest]), *case.query.shape[1:]).to(shape.dtype)
        found = case.prefill(triton_kernels.KERNELS, longest, query)
        wanted = case.prefill(reference.KERNELS, longest, query)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
        print(f"case {number} agrees")


if __name__ == "__main__":
    main()
