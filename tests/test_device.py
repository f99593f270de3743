"""How long kernels take: ceilings that nothing may break, closed forms, and the measurements behind the constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.devices.device import (
    Device,
    TiledMatmul,
    device_names,
    kernel_seconds,
    kernel_sequence_seconds,
    load_device,
    load_device_entry,
    memory_kernel_seconds,
)
from simcluster.devices.step_end_passes import (
    Pass,
    fsdp_copy_seconds,
    gradient_pass_seconds,
    parameter_pass_seconds,
)
from simcluster.model.kernels import Kernel
from simcluster.model.recipes import RECIPES

sizes = st.integers(1, 40_000)
devices = st.sampled_from(device_names())
tiled = st.sampled_from([name for name in device_names() if isinstance(load_device(name).matmul, TiledMatmul)])


def product(m: int, k: int, n: int, *, batch: int = 1, output_bytes: int = 2) -> Kernel:
    size = batch * (2.0 * (m * k + k * n) + output_bytes * m * n)
    return Kernel("product", "matmul", 2.0 * batch * m * n * k, size, m, n, k, batch)


def attention(sequence: int, heads: int, *, factor: float = 0.5, products: int = 2) -> Kernel:
    flops = 2.0 * products * heads * sequence * sequence * 128 * factor
    return Kernel("attention", "attention", flops, 8.0 * heads * sequence * 128, sequence, sequence, 128, heads)


def changed(name: str, **fields: object) -> Device:
    return load_device({"base": name, **fields})


# --- invariants -----------------------------------------------------------------------------------------------------


@given(devices, sizes, sizes, sizes, st.integers(1, 64))
def test_nothing_beats_the_roofline(name: str, m: int, k: int, n: int, batch: int) -> None:
    device, kernel = load_device(name), product(m, k, n, batch=batch)
    least = max(kernel.flops / device.peak_flops("bf16"), kernel.bytes / device.memory_bandwidth)
    assert kernel_seconds(device, kernel, precision="bf16") > device.launch + least


@given(tiled, sizes, sizes, sizes, st.integers(1, 8), st.integers(0, 500), st.integers(0, 3))
def test_a_larger_product_is_never_faster(name: str, m: int, k: int, n: int, batch: int, more: int, grows: int) -> None:
    k, n = 8 * -(-k // 8), 8 * -(-n // 8)  # a width that is no multiple of 8 is slower than the next one that is
    larger = [m, k, n, batch]
    larger[grows] += more * (8 if grows in (1, 2) else 1)
    device = load_device(name)
    before = kernel_seconds(device, product(m, k, n, batch=batch), precision="bf16")
    after = kernel_seconds(device, product(*larger[:3], batch=larger[3]), precision="bf16")
    assert after >= before * (1 - 1e-12)


@given(devices, sizes, sizes, sizes, st.floats(1, 10))
def test_a_better_device_is_never_slower(name: str, m: int, k: int, n: int, factor: float) -> None:
    kernels = [product(m, k, n), attention(m, 8), Kernel("norm", "memory", 0.0, 4.0 * m * n)]
    device = load_device(name)
    faster = changed(name, memory_bandwidth=f"{device.memory_bandwidth * factor!r} B/s")
    stronger = changed(name, peak={"bf16": f"{device.peak_flops('bf16') * factor!r} FLOP/s"})
    for kernel in kernels:
        now = kernel_seconds(device, kernel, precision="bf16") * (1 + 1e-12)
        assert kernel_seconds(faster, kernel, precision="bf16") <= now
        assert kernel_seconds(stronger, kernel, precision="bf16") <= now


@given(devices, st.lists(sizes, max_size=8))
def test_kernels_of_one_stream_run_one_after_the_other(name: str, widths: list[int]) -> None:
    device, kernels = load_device(name), [product(width, 512, 512) for width in widths]
    each = [kernel_seconds(device, kernel, precision="bf16") for kernel in kernels]
    assert kernel_sequence_seconds(device, kernels, precision="bf16") == pytest.approx(sum(each), rel=1e-12)


@pytest.mark.parametrize("name", device_names())
def test_every_shipped_device_is_sound(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    for part in (device, device.peak, device.matmul, *device.attention.kernels.values()):
        assert part.source
    assert Device.model_validate(device.model_dump(mode="json", exclude_none=True)) == device
    assert device.peak_flops("bf16") == device.peak_flops("fp16") > (device.peak.tf32 or 0.0)


def test_a_document_of_the_catalogue_is_fresh() -> None:
    load_device_entry("h100")["peak"]["bf16"] = "1 FLOP/s"
    assert load_device(load_device_entry("h100")).peak_flops("bf16") == 989e12


# --- closed forms ---------------------------------------------------------------------------------------------------


def plain_h100(**matmul: object) -> Device:
    """132 multiprocessors, 128 x 256 tiles, and nothing else in the way."""
    ideal = {"tiles": [[128, 256]], "power": 1.0, "sustained": 1.0, "clock": 1.0, "epilogue": 0.0, "misaligned": 1.0}
    return changed("h100", matmul={**ideal, **matmul}, launch="0 s", memory_bandwidth="1000 TB/s")


@pytest.mark.parametrize(
    ("m", "n", "efficiency"),
    [(8192, 4096, 0.9697), (8192, 4097, 0.8622), (8192, 28672, 0.9873), (2112, 4096, 0.6667)],
)
def test_tiles_and_waves_are_quantised(m: int, n: int, efficiency: float) -> None:
    kernel = product(m, 4096, n)
    seconds = kernel_seconds(plain_h100(), kernel, precision="bf16")
    assert kernel.flops / seconds / 989e12 == pytest.approx(efficiency, abs=5e-5)


def test_under_the_power_ceiling_a_partly_filled_wave_costs_its_tiles_only() -> None:
    kernel = product(8192, 4096, 4096)
    seconds = kernel_seconds(plain_h100(power=0.7), kernel, precision="bf16")
    assert seconds == pytest.approx(kernel.flops / (0.7 * 989e12), rel=1e-12)


def test_what_is_sustained_is_a_share_of_the_power_ceiling() -> None:
    kernel, ceilings = product(8192, 4096, 4096), {"power": 0.8, "sustained": 0.7, "sustained_fp8": 0.5}
    device = plain_h100(**ceilings)
    for precision, expected in (("bf16", 0.8 * 0.7 * 989e12), ("fp8", 0.709 * 0.5 * 1979e12)):
        assert kernel.flops / kernel_seconds(device, kernel, precision=precision) == pytest.approx(expected, rel=1e-12)
    shared = plain_h100(**{**ceilings, "sustained_fp8": None})
    assert kernel.flops / kernel_seconds(shared, kernel, precision="fp8") == pytest.approx(0.709 * 0.7 * 1979e12)


def test_products_side_by_side_fill_the_last_wave_together() -> None:
    """33 tiles are a quarter of a wave: alone each product takes a whole one, four side by side share it."""
    alone = product(128 * 33, 1024, 256)
    assert kernel_seconds(plain_h100(), alone, precision="bf16") == kernel_seconds(
        plain_h100(), product(128 * 132, 1024, 256), precision="bf16"
    )
    beside = replace(alone, concurrent_matmuls=4)
    assert kernel_seconds(plain_h100(), beside, precision="bf16") == pytest.approx(
        kernel_seconds(plain_h100(), alone, precision="bf16") / 4, rel=1e-12
    )


def test_a_batch_fills_waves_together() -> None:
    one = kernel_seconds(plain_h100(), product(128, 1024, 256), precision="bf16")
    assert kernel_seconds(plain_h100(), product(128, 1024, 256, batch=132), precision="bf16") == one
    assert kernel_seconds(plain_h100(), product(128, 1024, 256, batch=133), precision="bf16") == 2 * one


@pytest.mark.parametrize("output_bytes", [2, 8])
def test_the_exposed_epilogue_is_an_efficiency_in_k(output_bytes: int) -> None:
    matmul = {"tiles": [[128, 128]], "clock": 1.0, "power": 0.79, "sustained": 1.0}
    device = changed("a100-80gb", matmul=matmul, launch="0 s")
    k0 = 0.66 * output_bytes * 312e12 * 0.79 / (2 * 2039e9 * 0.84)
    for k in (1024, 4096, 16384):
        kernel = product(128 * 108, k, 128 * 100, output_bytes=output_bytes)
        efficiency = kernel.flops / kernel_seconds(device, kernel, precision="bf16") / 312e12
        assert efficiency == pytest.approx(0.79 * k / (k + k0), rel=1e-12)


def test_a_very_shallow_product_is_memory_bound() -> None:
    device, kernel = load_device("a100-80gb"), product(8192, 16, 8192)
    seconds = kernel_seconds(device, kernel, precision="bf16")
    assert seconds == pytest.approx(1e-6 + kernel.bytes / (2039e9 * 0.84), rel=1e-12)


def test_calculon_times_a_product_as_calculon_does() -> None:
    kernel = product(8192, 4096, 4096)
    summed = kernel_seconds(load_device("calculon-a100-80gb"), kernel, precision="bf16")
    larger = kernel_seconds(changed("calculon-a100-80gb", matmul={"combine": "max"}), kernel, precision="bf16")
    assert summed == pytest.approx(1.0184e-3, abs=5e-8)
    assert larger == pytest.approx(0.9274e-3, abs=5e-8)
    assert summed - larger == pytest.approx(0.0910e-3, abs=5e-8)


def test_memory_kernels_reach_half_their_rate_at_the_half_size() -> None:
    device = changed("a100-80gb", launch="0 s")
    assert device.memory_half_size / memory_kernel_seconds(device, device.memory_half_size) == pytest.approx(
        0.84 * 2039e9 / 2, rel=1e-12
    )
    assert memory_kernel_seconds(load_device("a100-80gb"), 0) == 1e-6


def test_adam_moves_thirty_bytes_a_parameter() -> None:
    device = changed("h100", launch="0 s", memory_half_size="1 B")

    def seconds(of: Pass, recipe: str) -> float:
        return parameter_pass_seconds(device, 1e9, of, recipe=RECIPES[recipe])

    assert seconds("optimizer", "mixed-18") == pytest.approx(10.66098e-3, rel=1e-5)
    assert seconds("optimizer", "mixed-16") == pytest.approx(10.66098e-3 * 28 / 30, rel=1e-5)
    extras: tuple[Pass, ...] = ("norm", "zero")
    for extra in extras:
        assert seconds(extra, "mixed-18") == pytest.approx(10.66098e-3 * 4 / 30, rel=1e-5)
        assert seconds(extra, "mixed-16") == pytest.approx(10.66098e-3 * 2 / 30, rel=1e-5)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_attention_runs_at_its_forward_or_backward_rate(factor: float) -> None:
    device = changed("a100-80gb", launch="0 s")
    for products, efficiency in ((2, 0.737), (5, 0.63)):
        kernel = attention(8192, 32, factor=factor, products=products)
        seconds = kernel_seconds(device, kernel, precision="bf16")
        diagonal = 1 + 128 / 8192 if factor < 1 else 1  # its blocks are computed whole
        assert seconds == pytest.approx(diagonal * kernel.flops / (312e12 * efficiency), rel=1e-12)


def test_attention_with_few_blocks_leaves_multiprocessors_idle() -> None:
    device = changed("a100-80gb", launch="0 s")
    full = kernel_seconds(device, attention(128 * 54, 2), precision="bf16")
    assert kernel_seconds(device, attention(128 * 54, 1), precision="bf16") == pytest.approx(full, rel=1e-12)


def test_attention_stays_in_bf16_under_fp8() -> None:
    device, kernel = load_device("h100"), attention(8192, 32)
    assert kernel_seconds(device, kernel, precision="fp8") == kernel_seconds(device, kernel, precision="bf16")
    assert kernel_seconds(device, product(8192, 8192, 8192), precision="fp8") < kernel_seconds(
        device, product(8192, 8192, 8192), precision="bf16"
    )


@pytest.mark.parametrize(("exponent", "share"), [(1.0, 1 / 2), (2.0, 1 / math.sqrt(2)), (3.0, 2 ** (-1 / 3))])
def test_idle_multiprocessors_leave_power_for_a_higher_clock(exponent: float, share: float) -> None:
    """Half a wave takes half of a whole one's seconds where power buys clock one to one, more where it does not."""
    matmul = {"tiles": [[128, 128]], "power": 0.4, "sustained": 1.0, "clock": 1.0, "epilogue": 0.0}
    seconds = [
        kernel_seconds(device, product(128 * tiles, 2**20, 128), precision="bf16") - device.launch
        for device in [changed("a100-80gb", matmul={**matmul, "power_exponent": exponent})]
        for tiles in (54, 108)
    ]
    assert seconds[0] / seconds[1] == pytest.approx(share, rel=1e-12)


