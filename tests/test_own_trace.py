"""One's own trace beside the simulation: nothing differs where nothing does; what was changed is named."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from pathlib import Path
from typing import Any, get_args

import pytest
from nsight_exports import KERNEL, NVTX, RUNTIME, exported
from test_trace import run

import simcluster
from simcluster import InputError, Result
from simcluster.cli import main
from simcluster.interop.export.trace_export import write_trace
from simcluster.interop.kineto.communications import CommCall, KernelClassifier, KernelWork, find_described_axis
from simcluster.interop.trace_comparison.step_accounts import CAUSES
from simcluster.interop.trace_comparison.trace_difference import TraceDifference, diff_trace, step_timelines
from simcluster.studies.whatif.difference import RunDifference

ROOT = Path(__file__).parent.parent
SMALL = {"model__layers": 2, "training__global_batch": 4}
"""Less of the tiny job: 2 layers, 2 microbatches."""
LINE = ["--model.layers", "2", "--training.global_batch", "4"]


def small(**settings: Any) -> Result:
    return run(**SMALL | settings)


def written(result: Result, folder: Path, *, ranks: range | None = None, kernels: bool = True) -> Path:
    write_trace(result, folder, ranks=ranks or range(result.facts.ranks), kernels=kernels)
    return folder


@pytest.fixture(scope="module")
def tiny() -> Result:
    return small()


@pytest.fixture(scope="module")
def same(tiny: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny job as it is, kernel by kernel."""
    return written(tiny, tmp_path_factory.mktemp("same") / "profiles")


@pytest.fixture(scope="module")
def slow(tiny: Result, tmp_path_factory: pytest.TempPathFactory) -> TraceDifference:
    """One GPU slow, against all being well."""
    other = small(faults=[{"kind": "slow_gpu", "rank": 3, "factor": 1.3}])
    return diff_trace(tiny, written(other, tmp_path_factory.mktemp("slow") / "profiles"))


