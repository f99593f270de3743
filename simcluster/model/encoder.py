"""The ``model.encoder`` section: a vision encoder in front of the language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.model.defaults import Count, Natural

ENCODER = "vision_"
"""Beginning of the names of an encoder's layer kinds, ops and kernels."""


class Encoder(Spec):
    """Vision encoder of a vision-language model: patch embedding, transformer layers, and a merger.

    It runs on the ranks that have the embedding, before the layers. Its output replaces the embeddings of image tokens,
    which are part of ``sequence_length``. Layers have biases.
    """

    layers: Annotated[int, Field(strict=True, ge=1, le=1000)]
    """Number of transformer layers of the encoder."""
    hidden_size: Count
    """Width of the encoder's hidden state."""
    heads: Count
    """Number of attention heads of the encoder."""
    ffn_hidden_size: Count
    """Width of the encoder's MLP."""
    image_tokens: Count
    """Mean number of image tokens in a sequence; the fault kind image_tokens draws other numbers."""
    tokens_per_image: Count | None = None
    """Number of tokens of one image, within which patches attend to each other; default: image_tokens."""
    patches_per_token: Count = 4
    """Number of patches that the merger makes one token of."""
    patch_values: Count
    """Numbers of one patch: channels x frames x height x width."""
    patch_bias: StrictBool = False
    """Whether the patch embedding has a bias."""
    position_rows: Natural = 0
    """Number of rows of the encoder's table of learned positions."""
    gated_mlp: StrictBool = False
    """Whether the encoder's MLP has a gate."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of the encoder's norms: layernorm or rmsnorm."""
    attention_window: Count | None = None
    """Number of patches of an attention window; no effect on images that are not larger; default: the image."""
    full_attention_every: Count | None = None
    """Interval of layers with attention within the whole image instead of a window."""
    split_by_tp: StrictBool = False
    """Whether tp splits the encoder's heads and MLPs (Megatron-LM's LLaVA, Megatron-Bridge's Qwen3-VL), instead of
    running all of it on every tp rank (Megatron-Bridge's Qwen2.5-VL)."""
    deepstack: Natural = 0
    """Number of further mergers, on the outputs of layers between (Qwen3-VL)."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.hidden_size % self.heads:
            raise InputError(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}; use a divisor")
        if (self.tokens_per_image or 0) > self.image_tokens:
            what = f"tokens_per_image {self.tokens_per_image} is more than image_tokens {self.image_tokens}"
            raise InputError(f"{what}; lower it, or remove it if a sequence has one image")
        if self.full_attention_every is not None and self.attention_window is None:
            raise InputError("full_attention_every selects layers without a window; also set attention_window")
        if self.deepstack > self.layers:
            raise InputError(f"deepstack {self.deepstack} is more than the {self.layers} layers; lower it")
        return self

    @property
    def num_parts(self) -> int:
        """Number of parts that count as layers: the patch embedding, the layers, and the mergers."""
        return self.layers + 2 + self.deepstack

    def layer_type(self, part: int) -> tuple[str, str]:
        """Return the word and the layer kind of a part, in forward order."""
        if not 1 <= part <= self.layers:
            word = "patches" if not part else "merger" if part == self.num_parts - 1 else "deepstack"
            return word, f"{ENCODER}{'patches' if not part else 'merger'}"
        whole = self.attention_window is None or (self.full_attention_every and part % self.full_attention_every == 0)
        return "image" if whole else "window", f"{ENCODER}layer"

    def kind_sizes(self, word: str) -> Mapping[str, int]:
        """Return the sizes of the layer kind of a part."""
        width, merge = self.hidden_size, self.patches_per_token
        shared = {"width": width, "patches": self.image_tokens * merge}
        norms = {"norm_vectors": {"layernorm": 2, "rmsnorm": 1}[self.norm], "shards": self.split_by_tp + 0}
        if word == "patches":
            return {**shared, "values": self.patch_values, "bias": self.patch_bias + 0, "positions": self.position_rows}
        if word in ("merger", "deepstack"):
            return {**shared, **norms, "merge": merge, "normed_width": width * (1 if word == "merger" else merge)}
        image = (self.tokens_per_image or self.image_tokens) * merge
        span = image if word == "image" else min(self.attention_window or image, image)
        sizes = {"heads": self.heads, "ffn": self.ffn_hidden_size, "span": span, "gates": self.gated_mlp + 0}
        return {**shared, **norms, **sizes}


def check_image_tokens(encoder: Encoder | None, sequence_length: int) -> None:
    """Raise InputError if image tokens do not fit in a sequence."""
    if encoder and encoder.image_tokens > sequence_length:
        what = f"encoder.image_tokens {encoder.image_tokens} is more than sequence_length {sequence_length}"
        raise InputError(f"{what}, which includes them; lower it, or raise sequence_length")
