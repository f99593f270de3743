"""Products of layers in fp8, MXFP8 and NVFP4: whose peaks there are, and what casts, copies and scales weigh."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.devices.device import load_device
from simcluster.importers.megatron_bridge import _precision
from simcluster.model.layer_sections import cast
from simcluster.scenario.memory_plan import recipe_of, shape_of

FORMATS = {"fp8-mixed": 1.0, "mxfp8-mixed": 33 / 32, "nvfp4-mixed": 9 / 16}


@pytest.mark.parametrize(("precision", "each"), FORMATS.items())
def test_a_cast_reads_16_bits_and_writes_two_orders_with_their_scales(tiny: Any, precision: str, each: float) -> None:
    scenario = tiny(cluster={"topology": "dgx_b200", "nodes": 1}, training={"precision": precision, "global_batch": 8})
    (kernel,) = cast("input", shape_of(scenario), 1e6)
    assert kernel.bytes == pytest.approx((2 + 2 * each) * 1e6)
    assert recipe_of(scenario).copies == pytest.approx(2 * each if precision == "nvfp4-mixed" else 2)


def test_only_blackwell_scales_blocks() -> None:
    assert load_device("b200").peak_flops("nvfp4") == 2 * load_device("b200").peak_flops("mxfp8") == 9e15
    with pytest.raises(InputError, match="h100 has no peak for precision 'mxfp8'"):
        load_device("h100").peak_flops("mxfp8")


def test_megatron_bridges_words_for_them() -> None:
    assert _precision("bf16_with_mxfp8_mixed", "x")["fp8-recipe"] == ("mxfp8",)
    assert _precision("bf16_with_nvfp4_mixed", "x")["fp4-format"] == ("e2m1",)