def test_the_attention_kernel_is_a_choice() -> None:
    kernel = attention(8192, 32)
    older = changed("h100", attention={"kernel": "flash2"})
    ratio = kernel_seconds(older, kernel, precision="bf16") / kernel_seconds(
        load_device("h100"), kernel, precision="bf16"
    )
    assert ratio == pytest.approx(0.639 / 0.345 * (1 + 2 * 148 / 8192) / (1 + 2 * 219 / 8192), rel=0.01)


@pytest.mark.parametrize(
    ("kernel", "tokens", "reached"),  # arXiv:2407.08608v1 figure 5: forward, heads of 128, causal, 16,384 tokens in all
    [
        ("flash2", 16384, 335), ("flash2", 4096, 319), ("flash2", 2048, 298),
        ("cudnn", 16384, 539), ("cudnn", 4096, 518), ("cudnn", 2048, 484),
        ("flash3", 16384, 616), ("flash3", 8192, 602), ("flash3", 4096, 579), ("flash3", 2048, 521),
    ],
)  # fmt: skip
def test_attention_reaches_what_the_paper_shows(kernel: str, tokens: int, reached: float) -> None:
    device = changed("h100", attention={"kernel": kernel}, launch="0 s")
    one = attention(tokens, 16 * 16384 // tokens)
    rate = one.flops / kernel_seconds(device, one, precision="bf16") / 1e12
    assert rate == pytest.approx(reached, rel=0.015)


def test_a_score_costs_its_exponential_whatever_the_head_size() -> None:
    """From the rates at 64 and 128 follows what the same paper says of 256: 740 TFLOP/s, 75 % of peak, at most."""
    flash3 = load_device("h100").attention.kernels["flash3"]
    assert flash3.peak_fraction(128, backward=False) == pytest.approx(flash3.forward, rel=1e-12)
    assert flash3.peak_fraction(64, backward=True) == pytest.approx(0.488, rel=1e-12)
    assert flash3.peak_fraction(256, backward=False) == pytest.approx(0.75, abs=0.01)
    assert (
        flash3.peak_fraction(128, backward=False)
        > flash3.peak_fraction(96, backward=False)
        > flash3.peak_fraction(64, backward=False)
    )
    flat = load_device("a100-80gb").attention.kernels["flash2"]
    assert flat.peak_fraction(64, backward=False) == flat.forward


def test_attention_sustains_a_part_of_its_rate() -> None:
    whole, half = (changed("h100", attention={"sustained": part}, launch="0 s") for part in (1.0, 0.5))
    one = attention(8192, 32)
    seconds = kernel_seconds(half, one, precision="bf16")
    assert seconds == pytest.approx(2 * kernel_seconds(whole, one, precision="bf16"), rel=1e-12)


# --- measurements ---------------------------------------------------------------------------------------------------

# (m, k, n, bytes moved for an output element, fraction of 312 TFLOP/s): every thirteenth of 183 products measured on an
# A100-PCIe-80GB, MooreThreads/SimuMax@4dcaae5, configs/system/a100_pcie.json.
MEASURED = (
    (4096, 5120, 1536, 2, 0.78767),
    (4096, 5120, 16384, 2, 0.76124),
    (5120, 4096, 3072, 8, 0.67453),
    (4096, 7168, 576, 2, 0.49845),
    (4096, 4096, 7168, 2, 0.71249),
    (129280, 4096, 7168, 8, 0.71217),
    (4096, 4096, 128384, 2, 0.74582),
    (4096, 64256, 4096, 2, 0.75299),
    (4096, 4096, 3584, 8, 0.63449),
    (4096, 1792, 4096, 2, 0.68041),
    (4096, 57344, 8192, 2, 0.75487),
    (8192, 4096, 4096, 8, 0.69113),
    (4096, 2048, 8192, 2, 0.6787),
    (4096, 1280, 8192, 2, 0.72345),
    (16128, 4096, 8192, 8, 0.70355),
)


def test_products_measured_on_an_a100_pcie() -> None:
    device, errors = load_device("a100-80gb-pcie"), []
    for m, k, n, output_bytes, efficiency in MEASURED:
        kernel = product(m, k, n, output_bytes=output_bytes)
        seconds = kernel_seconds(device, kernel, precision="bf16")
        errors.append(math.log(seconds * efficiency * 312e12 / kernel.flops))
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.05  # the fit: 0.049 over all 183
    assert max(abs(error) for error in errors) < 0.15


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "best"),
    [
        ("a100-80gb", 1024, 10240, 5120, 271.2e12),
        ("a100-80gb-pcie", 2048, 5120, 6144, 252.9e12),
        ("h100", 2048, 2048, 13312, 794.5e12),
        ("b200", 1792, 16128, 3072, 1745e12),
        ("mi355x", 12288, 8192, 8192, 1565e12),
    ],
)
def test_no_device_beats_the_best_ever_measured_on_it(name: str, m: int, n: int, k: int, best: float) -> None:
    """The best over thousands of shapes (stas00/ml-engineering@744d01e, MAMF) is above what its shape gets here."""
    kernel, device = product(m, k, n), load_device(name)
    assert isinstance(device.matmul, TiledMatmul)
    rate = kernel.flops / kernel_seconds(device, kernel, precision="bf16")
    assert 0.85 * best * device.matmul.sustained < rate < best


