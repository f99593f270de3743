"""Recipes and registries in Python that say one thing in several sections, or through functions of other files."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.importers.imported import Imported
from simcluster.importers.megatron_bridge import scenario_from_bridge

CLUSTER = {"topology": "dgx_h100", "nodes": 1}
RECIPE = """
def small_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider()
    cfg.optimizer = OptimizerConfig(bf16=True, fp16=False, use_distributed_optimizer=SHARDED)
    cfg.mixed_precision = PRECISION
    cfg.ddp.grad_reduce_in_fp32 = False
    cfg.ddp.use_distributed_optimizer = False
    cfg.peft = ADAPTERS
    return cfg
"""


def recipe(precision: str, *, sharded: bool = True, adapters: str = "None") -> Imported:
    text = f"PRECISION = {precision}\nSHARDED = {sharded}\nADAPTERS = {adapters}\n{RECIPE}"
    return scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="small_config", gpus=8)


@pytest.mark.parametrize(
    ("precision", "training"),
    [
        ("'bf16_mixed'", ("bf16-mixed", "mixed-18")),  # its gradients are reduced in 32 bits, whatever DDP says
        ("'fp16_mixed'", ("fp16-mixed", "mixed-16")),
        ("MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=False)", ("bf16-mixed", "mixed-16")),
    ],
)
def test_mixed_precision_has_the_last_word_in_a_recipe(precision: str, training: tuple[Any, ...]) -> None:
    found = recipe(precision).document["training"]
    assert (found["precision"], found["memory_recipe"]) == training


def test_a_distributed_optimizer_is_on_where_the_optimizer_or_ddp_has_it() -> None:
    zero = [recipe("'bf16_mixed'", sharded=sharded).document["parallel"]["zero"] for sharded in (True, False)]
    assert zero == [1, 0]


def test_a_recipe_that_trains_adapters_is_refused() -> None:
    with pytest.raises(InputError, match="small_config trains adapters beside weights that stand still"):
        recipe("'bf16_mixed'", adapters="default_peft_config('lora')")