ALIKE: dict[str, tuple[dict[str, Any], bool]] = {
    "stretches": ({}, False),
    "kernels": ({}, True),
    "4 stages": ({"cluster__nodes": 8, "model__layers": 4, "parallel__pp": 4}, True),
    "interleaved": ({"model__layers": 4, "pipeline__schedule": "interleaved", "pipeline__chunks": 2}, True),
    "split backward": ({"pipeline__schedule": "zb-h1"}, True),
    "recompute": ({"training__recompute": "full"}, True),
    "fsdp": ({"parallel": {"tp": 1, "pp": 1, "dp": 4, "zero": 3}, "cluster__nodes": 2, "overlap__tensor": False}, True),
    "products in pieces": ({"overlap__tensor_pieces": 2, "overlap__tensor": False}, True),
    "slow host": ({"software": "torch-eager"}, True),
    "offload": ({"memory__offload": {"optimizer": "host", "host_update": "100 GB/s"}}, True),
    "two steps": ({"steps": 2}, True),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_trace_of_the_simulation_does_not_differ_from_it(name: str, tmp_path: Path) -> None:
    settings, kernels = ALIKE[name]
    result = small(**settings)
    found = diff_trace(result, written(result, tmp_path / "profiles", kernels=kernels))
    assert found.describe().startswith("No difference: the trace takes")
    assert found.recorded.seconds == pytest.approx(result.step_time, abs=1.1e-9)
    assert {cause: seconds for cause, seconds in found.causes.items() if abs(seconds) > 1e-13} == {}
    for pair in found.calls:
        assert pair.recorded == pytest.approx(pair.simulated, rel=1e-9, abs=1e-13), pair
    for layer in found.layers:
        assert layer.recorded == pytest.approx(layer.simulated, abs=1e-12)
    for each in found.kernels:
        assert each.recorded.launches == each.simulated.launches
        assert each.recorded.seconds == pytest.approx(each.simulated.seconds, abs=1e-9 * each.simulated.launches)
    assert not found.unmatched


def test_states_of_the_simulation_are_its_breakdown(tiny: Result, slow: TraceDifference) -> None:
    """Counted anew, from what a profiler sees, they are what the result has."""
    states, breakdown = slow.simulated.states, tiny.times.breakdown
    for name in ("forward", "backward", "optimizer", "bubble", *(f"exposed_{axis}" for axis in ("tp", "pp", "dp"))):
        assert states[name] == pytest.approx(breakdown[name], abs=2e-7)


def test_kinds_of_kernels_sum_to_what_is_computed(tiny: Result, same: Path) -> None:
    found = diff_trace(tiny, same)
    phases = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for pair in found.kernels:
        phases[pair.phase] += pair.recorded.seconds
    assert phases == pytest.approx({name: found.recorded.states[name] for name in phases}, abs=1e-12)


def test_causes_sum_to_the_difference(slow: TraceDifference) -> None:
    assert sum(slow.causes.values()) == pytest.approx(slow.seconds, abs=1e-12)
    assert list(slow.causes) == [cause for cause in CAUSES if cause in slow.causes]
    assert slow.table.sum().tolist() == pytest.approx([slow.simulated.seconds, slow.recorded.seconds, slow.seconds])


def test_a_slow_gpu_is_named_with_what_it_takes_longer(tiny: Result, slow: TraceDifference) -> None:
    other = small(faults=[{"kind": "slow_gpu", "rank": 3, "factor": 1.3}])
    assert slow.seconds == pytest.approx(other.step_time - tiny.step_time, abs=2e-9)
    first = slow.sentences()[1]
    assert first.startswith("Rank 3 computes 1.29 x as long as simulated (+197.6 us on rank 3), the others 1.00 x")
    spans = (each.timeline[each.timeline["stream"] == "compute"] for each in (tiny, other))
    usual, longer = (
        (of["end"] - of["start"])[of["rank"] == rank].sum() for of, rank in zip(spans, (0, 3), strict=True)
    )  # fmt: skip
    assert 1.29 < longer / usual < 1.3  # what runs beside a collective is hindered by it for no longer than before
    assert slow.rank_compute[3][1] / slow.rank_compute[3][0] == pytest.approx(longer / usual, rel=1e-3)


def test_a_slow_kind_of_kernel_is_named_with_its_phase(tiny: Result, tmp_path: Path) -> None:
    """Attention in an older kernel: what it takes longer is the device's own figure, and nothing else is told of."""
    other = small(cluster__device={"base": "h100", "attention": {"kernel": "flash2"}})
    found = diff_trace(tiny, written(other, tmp_path / "profiles"))
    backward = found.causes["backward"]
    assert backward == pytest.approx(other.times.breakdown["backward"] - tiny.times.breakdown["backward"], abs=2e-8)
    told = found.sentences()
    assert told[1].startswith("Attention backward is 1.40 x slower in the trace: 16.46 us of the 33.85 us")
    assert any(each.startswith("Attention forward is 1.40 x slower in the trace") for each in told)
    changed = {
        (each.kind, each.phase) for each in found.kernels if each.recorded.seconds > 1.05 * each.simulated.seconds
    }
    assert changed == {("attention", "forward"), ("attention", "backward")}


def test_half_a_network_is_named_by_its_calls(tiny: Result, tmp_path: Path) -> None:
    other = small(cluster__scale__network=0.5, cluster__scale__pcie=0.5)
    found = diff_trace(tiny, written(other, tmp_path / "profiles", kernels=False))
    for axis in ("dp", "pp"):
        truth = other.times.breakdown[f"exposed_{axis}"] - tiny.times.breakdown[f"exposed_{axis}"]
        assert found.causes[f"exposed_{axis}"] == pytest.approx(truth, abs=2e-7)
    assert found.sentences()[1].startswith("Exposed dp communication, +1.646 ms")
    assert "dp reduce-scatter takes 1.98 x as long per call" in found.sentences()[1]
    assert not found.mismatches


def test_what_is_no_longer_hidden_is_said_to_be(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model__layers": 4, "parallel__pp": 1, "parallel__dp": 4}
    settings["overlap__bucket_size"] = "4 MB"
    base, other = run(**settings, overlap__grad_reduce=True), run(**settings, overlap__grad_reduce=False)
    found = diff_trace(base, written(other, tmp_path / "profiles"))
    assert found.causes["exposed_dp"] == pytest.approx(
        other.times.breakdown["exposed_dp"] - base.times.breakdown["exposed_dp"], abs=2e-7
    )
    assert re.search(r"dp reduce-scatter.* is 100% exposed, simulated \d\d?%", found.describe())


def test_a_host_that_stalls_is_named(tiny: Result, tmp_path: Path) -> None:
    stall = {"kind": "host_stall", "cause": "garbage_collection", "rank": 5, "seconds": "2 ms"}
    other = small(faults=[stall])
    found = diff_trace(tiny, written(other, tmp_path / "profiles"))
    told = re.match(r"The GPU of rank 5 pauses (1\.\d+) ms longer than other GPUs", found.sentences()[1])
    assert told
    assert found.causes["idle"] == pytest.approx(float(told[1]) * 1e-3 / 8, rel=1e-3)
    assert found.recorded.launch_delay == pytest.approx(found.causes["idle"], abs=1e-9)
    assert found.causes["idle"] == pytest.approx(other.times.breakdown["other"], abs=2e-8)
    assert found.seconds == pytest.approx(other.step_time - tiny.step_time, abs=2e-9)


def test_several_steps_are_their_mean_with_the_spread(tiny: Result, tmp_path: Path) -> None:
    jitter = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.05}}
    other = small(faults=[jitter], steps=2)
    folder = written(other, tmp_path / "profiles", kernels=False)
    found = diff_trace(tiny, folder)
    assert found.recorded.seconds == pytest.approx(other.step_time, abs=2e-9)
    assert len(found.steps) == 2
    assert re.search(r"time is the mean of 2 steps, from \d\.\d+ ms to \d\.\d+ ms \(\d\.\d% apart", found.describe())
    assert diff_trace(tiny, folder, steps=[2]).steps == found.steps[1:]