@pytest.mark.parametrize(("name", "clock"), [("mi355x", 2.4e9), ("mi350x", 2.2e9)])
def test_peaks_of_cdna4_are_its_clock_times_its_width(name: str, clock: float) -> None:
    """256 compute units, of which one does 4,096 FLOP in a cycle with 16 bits, 8,192 with 8, 256 with 32."""
    device = load_device(name)
    flop = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "mxfp8": 8192, "fp32": 256}
    assert device.peak.known_rates() == pytest.approx(
        {each: device.multiprocessors * clock * of for each, of in flop.items()}, rel=1e-3
    )
    with pytest.raises(InputError, match="tf32"):
        device.peak_flops("tf32")


def test_rubin_adds_up_to_its_rack() -> None:
    """NVIDIA's totals for 72: PFLOP/s of nvfp4 (training), fp8, bf16 and tf32, TB of memory, TB/s."""
    rates = load_device("rubin").peak.known_rates()
    found = {name: 72 * rates[name] for name in ("nvfp4", "fp8", "bf16", "tf32")}
    assert found == pytest.approx({"nvfp4": 2520e15, "fp8": 1260e15, "bf16": 288e15, "tf32": 144e15})
    assert 72 * load_device("rubin").memory == pytest.approx(20.7e12, rel=0.01)
    assert 72 * load_device("rubin").memory_bandwidth == pytest.approx(1580e12, rel=0.01)


