"""Names and numbers in profiles of other makers: kernels of DeepEP's forks, streams in hexadecimal text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.interop.kineto import ProfiledJob, load_profiles
from simcluster.interop.kineto.comm import shipped_names
from simcluster.interop.kineto.measures import breakdown

TRACE = {  # of DeepSeek-V3's published training profile (deepseek-ai/profile-data@4496024, train.json): us in all
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 24>(int4*, float*)": 49448.0,
    "void dpsk::ep::internode::dispatch<false, 8, false, 8>(int4*, float*)": 17383.0,
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)": 13621.0,
    "void dpsk::ep::internode::cached_notify<false>(int, int)": 23610.0,
    "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, int*)": 8968.0,
}
COMPUTE = 109000.0


def profile(tmp_path: Path, kernels: list[tuple[str, float, float, Any]]) -> ProfiledJob:
    """A profile of one rank of eight: kernels with their begin, duration (us) and stream, launched at the begin."""
    end = max(begin + length for _, begin, length, _ in kernels)
    found: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0.0, "dur": end}
    ]
    for number, (name, begin, length, stream) in enumerate(kernels, 1):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 1e-3}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin, "dur": length}
        found.append({**call, "ts": begin / 1e3, "args": {"correlation": number}})
        found.append({**kernel, "args": {"correlation": number, "stream": stream, "device": 0}})
    about = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}
    (tmp_path / "rank0.json").write_text(json.dumps({**about, "traceEvents": found}))
    return load_profiles(tmp_path)


def test_the_dispatcher_of_deepseeks_profile_is_communication(tmp_path: Path) -> None:
    """113.0 ms of communication beside 109 ms of computation that begins with it: 4.03 ms of it are exposed."""
    begin, kernels = 0.0, [("sm90_fp8_gemm", 0.0, COMPUTE, 7)]
    for name, length in TRACE.items():
        kernels.append((name, begin, length, 27))
        begin += length
    assert begin == pytest.approx(113030.0)
    (found,) = breakdown(profile(tmp_path, kernels))
    assert found.overlap == pytest.approx(COMPUTE / begin, rel=1e-3)
    assert found.exposed + found.waiting == pytest.approx((begin - COMPUTE) * 1e-6, rel=1e-3)
    assert found.computing == pytest.approx(COMPUTE * 1e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        *[(name, True) for name in TRACE],
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", True),
        ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", True),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", True),
        ("void uccl::internode::dispatch<false, 8>(int4*)", True),
        ("void primus_turbo::deep_ep::intranode::cached_notify_combine<8>(void**)", True),
        ("void hybrid_ep::dispatch_kernel<bf16>(void*)", True),
        ("_ZN4fork2xx9internode8dispatchILb0EEEvPv", True),
        ("void step::kernel<float>(float*)", False),
        ("void moe::dispatch_rows<float>(float*)", False),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168>(void*)", False),
    ],
)
def test_a_dispatcher_is_known_in_any_namespace(name: str, communicates: bool) -> None:
    assert (shipped_names().kind(name) == "communication") == communicates


@pytest.mark.parametrize(
    ("text", "number"), [("0x0", 0), ("0x7F9c2400a010", 0x7F9C2400A010), ("0XA", 10), ("7", 7), ("0012", 12)]
)
def test_streams_in_text_are_numbers(tmp_path: Path, text: str, number: int) -> None:
    """As ROCm's Kineto writes them; 0 leaves the thread's number."""
    ops = {}
    for stream in (text, number):
        job = profile(tmp_path, [("sm90_gemm_bf16", 0.0, 90.0, stream), ("sm90_gemm_bf16", 100.0, 90.0, stream)])
        ops[stream] = breakdown(job)
    assert ops[text] == ops[number]


@pytest.mark.parametrize("text", ["0x", "stream 7", "0xg", "1.5", "", "٣", "0x" + "f" * 17, None, 1.5])
def test_other_texts_are_rejected(tmp_path: Path, text: Any) -> None:
    with pytest.raises(InputError, match=r"event 2 \(.?sm90_gemm_bf16.?\): stream is .*; it is a whole number"):
        profile(tmp_path, [("sm90_gemm_bf16", 0.0, 90.0, text)])