def test_of_some_ranks_waiting_is_communication_on_both_sides(tiny: Result, tmp_path: Path) -> None:
    other = small(faults=[{"kind": "slow_gpu", "rank": 3, "factor": 1.3}])
    found = diff_trace(tiny, written(other, tmp_path / "profiles", ranks=range(1)))
    assert found.waiting_is_communication
    assert "1 of 8 ranks was recorded: waiting for others counts as communication" in found.describe()
    assert sum(found.causes.values()) == pytest.approx(found.seconds, abs=1e-12)
    assert not [cause for cause, seconds in found.causes.items() if cause.startswith("waiting") and seconds]


def test_another_job_is_told_before_all(tiny: Result, same: Path) -> None:
    for settings, clause in (
        ({"training__global_batch": 8}, "attention forward: 2 kernels per rank and step, the scenario has 4"),
        ({"model__layers": 4}, "the trace has 2 layers per rank, the scenario 4"),
        ({"parallel__dp": 1, "cluster__nodes": 2, "training__global_batch": 2}, "8 ranks, the scenario has 4"),
    ):
        first = diff_trace(small(**settings), same).sentences()[0]
        assert first.startswith("The trace seems to be of another job: ")
        assert clause in first


NAMES = {
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_segment_k_off_kernel__5x_cublas": "product",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT": "product",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)": "product",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>(Params)": "attention",
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64>>(...)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0": "attention",
    "fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::...)": "attention",
    "void scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16>(...)": "softmax",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, LogSoftMaxForwardEpilogue>(...)": "loss",
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>(...)": "norm",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1": "norm",
    "triton_poi_fused_mul_silu_0": "elementwise",
    "triton_per_fused_sum_3": "reduction",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda::{lambda()#3}>": "elementwise",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<...>": "embedding",
    "_permute_kernel": "routing",
    "Memset (Device)": "copy",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64": "product",
    "my_secret_kernel": "",
}