# --- passes of a framework --------------------------------------------------------------------------------------------


def traffic(seconds: float, passes: int, device: Device) -> float:
    """Bytes that so many memory kernels have moved in this time."""
    rate = device.memory_bandwidth * device.memory_efficiency
    return (seconds - passes * device.launch) * rate - passes * device.memory_half_size


@pytest.mark.parametrize(("gradients", "passes", "size"), [("averaged", 0, 0), ("scaled", 1, 8), ("checked", 2, 12)])
def test_gradients_are_passed_over_ahead_of_their_reduction(gradients: Any, passes: int, size: int) -> None:
    device = load_device("h100")
    seconds = gradient_pass_seconds(device, 1e9, recipe=RECIPES["mixed-18"], gradients=gradients)
    assert traffic(seconds, passes, device) == pytest.approx(size * 1e9, rel=1e-9, abs=1)


@pytest.mark.parametrize(
    ("recipe", "shards", "passes", "size"),
    [("mixed-16", "in-place", 0, 0), ("mixed-16", "flat", 2, 8), ("fp32-16", "flat", 3, 18),
     ("mixed-16", "copied", 3, 12), ("fp32-16", "copied", 3, 14), ("mixed-16", "lists", 5, 16)],
)  # fmt: skip
def test_what_fully_sharded_parameters_cost_in_copies(recipe: str, shards: Any, passes: int, size: int) -> None:
    device = load_device("a100-80gb")
    seconds = fsdp_copy_seconds(device, 1e9, recipe=RECIPES[recipe], shards=shards)
    assert traffic(seconds, passes, device) == pytest.approx(size * 1e9, rel=1e-9, abs=1)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["matmul", "attention", "memory"])
