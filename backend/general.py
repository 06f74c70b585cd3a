"""Any Hugging Face decoder with our paged attention plugged in; the model's own code stays as it is.

Source: transformers 5 hands each layer's query, key and value to a named function (`AttentionInterface`),
with every keyword that the model's forward does not know itself. That is how an iteration's attention
travels: as the keyword ``paged``, so that two models in one process never share state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from backend.batch import Attend, Batch, Forward
from simulator.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "servetwin_paged"


def register() -> None:
    """Make the attention known to transformers under `NAME`; doing so again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_paged)


def attend_paged(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 an unknown name gets no mask: the pages say who sees whom
    dropout: float = 0.0,  # noqa: ARG001
    scaling: float | None = None,
    *,
    paged: Attend,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """``query`` is [1, heads, tokens, dim] after rotation; the result is [1, tokens, heads, dim]."""
    if position_bias is not None:
        raise ModelError(
            "attention with a position bias cannot read paged keys; ServeTwin runs decoders without"
        )
    found = paged(
        int(module.layer_idx),  # type: ignore[arg-type] # every attention module of the interface has one
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or 0,
        softcap=softcap or 0.0,
        sinks=s_aux,
    )
    return found[None], None


def general_forward(module: PreTrainedModel) -> Forward:
    """The module's own forward over flattened tokens, as one sequence with explicit positions."""

    def forward(batch: Batch, attend: Attend) -> Tensor:
        wanted = 0 if batch.logit_rows is None else batch.logit_rows
        found = module(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            paged=attend,
        )
        logits: Tensor = found.logits[0]
        return logits

    return forward