def test_names_of_real_kernels_are_known() -> None:
    names = KernelClassifier()
    assert {name: names.classify(name) for name in NAMES} == NAMES


def test_every_kind_has_a_row_with_a_source() -> None:
    from simcluster.interop.kineto.communications import _load_builtin_table

    rows = _load_builtin_table().kernels
    assert {row.kind for row in rows} == set(get_args(KernelWork))
    assert all(row.of for row in rows)


REAL = {
    "product": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "attention": "void flash_fwd_kernel<...>(Flash_fwd_params)",
    "norm": "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>(...)",
    "elementwise": "triton_poi_fused_add_0", "reduction": "triton_per_fused_sum_3",
    "embedding": "void at::native::(anonymous namespace)::indexSelectLargeIndex<...>(...)",
    "loss": "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)",
    "optimizer": "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>(...)",
}  # fmt: skip
MEGATRON = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP_WITH_CP",
    "pipeline": "PIPELINE_MODEL_PARALLEL",
}


def test_a_profile_of_one_rank_with_real_names_is_understood(tiny: Result, tmp_path: Path) -> None:
    """As a first profile of a Megatron job is: rank 0 alone, no layers, no list of groups, kernels by their makers'
    names; what is slower in it is the products."""
    other, names = small(cluster__scale__flops=0.8), KernelClassifier()
    folder = written(other, tmp_path / "made", ranks=range(1))
    document = json.loads(gzip.decompress((folder / "rank000.json.gz").read_bytes()))
    del document["distributedInfo"]["pg_config"]
    kept = [event for event in document["traceEvents"] if not str(event["name"]).startswith("layers.")]
    for event in kept:
        args = event.get("args", {})
        if event.get("cat") == "kernel" and "Collective name" not in args:
            event["name"] = REAL[names.classify(event["name"])]
        elif event.get("cat") == "kernel":
            args["Process Group Description"] = MEGATRON.get(args["Process Group Description"], "default_pg")
            args["Process Group Name"] = f"{args['Process Group Name']}_of_torch"
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({**document, "traceEvents": kept}))
    found = diff_trace(tiny, path)
    assert not found.mismatches
    assert not found.unmatched
    slower = {(each.kind, each.phase): each.recorded.seconds / each.simulated.seconds for each in found.kernels}
    assert {key for key, ratio in slower.items() if ratio > 1.01} == {
        (kind, phase) for kind in ("product", "attention") for phase in ("forward", "backward")
    }
    counts = {(pair.axis, pair.kind): (pair.simulated.calls, pair.recorded.calls) for pair in found.calls}
    assert all(one == two for one, two in counts.values()), counts
    assert "Product forward is 1.21 x slower in the trace" in found.describe()


