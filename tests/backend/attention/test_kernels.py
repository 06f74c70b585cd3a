"""Every kernel against the reference, and the promise that a row never notices its batch mates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch", reason="the live backend needs torch (pip install servetwin[live])")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from backend.attention import Kernels, reference  # noqa: E402
from tests.backend.attention.cases import TOLERANCES, Case, Shape, cases, make_case  # noqa: E402

thorough = settings(max_examples=30, deadline=None)


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=TOLERANCES[found.dtype], atol=TOLERANCES[found.dtype])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def queries(case: Case, tokens: int) -> torch.Tensor:
    made = torch.randn(tokens, *case.query.shape[1:], generator=torch.Generator().manual_seed(tokens))
    return made.to(case.query.dtype)


@thorough
@given(case=cases())
def test_a_decode_equals_the_reference_and_reads_nothing_unused(kernels: Kernels, case: Case) -> None:
    assert_near(case.decode(kernels), case.decode(reference.KERNELS))


@thorough
@given(case=cases(rows=1), share=st.floats(0, 1))
def test_a_prefill_equals_the_reference(kernels: Kernels, case: Case, share: float) -> None:
    query = queries(case, min(80, max(1, int(share * int(case.lengths[0])))))
    assert_near(case.prefill(kernels, 0, query), case.prefill(reference.KERNELS, 0, query))


@thorough
@given(case=cases(rows=8), random=st.randoms(use_true_random=False))
def test_a_row_is_the_same_bit_for_bit_alone_and_in_any_batch(kernels: Kernels, case: Case, random) -> None:
    together = case.decode(kernels)
    order = list(range(len(case.query)))
    random.shuffle(order)
    assert torch.equal(case.rows(order).decode(kernels), together[order])
    for row in order:
        assert torch.equal(case.rows([row]).decode(kernels)[0], together[row])


@thorough
@given(case=cases(rows=4))
def test_the_number_of_threads_changes_no_bit_of_the_native_kernel(native: Kernels, case: Case) -> None:
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(case.decode(native))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@thorough
@given(case=cases(rows=1), tokens=st.integers(1, 120))
def test_native_tokens_are_the_same_bits_decoded_or_prefilled_in_any_chunks(
    native: Kernels, case: Case, tokens: int
) -> None:
    length = int(case.lengths[0])
    query = queries(case, min(tokens, length))
    start, tables = length - len(query), case.blocks.expand(len(query), -1)
    ends = torch.arange(start + 1, length + 1, dtype=torch.int32)
    arguments = (case.keys, case.values)
    whole = case.prefill(native, 0, query)
    scale = query.shape[-1] ** -0.5
    assert torch.equal(whole, native.decode(query, *arguments, tables, ends, scale, **case.options))
    cut = len(query) // 3
    first = (
        native.prefill(query[:cut], *arguments, case.blocks[0], start, scale, **case.options)
        if cut
        else query[:0]
    )
    rest = native.prefill(query[cut:], *arguments, case.blocks[0], start + cut, scale, **case.options)
    assert torch.equal(whole, torch.cat([first, rest]))


def test_a_long_context_is_split_among_threads_without_loss(kernels: Kernels) -> None:
    case = make_case(Shape(2, 3, 64, 16, torch.float32), [9000, 3, 4097], [], seed=5)
    assert_near(case.decode(kernels), case.decode(reference.KERNELS))
    assert torch.equal(case.rows([0]).decode(kernels)[0], case.decode(kernels)[0])


def test_scores_far_apart_neither_overflow_nor_vanish(kernels: Kernels) -> None:
    case = make_case(Shape(1, 2, 32, 16, torch.float32), [200], [], seed=6)
    case.query.mul_(1000.0)
    assert_near(case.decode(kernels), case.decode(reference.KERNELS))


def test_written_tokens_lie_where_their_slots_say(kernels: Kernels) -> None:
    keys, values = torch.zeros(4, 2, 1, 3), torch.zeros(4, 2, 1, 3)
    k = torch.arange(6.0).view(2, 1, 3)
    kernels.write(k, -k, keys, values, torch.tensor([5, 0]))
    assert torch.equal(keys[2, 1], k[0])
    assert torch.equal(values[0, 0], -k[1])
    assert keys.count_nonzero() == 5
