"""Iteration times from data-sheet numbers alone: each operator takes max(arithmetic, memory traffic).

Used where nothing was measured (marked as uncalibrated in every result), and to continue a measured
profile beyond its range: there only the ratio of two bounds is used, so the efficiencies cancel.
"""

from __future__ import annotations

from simulator.hardware import Hardware
from simulator.models import Model, dtype_bytes
from simulator.profile import Curve, DecodeAttention, PrefillAttention, Profile

# What large kernels reach of the data sheet. Bandwidth, fixed cost per element-wise kernel and all-reduce
# as in aiconfigurator-core 0.12.0 (systems/*.yaml: mem_bw_empirical_scaling_factor 0.8,
# mem_empirical_constant_latency 3 us); the two for arithmetic from its kernel tables: 4096-token GEMMs
# reach 0.65 to 0.95 of peak on H100 and A100, causal prefill attention of 8k tokens 0.56 to 0.61.
BANDWIDTH_EFFICIENCY = 0.8
GEMM_EFFICIENCY = 0.75
ATTENTION_EFFICIENCY = 0.55
KERNEL_NS = 3_000.0
ALL_REDUCE_NS = 5_000.0
HOST_NS = 200_000.0  # per iteration, rounded from calibration/host.json
DIAGONAL_PAIRS = 64.0  # masked pairs per token that a causal kernel computes on its 128-wide diagonal tile

TOKENS_REACH = 1 << 20
ROWS_REACH = 1 << 13
CONTEXT_REACH = 1 << 20

ELEMENTWISE_KERNELS = 3  # per layer: two norms with residual, one activation
_NOT_MULTIPLIED = frozenset(
    {"embedding", "positions", "norms", "head", "experts", "attention biases", "feed-forward biases"}
)


class Roofline:
    """Bounds in ns, all layers together, for one GPU of ``tensor_parallel``."""

    def __init__(self, model: Model, hardware: Hardware, dtype: str, tensor_parallel: int) -> None:
        model.check_tensor_parallel(tensor_parallel)
        self.model = model
        self.hardware = hardware
        self.dtype = dtype
        self.tensor_parallel = tensor_parallel
        self.weight_bytes = dtype_bytes(dtype)
        self.value_bytes = max(2, self.weight_bytes)  # activations of 8-bit weights stay at 16 bits
        self.bytes_per_ns = hardware.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY / 1e9
        self.flops_per_ns = self._peak(dtype) * GEMM_EFFICIENCY / 1e9
        values = "float32" if dtype == "float32" else "bfloat16"
        self.attention_flops_per_ns = self._peak(values) * ATTENTION_EFFICIENCY / 1e9

    def _peak(self, dtype: str) -> float:
        """Data-sheet rate; where the GPU has no such unit, weights are widened to the widest it has."""
        rates = self.hardware.flops_per_s
        return rates.get(dtype) or rates.get("bfloat16") or rates.get("float16") or rates["float32"]

    def tokens_ns(self, operator: str, tokens: float) -> float:
        """The bound of ``dense``, ``experts`` or ``all_reduce``."""
        return {"dense": self.dense_ns, "experts": self.experts_ns, "all_reduce": self.all_reduce_ns}[
            operator
        ](tokens)

    def dense_ns(self, tokens: float) -> float:
        """Projections, feed-forward blocks, norms and activations of all layers, and the embedding."""
        width = 4 * self.model.hidden + 3 * self._query_width() + 4 * self._inner_width()
        gemms = self._gemm_ns(self._dense_parameters(), tokens, width * self.model.layers)
        return gemms + self.elementwise_ns(tokens)

    def elementwise_ns(self, tokens: float) -> float:
        """Norms with residual, activation, rotary embedding and cache writes, the token embedding."""
        norms, activation = 2 * 4 * self.model.hidden, 3 * self._inner_width()
        rotary = 3 * self._query_width()
        values = tokens * (self.model.layers * (norms + activation + rotary) + 2 * self.model.hidden)
        kernels = self.model.layers * ELEMENTWISE_KERNELS + 1
        return values * self.value_bytes / self.bytes_per_ns + kernels * KERNEL_NS

    def experts_ns(self, tokens: float) -> float:
        """Routed experts. T tokens choose independently, so they touch E (1 - (1 - k/E)^T) of E experts."""
        model = self.model
        if not model.experts:
            return 0.0
        idle = float((1 - model.experts_per_token / model.experts) ** tokens)
        per_gpu = sum(
            part.per_gpu(self.tensor_parallel) for part in model.parts() if part.name == "experts"
        )
        traffic = per_gpu * (1 - idle) * self.weight_bytes / self.bytes_per_ns
        used = tokens * model.experts_per_token / model.experts
        return max(traffic, 2 * per_gpu * used / self.flops_per_ns) + model.moe_layers * KERNEL_NS

    def all_reduce_ns(self, tokens: float) -> float:
        """Ring all-reduces: two per layer and one after the embedding."""
        ways = self.tensor_parallel
        if ways == 1:
            return 0.0
        sent = 2 * (ways - 1) / ways * tokens * self.model.hidden * self.value_bytes
        link = self.hardware.interconnect_bytes_per_s * BANDWIDTH_EFFICIENCY / 1e9
        return (2 * self.model.layers + 1) * (ALL_REDUCE_NS + (sent / link if link else 0.0))

    def head_ns(self, rows: float) -> float:
        """Logits and sampling for each sequence that takes part."""
        model = self.model
        parameters = model.vocabulary * (model.embedding_width or model.hidden) / self.tensor_parallel
        return (
            self._gemm_ns(parameters, rows, model.hidden + model.vocabulary / self.tensor_parallel)
            + KERNEL_NS
        )

    def pair_ns(self) -> float:
        """Arithmetic of one query-key pair in prefill, all layers."""
        model = self.model
        dims = 2 * model.head_dim
        if model.latent_attention:
            dims = model.nope_head_dim + model.rope_head_dim + model.value_head_dim
        return 2 * dims * self._heads() * model.layers / self.attention_flops_per_ns

    def decode_ns(self, rows: float, context_tokens: float) -> float:
        """Attention of decoding rows; sliding layers read no more than their window of each row."""
        model = self.model
        sliding = model.sliding_layers / model.layers
        windowed = min(context_tokens, rows * model.sliding_window) if sliding else context_tokens
        keys = (1 - sliding) * context_tokens + sliding * windowed
        traffic = model.kv_bytes_per_token(self.dtype, self.tensor_parallel) / self.bytes_per_ns
        per_row = 2 * self._query_width() * self.value_bytes * model.layers / self.bytes_per_ns
        return model.layers * KERNEL_NS + rows * per_row + keys * max(traffic, self._key_flops_ns())

    def _key_flops_ns(self) -> float:
        """Arithmetic per key read by a decoding row; latent attention works in the latent space."""
        model = self.model
        dims = (
            2 * model.kv_lora_rank + model.rope_head_dim if model.latent_attention else 2 * model.head_dim
        )
        return 2 * dims * self._heads() * model.layers / self.attention_flops_per_ns

    def _gemm_ns(self, parameters: float, rows: float, values_per_row: float) -> float:
        traffic = parameters * self.weight_bytes + rows * values_per_row * self.value_bytes
        return max(2 * parameters * rows / self.flops_per_ns, traffic / self.bytes_per_ns)

    def _dense_parameters(self) -> int:
        parts = (part for part in self.model.parts() if part.name not in _NOT_MULTIPLIED)
        return sum(part.per_gpu(self.tensor_parallel) for part in parts)

    def _heads(self) -> float:
        return self.model.heads / self.tensor_parallel

    def _query_width(self) -> float:
        dim = self.model.value_head_dim if self.model.latent_attention else self.model.head_dim
        return self._heads() * dim

    def _inner_width(self) -> float:
        model = self.model
        routed = model.experts_per_token * model.expert_intermediate + model.shared_intermediate
        return (
            (model.dense_layers * model.intermediate + model.moe_layers * routed)
            / model.layers
            / self.tensor_parallel
        )