def test_an_unknown_precision_lists_what_the_device_has(kind: str) -> None:
    kernel = Kernel("any", kind, 1e9, 1e6, 128, 128, 128)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a100-80gb has no peak for precision 'fp8'.*fp32, tf32, bf16 or fp16"):
        kernel_seconds(load_device("a100-80gb"), kernel, precision="fp8")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("h10", r"no device 'h10'; did you mean 'h100'\?.*a100-80gb"),
        ("a100", "did you mean 'a100-40gb'|did you mean 'a100-80gb'"),
        ({"base": "hundred"}, "no device 'hundred'"),
        ({"base": ["h100"]}, "no device"),
        (17, "neither a name nor a mapping"),
        ({"base": "h100", "memory": 80}, "memory: 80 has no unit"),
        ({"base": "h100", "memory_bandwith": "3 TB/s"}, "did you mean 'memory_bandwidth'"),
        ({"base": "h100", "memory_efficiency": 1.2}, "memory_efficiency"),
        ({"base": "h100", "multiprocessors": True}, "multiprocessors"),
        ({"base": "h100", "matmul": {"tiles": []}}, "tiles"),
        ({"base": "h100", "matmul": {"kind": "systolic"}}, "systolic"),
        (
            {"base": "h100", "attention": {"kernel": "flash9"}},
            r"'flash9'.*use flash1, flash1-triton, flash2, cudnn or flash3",
        ),
        ({"base": "h100", "peak": "989 TFLOP/s"}, "peak"),
        ({"name": "mine"}, "is required and missing"),
        ({**load_device_entry("h100"), "peak": {"source": "none"}}, "no precision is given"),
    ],
)
def test_a_bad_device_says_what_is_wrong(document: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_device(document)  # type: ignore[arg-type]
