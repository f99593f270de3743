"""Dispatch of tokens to experts, and combine of expert outputs: collectives, bytes and SMs of both.

Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, assert_never

from pydantic import Field

from simcluster.collectives.token_relay import COMBINE, DISPATCH
from simcluster.documents.base_spec import Spec
from simcluster.model.mixture import RoutedRows

REACH = 0.9
"""Share that DeepEP reaches of the rate of its slowest links, as the topologies here define it: the middle of 16
figures of deepseek-ai/DeepEP@0297fc8, docs/legacy.md and README.md (0.85 to 0.96 where NICs limit it, 0.75 to 0.90
where NVLink does; tests/test_dispatch.py)."""
_DEFAULT_SMS = {"alltoall": 0, "allgather": 0, "deepep": 20, "hybridep": 16}  # Megatron-LM, transformer_config.py
_BLOCK = 128  # elements that have one fp32 scale (DeepSeek-V3; arXiv:2412.19437 section 3.3.2)


TokenFormat = Literal["activations", "fp8"]


class TokenTransfer(NamedTuple):
    """Collective over the ep axis that carries tokens: its kind and the bytes of its buffer."""

    kind: str
    size: float


class ExpertDispatch(Spec):
    """Dispatch of tokens to experts: Megatron-LM's --moe-token-dispatcher-type, or a library of its flex dispatcher."""

    kind: Literal["alltoall", "allgather", "deepep", "hybridep"] = "alltoall"
    """How tokens reach experts: a copy to every expert that a token visits, by NCCL's all-to-all (alltoall); all tokens
    to all ep ranks, and a reduce-scatter of the results (allgather); or one copy to each NVLink domain, relayed there
    (deepep, hybridep)."""
    sms: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    """Number of SMs (multiprocessors) that dispatch kernels take from compute; default: as in Megatron-LM, 20 (deepep)
    or 16 (hybridep)."""
    dtype: TokenFormat = "activations"
    """Number format of tokens, and of gradients of expert outputs, when sent; fp8 has an fp32 scale per 128
    elements."""
    combine_dtype: TokenFormat = "activations"
    """Number format in which expert outputs, and gradients of tokens, are sent back."""
    reach: Annotated[float, Field(gt=0, le=1)] = REACH
    """Share of the links' rates that the dispatch kernels (deepep, hybridep) reach."""

    @property
    def relays_tokens(self) -> bool:
        """Whether each node receives one copy of a token and relays the copy to its GPUs over NVLink."""
        match self.kind:
            case "deepep" | "hybridep":
                return True
            case "alltoall" | "allgather":
                return False
        assert_never(self.kind)

    @property
    def dispatch_sms(self) -> int:
        """Number of SMs that dispatch kernels occupy; 0 for NCCL kernels, which are modelled as interference."""
        return _DEFAULT_SMS[self.kind] if self.sms is None else self.sms

    def dispatch_transfer(self, rows: RoutedRows, ranks: int, element_bytes: float) -> TokenTransfer:
        """Return the collective that sends tokens (or gradients of expert outputs) to the ranks of an ep group."""
        sent = _sent_element_bytes(self.dtype, element_bytes)
        return self._make_transfer(rows, ranks, sent, ("all_gather", DISPATCH))

    def combine_transfer(self, rows: RoutedRows, ranks: int, element_bytes: float) -> TokenTransfer:
        """Return the collective that returns expert outputs (or gradients of tokens) to the ranks of the tokens."""
        sent = _sent_element_bytes(self.combine_dtype, element_bytes)
        return self._make_transfer(rows, ranks, sent, ("reduce_scatter", COMBINE))

    def _make_transfer(self, rows: RoutedRows, ranks: int, item_bytes: float, kinds: tuple[str, str]) -> TokenTransfer:
        row = rows.hidden * item_bytes
        match self.kind:
            case "allgather":
                return TokenTransfer(kinds[0], row * rows.tokens * ranks)
            case "alltoall":
                return TokenTransfer("all_to_all", row * rows.sent)
            case "deepep" | "hybridep":
                return TokenTransfer(kinds[1], row * rows.sent)
        assert_never(self.kind)


def _sent_element_bytes(dtype: TokenFormat, element_bytes: float) -> float:
    match dtype:
        case "fp8":
            return 1.0 + 4.0 / _BLOCK
        case "activations":
            return element_bytes
    assert_never(dtype)