def roofline_profile(bounds: Roofline) -> Profile:
    """The bounds as a profile, so that uncalibrated time runs through the same arithmetic."""
    model = bounds.model
    tokens = tuple(float(count) for count in _log_grid(TOKENS_REACH))
    operators = [
        "dense",
        *(["experts"] if model.experts else []),
        *(["all_reduce"] if bounds.tensor_parallel > 1 else []),
    ]
    return Profile(
        name="roofline",
        kind="roofline",
        model=model.name,
        hardware=bounds.hardware.name,
        dtype=bounds.dtype,
        tensor_parallel=bounds.tensor_parallel,
        by_tokens={
            name: Curve(tokens, tuple(bounds.tokens_ns(name, count) for count in tokens))
            for name in operators
        },
        head=Curve(tokens, tuple(bounds.head_ns(count) for count in tokens)),
        prefill_attention=_prefill_attention(bounds),
        decode_attention=_decode_attention(bounds),
        host_ns=HOST_NS,
        notes=("uncalibrated: data-sheet roofline, no measurement of this model on this hardware",),
    )


def _prefill_attention(bounds: Roofline) -> PrefillAttention:
    model, pair_ns = bounds.model, bounds.pair_ns()
    launch = model.layers * KERNEL_NS
    most = float(CONTEXT_REACH) ** 2
    curve = Curve((1.0, most), (launch + pair_ns, launch + pair_ns * most))
    share = model.sliding_layers / model.layers
    return PrefillAttention(
        DIAGONAL_PAIRS, 0.0, curve, CONTEXT_REACH, model.sliding_window if share else 0, share
    )


def _decode_attention(bounds: Roofline) -> DecodeAttention:
    window = bounds.model.sliding_window if bounds.model.sliding_layers else 0
    contexts = sorted({1, window or 1, CONTEXT_REACH})
    rows = tuple(1 << power for power in range(ROWS_REACH.bit_length()))
    ns = tuple(tuple(bounds.decode_ns(count, count * context) for context in contexts) for count in rows)
    return DecodeAttention(rows, tuple(contexts), ns)


def _log_grid(reach: int) -> list[int]:
    """Whole numbers a factor of about 2^(1/4) apart: straight lines between them miss a knee by < 2 %."""
    return sorted({round(2 ** (step / 4)) for step in range(4 * (reach.bit_length() - 1) + 1)})