def test_a_table_of_ones_own_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("kernels:\n  - {kind: attention, pattern: secret}\n  - {kind: norm, pattern: '^nvjet'}\n")
    names = KernelClassifier(own)
    assert [names.classify(name) for name in ("my_secret_kernel", "nvjet_x", "ampere_sgemm")] == [
        "attention", "norm", "product",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("kernels: [{kind: atention, pattern: x}]", "attention"),
        ("kernels: [{kind: norm, pattern: '('}]", "not a Python regular expression"),
        ("kernels: []", "kernels"),
        ("rows: []", "kernels"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(text: str, what: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(InputError, match=r"own\.yaml") as problem:
        KernelClassifier(own)
    assert what in str(problem.value)


def test_axes_are_known_by_what_frameworks_call_their_groups() -> None:
    """Megatron-LM's process groups, and those of PyTorch's device meshes (torchtitan)."""
    called = {
        "TENSOR_MODEL_PARALLEL_GROUP": "tp", "DATA_PARALLEL_GROUP_WITH_CP": "dp", "EXPERT_DATA_PARALLEL_GROUP": "dp",
        "EXPERT_MODEL_PARALLEL_GROUP": "ep", "PIPELINE_MODEL_PARALLEL_GROUP": "pp", "CONTEXT_PARALLEL_GROUP": "cp",
        "EMBEDDING_GROUP": "pp", "mesh_tp": "tp", "mesh_dp_shard_cp": "dp", "default_pg": None,
    }  # fmt: skip
    groups = {name: CommCall("all_reduce", "3", name, (), 8, 1.0, "", -1, None) for name in called}
    assert {name: find_described_axis(comm) for name, comm in groups.items()} == called


@pytest.fixture(scope="module")
def export(same: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(same, tmp_path_factory.mktemp("nsight") / "report.sqlite")


def test_an_export_of_the_same_step_does_not_differ(tiny: Result, export: Path) -> None:
    """Groups are not told: waiting counts as communication, and axes are found by the calls that streams make."""
    found = diff_trace(tiny, export)
    assert "No difference" in found.describe()
    assert "does not state which ranks communicate" in found.describe()
    assert not found.mismatches
    counts = {(pair.axis, pair.kind): (pair.simulated.calls, pair.recorded.calls) for pair in found.calls}
    assert all(one == two for one, two in counts.values()), counts
    assert [layer.layer for layer in found.layers] == [0, 1]


@pytest.mark.parametrize(
    "without", [("TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "ThreadNames"), (f"{KERNEL}.mangledName",)]
)
def test_older_exports_are_read_the_same(without: tuple[str, ...], tiny: Result, same: Path, tmp_path: Path) -> None:
    path = exported(same, tmp_path / "old.sqlite", without=without)
    assert "No difference" in diff_trace(tiny, path).describe()


def test_without_calls_of_the_host_there_are_no_phases(tiny: Result, same: Path, tmp_path: Path) -> None:
    found = diff_trace(tiny, exported(same, tmp_path / "bare.sqlite", without=(RUNTIME, NVTX)))
    assert found.seconds == pytest.approx(0.0, abs=2e-9)
    assert sum(found.causes.values()) == pytest.approx(found.seconds, abs=1e-12)
    assert found.recorded.states["other"] > 0.9 * sum(found.simulated.states[name] for name in ("forward", "backward"))


def test_phases_are_told_by_threads_where_there_are_no_ranges(tiny: Result, same: Path, tmp_path: Path) -> None:
    path = exported(same, tmp_path / "threads.sqlite", phases="threads", devices=False)
    found = diff_trace(tiny, path)
    for phase in ("forward", "backward", "optimizer"):
        assert found.causes[phase] == pytest.approx(0.0, abs=1e-9), phase


def test_names_that_nobody_knows_are_told_with_their_time(tiny: Result, same: Path, tmp_path: Path) -> None:
    path = exported(same, tmp_path / "x.sqlite", called=lambda name: name.replace("simcluster::qkv", "secret::qkv"))
    found = diff_trace(tiny, path)
    lost = {each.name: each.seconds for each in found.unmatched}
    assert set(lost) == {"secret::qkv", "secret::qkv_input_grad", "secret::qkv_weight_grad"}
    assert list(lost.values()) == sorted(lost.values(), reverse=True)
    assert "have no known kind, mostly 'secret::qkv_input_grad'" in found.describe()
    products = {each.phase: each for each in found.kernels if each.kind == "product"}
    short = sum(products[phase].simulated.seconds - products[phase].recorded.seconds for phase in products)
    assert short == pytest.approx(sum(lost.values()), abs=1e-7)


def test_what_is_no_export_is_refused_in_words(export: Path, same: Path, tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(InputError) as problem:
            simcluster.diff("tiny_3d", path)
        return str(problem.value)

    text = tmp_path / "a.sqlite"
    text.write_text("no database")
    assert "is not an SQLite file" in refused(text)
    cut = tmp_path / "b.sqlite"
    cut.write_bytes(export.read_bytes()[:20_000])
    assert "the file is truncated or damaged" in refused(cut)
    empty = tmp_path / "c.sqlite"
    sqlite3.connect(empty).executescript("CREATE TABLE StringIds (id INTEGER, value TEXT);").connection.close()
    assert "has no kernels" in refused(empty)
    assert "nsys export --type sqlite" in refused(tmp_path / "report.nsys-rep")
    assert "no such file" in refused(tmp_path / "nothing.sqlite")
    with pytest.raises(InputError, match="pass the scenario first"):
        simcluster.diff(same, "tiny_3d")
    assert "has no GPU kernels" in refused(ROOT / "tests" / "inputs" / "kineto")


def test_the_command_tells_draws_and_writes(same: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, answer = tmp_path / "both.png", tmp_path / "d.json"
    line = ["diff", "tiny_3d", str(same), "--gantt", str(picture), "--ranks", "0,4", "--json", str(answer)]
    assert main([*line, *LINE, "--cluster.scale.network", "0.5", "--cluster.scale.pcie", "0.5"]) == 0
    told = capsys.readouterr().out
    assert re.search(
        r"^\* The trace takes 5\.829 ms per step: \d\.\d+ ms \(\d\d\.\d%\) less than simulated", told, re.M
    )
    for title in ("step time by cause", "by kernel kind", "communication, per rank", "compute by layer", "by rank"):
        assert title in told
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(answer.read_text())
    contract = (ROOT / "docs" / "CONTRACT.md").read_text()
    section = contract.partition("## A trace and its simulation")[2].partition("\n## ")[0]
    assert set(document) == set(re.findall(r"^\| `(\w+)", section, re.M))
    assert document["difference_s"] == pytest.approx(sum(document["causes_s"].values()), abs=1e-12)


def test_timelines_have_the_ranks_that_were_recorded(slow: TraceDifference) -> None:
    tables = list(step_timelines(slow, [3, 5]).values())
    assert [sorted(table["rank"].unique()) for table in tables] == [[3, 5], [3, 5]]
    assert [float(table["ready"].min()) for table in tables] == [0.0, 0.0]
    assert tables[1]["end"].max() - tables[0]["end"].max() == pytest.approx(slow.seconds, abs=2e-4)
    with pytest.raises(InputError, match="no profile of rank 9"):
        step_timelines(slow, [9])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["{same}", "tiny_3d"], "name the scenario first"),
        (["tiny_3d", "{same}", "--waterfall", "a.png"], "to draw a trace and its simulation, use --gantt"),
        (["tiny_3d", "{same}", "--ranks", "0"], "--gantt"),
        (["tiny_3d", "{same}", "--steps", "x"], "whole numbers"),
        (["tiny_3d", "{same}", "--steps", "9"], "has no step 9"),
        (["tiny_3d", "{same}", "--kernels", "nothing.yaml"], "no such file"),
        (["tiny_3d", "tiny_dp", "--kernels", "nothing.yaml"], "--kernels applies to your traces"),
        (["nothing_such", "{same}"], "nothing_such"),
    ],
)
def test_what_cannot_be_is_refused(
    line: list[str], what: str, same: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["diff", *(each.format(same=same) for each in line)]) == 2
    assert what in capsys.readouterr().err


def test_the_page_has_both(same: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "both.html"
    assert main(["report", "tiny_3d", "--against", str(same), "-o", str(page), "--ranks", "0,4", *LINE]) == 0
    text = page.read_text()
    assert "No difference: the trace takes 5.829 ms per step" in text
    assert '"name":"recorded: profiles"' in text
    for line in (
        ["report", "tiny_3d", "tiny_dp", "--against", str(same)],
        ["report", "tiny_3d", "--kernels", "x.yaml"],
    ):
        assert main([*line, "-o", str(page)]) == 2
    told = capsys.readouterr().err
    assert "a trace is compared with one simulated scenario" in told
    assert "name the trace with --against" in told


def test_from_python(same: Path, tiny: Result) -> None:
    found = simcluster.diff("tiny_3d", same)
    assert isinstance(found, TraceDifference)
    assert len(repr(found)) < 200
    assert isinstance(simcluster.diff(tiny, tiny), RunDifference)
    with pytest.raises(InputError, match="kernels= applies only to traces"):
        simcluster.diff(tiny, "tiny_dp", kernels="x.yaml")
