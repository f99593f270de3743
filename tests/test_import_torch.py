"""Import of PyTorch modules: documents made by a trace equal hand-written kinds; wrong modules get one clear message.

The tests of a checked-in document run everywhere; those that trace need PyTorch (and some transformers).
"""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.hugging_face import count_config_parameters, model_from_config
from simcluster.model.flops import model_flops_per_sequence
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model

INPUTS = Path(__file__).parent / "inputs" / "torch"
EXAMPLES = Path(__file__).parent.parent / "examples"
CONFIG: dict[str, Any] = json.loads((INPUTS / "llama3_8b_config.json").read_text())
TRACED: dict[str, Any] = dict(read_document(INPUTS / "llama3_8b.yaml").data["model"])
FUSED: dict[str, Any] = dict(read_document(INPUTS / "fused_llama.yaml").data["model"])

HYBRID = """
import torch
from torch import nn
from torch.nn import functional as F

TP_PLAN = {"*.qkv": "colwise", "*.out": "rowwise", "*.up": "colwise", "*.conv": "colwise", "*.down": "rowwise"}

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(256), nn.Linear(256, 768), nn.Linear(256, 256, bias=False)
    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (each.view(b, s, -1, 64).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(a.transpose(1, 2).reshape(b, s, -1))

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.RMSNorm(256), nn.Linear(256, 512, bias=False)
        self.down = nn.Linear(512, 256, bias=False)
        self.conv = nn.Conv1d(512, 512, 4, groups=512, padding=3)
    def forward(self, x):
        y = self.up(self.norm(x))
        y = F.silu(self.conv(y.transpose(1, 2))[..., : y.shape[1]]).transpose(1, 2)
        return x + self.down(y)

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 256), nn.Linear(256, 1000, bias=False)
        self.blocks = nn.ModuleList([Mixer() if i % 3 else Attention() for i in range(6)])
        self.norm = nn.RMSNorm(256)
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def build():
    return Stack()
"""
CUSTOM = """
import torch
from torch import nn

@torch.library.custom_op("{library}::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1)

@torch.library.custom_op("{library}::scan_grad", mutates_args=())
def scan_grad(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1).cumsum(1).flip(1)

for each in (scan, scan_grad):
    each.register_fake(torch.empty_like)
scan.register_autograd(lambda ctx, g: scan_grad(g), setup_context=lambda ctx, inputs, output: None)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)
    def forward(self, x):
        return x + self.down(scan(self.up(x)))

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(2)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def build():
    return Stack(), (torch.empty(2, 32, 64),)

def build_wrong():
    return 3

def build_branching():
    Block.forward = lambda self, x: x if x.sum() > 0 else self.up(x)
    return Stack(), {{"x": torch.empty(2, 32, 64)}}

def build_failing():
    return nn.Linear(2, 3, beas=True)

def build_hidden():
    found = Stack()
    layers = list(found.layers)
    del found.layers
    found.layers = layers
    return found

def build_shared():
    Block.forward = lambda self, x: x + self.down(self.up(x))
    found = Stack()
    found.layers[1].up = found.layers[0].up
    return found, (torch.empty(2, 32, 64),)

def build_unlisted():
    return nn.Embedding(8, 64)

def build_checkpointed():
    from torch.utils.checkpoint import checkpoint
    Block.forward = lambda self, x: x + checkpoint(lambda y: self.down(self.up(y)), x, use_reentrant=False)
    return Stack(), (torch.empty(2, 32, 64),)

def build_recurrent():
    def forward(self, x):
        states = [torch.zeros_like(x[:, 0])]
        for token in x.unbind(1):
            states.append(torch.tanh(self.down(self.up(token)) + states[-1]))
        return torch.stack(states[1:], 1)
    Block.forward = forward
    return Stack(), (torch.empty(2, 32, 64),)
"""

ENCODER = """
import torch
from torch import nn

class Layer(nn.TransformerEncoderLayer):
    def __init__(self, **more):
        super().__init__(256, 4, 512, batch_first=True)
        self.more = more
    def forward(self, x):
        return super().forward(x, torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype), **self.more)

class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(256), nn.MultiheadAttention(256, 4, batch_first=True)
    def forward(self, x):
        y = self.norm(x)
        return x + self.inner(y, y, y)[0]

class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 256), nn.Linear(256, 1000, bias=False)
        self.layers = nn.ModuleList(layers)
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def causal():
    return Stack(*(Layer(is_causal=True) for _ in range(2)))

def masked():
    return Stack(*(Layer() for _ in range(2)))

def weighted():
    return Stack(*(Weighted() for _ in range(2)))
"""


def simulate(model: dict[str, Any], **changes: Any) -> simcluster.Simulation:
    """Simulate a step of a model on 16 GPUs."""
    document: dict[str, Any] = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "nodes": 2},
        "parallel": {"tp": 2, "pp": 2, "dp": 4, "zero": 1, "sequence_parallel": True},
        "training": {"global_batch": 32, "micro_batch": 1},
    }
    return simcluster.simulate(simcluster.scenario(document, **changes))


# --- a checked-in document --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__micro_batch": 2},
        {"training__recompute": "full"},
        {"parallel__tp": 4, "parallel__dp": 2},
        {"parallel__tp": 1, "parallel__dp": 16, "parallel__pp": 1, "parallel__zero": 3,
         "parallel__sequence_parallel": False},
        {"model__sequence_length": 4096, "pipeline__schedule": "zb-h1"},
        {"software": "torchtitan"},
    ],
)  # fmt: skip
def test_a_trace_of_llama_3_8b_equals_the_hand_written_kinds(changes: dict[str, Any]) -> None:
    """At higher tp the step is longer: matmuls of Q, K, V, gate and up are separate, and their gradients are added."""
    hand = simulate(model_from_config(CONFIG, sequence_length=8192), **changes)
    traced = simulate(TRACED, **changes)
    assert traced.step_time == pytest.approx(hand.step_time, rel=0.04 if traced.scenario.parallel.tp > 2 else 0.03)
    assert traced.memory.total == pytest.approx(hand.memory.total, rel=0.05)
    assert traced.mfu * traced.step_time == pytest.approx(hand.mfu * hand.step_time, rel=1e-9)
    assert parameters(traced.scenario.model).total == parameters(hand.scenario.model).total == 8_030_261_248


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_fused_matmuls_take_the_time_of_the_hand_written_kinds(tp: int) -> None:
    """So the longer step of the separate ones is that of their matmuls and of the sums of their input gradients."""
    by_hand = model_from_config(CONFIG, sequence_length=8192)
    hand, fused, separate = (simulate(each, parallel__tp=tp, parallel__dp=8 // tp) for each in (by_hand, FUSED, TRACED))
    assert fused.step_time == pytest.approx(hand.step_time, rel=0.01)
    assert parameters(fused.scenario.model).total == parameters(hand.scenario.model).total
    assert fused.mfu * fused.step_time == pytest.approx(hand.mfu * hand.step_time, rel=1e-9)
    assert hand.step_time < separate.step_time < 1.06 * hand.step_time
    totals = [
        [each for each in found.traffic if (each.axis, each.kind) == ("tp", "")] for found in (hand, fused, separate)
    ]
    assert len({(total.calls, total.sent) for (total,) in totals}) == 1  # one serves all matmuls of one input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parallel__tp": 16, "parallel__pp": 1, "parallel__dp": 1},
            "the tensor-parallel plan does not divide the module by",
        ),
        ({"software": "torch-eager"}, "its kernels are as a compiler fuses them"),
        ({"parallel__cp": 2, "parallel__dp": 2}, "is not modelled with layers of kind traced_a1"),
    ],
)
def test_a_traced_document_rejects_what_it_does_not_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(TRACED, **changes)


def test_idle_parameters_are_not_active() -> None:
    fields = copy.deepcopy(TRACED)
    fields["layer_kinds"]["traced_a2"] |= {"vectors": "1000", "idle": "900"}
    count, before = parameters(Model(**fields)), parameters(Model(**TRACED))
    assert (count.total - before.total, count.active - before.active) == (32 * 1000, 32 * 100)


def test_a_support_rule_may_name_a_field_of_an_absent_section() -> None:
    fields = copy.deepcopy(TRACED)
    fields["layer_kinds"]["traced_a1"]["supports"]["software.kernels"]["values"] = ["eager"]
    with pytest.raises(InputError, match="its kernels are as a compiler fuses them"):
        simulate(fields)


def test_without_pytorch_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("simcluster.importers.torch_modules.")]:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'simcluster[torch]'" in fail(capsys, INPUTS / "llama3_8b_config.json")


@pytest.mark.programs
def test_a_file_without_a_function_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(HYBRID)
    assert "name a function" in fail(capsys, tmp_path / "model.py")


# --- traces -----------------------------------------------------------------------------------------------------------


def fail(capsys: pytest.CaptureFixture[str], file: Path | str) -> str:
    """Return the message of an import that fails."""
    assert main(["import", "torch", str(file), "--sequence-length", "256"]) == 2
    return capsys.readouterr().err


def trace(file: Path | str, tmp_path: Path, length: int = 256) -> dict[str, Any]:
    """Import a module with the command and return the model section."""
    out = tmp_path / "out.yaml"
    assert main(["import", "torch", str(file), "--sequence-length", str(length), "-o", str(out)]) == 0
    return dict(read_document(out).data["model"])


def without_source(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a model section without texts that name versions."""
    kinds = {name: {**kind, "source": ""} for name, kind in fields["layer_kinds"].items()}
    return {**fields, "name": "", "layer_kinds": kinds}


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_llama_3_8b_is_traced_as_checked_in(tmp_path: Path) -> None:
    assert without_source(trace(INPUTS / "llama3_8b_config.json", tmp_path, 8192)) == without_source(TRACED)


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_the_example_is_traced_as_checked_in(tmp_path: Path) -> None:
    traced = trace(f"{EXAMPLES / 'new_model.py'}:build", tmp_path, 8192)
    assert without_source(traced) == without_source(dict(read_document(EXAMPLES / "new_model.yaml").data["model"]))
    assert without_source(trace(f"{INPUTS / 'fused_llama.py'}:build", tmp_path, 8192)) == without_source(FUSED)


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("experts", [16, 24])
def test_experts_are_traced(experts: int, tmp_path: Path) -> None:
    """The mean number of tokens per expert is no whole number with 24 experts."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
        "num_experts": experts,
        "num_experts_per_tok": 4, "norm_topk_prob": True, "vocab_size": 8000, "tie_word_embeddings": False,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    fields = trace(tmp_path / "config.json", tmp_path, 2048)
    count, hand = parameters(Model(**fields)), count_config_parameters(config)
    assert (count.total, count.active) == (hand.total, hand.active)
    router = 6 * 4 * 2048 * 512 * experts  # which MFU of the hand-written kind leaves out
    expected = model_flops_per_sequence(Model(**model_from_config(config, sequence_length=2048))) + router
    assert model_flops_per_sequence(Model(**fields)) == pytest.approx(expected, rel=1e-9)
    layout = {"parallel__tp": 1, "parallel__pp": 1, "parallel__dp": 16, "parallel__sequence_parallel": False}
    fields_by_hand = model_from_config(config, sequence_length=2048)
    steps = [
        simulate(each, software={"experts": {"products": "grouped"}}, **layout) for each in (fields_by_hand, fields)
    ]
    assert steps[1].memory.total == pytest.approx(steps[0].memory.total, rel=0.05)
    assert steps[1].step_time == pytest.approx(steps[0].step_time, rel=0.05)
    with pytest.raises(InputError, match=r"parallel\.ep|expert"):
        simulate(fields, parallel__tp=1, parallel__pp=1, parallel__dp=16, parallel__ep=4,
                 parallel__sequence_parallel=False)  # fmt: skip


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_module_of_no_library(tmp_path: Path) -> None:
    (tmp_path / "hybrid.py").write_text(HYBRID)
    fields = trace(f"{tmp_path / 'hybrid.py'}:build", tmp_path)
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    spec: dict[str, Any] = {}
    exec(HYBRID, spec)
    with torch.device("meta"):
        module = spec["build"]()
        with FlopCounterMode(display=False) as counter:
            module(torch.zeros(1, 256, dtype=torch.long)).sum().backward()
    assert fields["pattern"] == "ABBABB"
    assert fields["vocab_size"] == 1000
    model = Model(**fields)
    assert parameters(model).total == sum(p.numel() for p in module.parameters())
    flops = counter.get_flop_counts()["Global"]
    matmuls = sum(count for op, count in flops.items() if "mm" in str(op))
    attention = 2 * 12 * 256 * 256 * 256 / 2  # causal, of two layers; the counter sees the decomposed one
    assert model_flops_per_sequence(model) - attention == pytest.approx(matmuls - count_attention(flops), rel=1e-9)
    for tp in (1, 4):
        result = simulate(fields, parallel__tp=tp, parallel__pp=1, parallel__dp=16 // tp,
                          parallel__sequence_parallel=tp > 1)  # fmt: skip
        assert result.step_time > 0


def count_attention(flops: dict[Any, int]) -> int:
    """Return the FLOP of attention that PyTorch decomposed to batched matmuls."""
    return sum(count for op, count in flops.items() if "bmm" in str(op))


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_an_unknown_operation_is_named_and_may_be_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "custom.py").write_text(CUSTOM.format(library="first"))
    message = fail(capsys, f"{tmp_path / 'custom.py'}:build")
    assert 'COSTS = {"first::scan": lambda *shapes: (FLOP, bytes)}' in message
    costs = '\nCOSTS = {"second::scan": lambda x: (7.0 * x[0] * x[1] * x[2], 4.0 * x[0] * x[1] * x[2]),\n'
    costs += '"second::scan_grad": lambda x: (0.0, 6.0 * x[0] * x[1] * x[2])}\n'
    (tmp_path / "priced.py").write_text(CUSTOM.format(library="second") + costs)
    kind = trace(f"{tmp_path / 'priced.py'}:build", tmp_path)["layer_kinds"]["traced_a1"]
    scan = next(section for section in kind["body"] if "matmul" not in section)
    assert scan["forward"]["scan"]["flops"] == "896 * tokens"
    assert (scan["forward"]["scan"]["bytes"], scan["backward"]["scan_grad"]) == ("512 * tokens", "768 * tokens")


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("build_wrong", "build_wrong returned a int; it must return a torch.nn.Module"),
        ("missing", "has no function missing"),
        ("build_branching", "reads the value of a tensor, which a trace without data does not have"),
        ("build_failing", r"calling build_failing failed \(.*line \d+\): TypeError"),
        ("build_hidden", "layers holds modules that PyTorch does not see"),
        ("build_shared", "layers.1 uses layers.0.up.weight; layers that share parameters"),
        ("build_unlisted", "the module, which has no ModuleList of equal layers, has no floating-point input"),
        ("build_checkpointed", r"computes its forward again \(torch.utils.checkpoint\)"),
        (
            "build_recurrent",
            r"layers.0 runs \d+ operations at 64 tokens and \d,\d+ operations at 128 tokens, as a loop",
        ),
    ],
)
def test_a_wrong_module_gets_one_message(
    function: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "custom.py").write_text(CUSTOM.format(library=f"wrong_{function}"))
    assert re.search(message, fail(capsys, f"{tmp_path / 'custom.py'}:{function}"))


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_without_embedding_and_head_the_last_linear_layer_is_the_head(tmp_path: Path) -> None:
    text = HYBRID.replace("nn.Embedding(1000, 256), nn.Linear(256, 1000", "nn.Identity(), nn.Linear(256, 48")
    (tmp_path / "diffusion.py").write_text(text + "\ndef noisy():\n    return Stack(), (torch.empty(2, 32, 256),)\n")
    assert trace(f"{tmp_path / 'diffusion.py'}:noisy", tmp_path)["vocab_size"] == 48
    told = (tmp_path / "out.yaml").read_text()
    assert "no token embedding: simulated with a vocabulary of 48" in told


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_dense_convolution_in_a_layer_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dense.py").write_text(HYBRID.replace("groups=512", "groups=1"))
    assert 'COSTS = {"aten::convolution": lambda' in fail(capsys, f"{tmp_path / 'dense.py'}:build")


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_loop_is_given_up_after_a_number_of_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from simcluster.importers.torch_modules import recorder

    monkeypatch.setattr(recorder, "_MOST", 5)
    (tmp_path / "hybrid.py").write_text(HYBRID)
    assert "blocks.0 runs more than 5 operations" in fail(capsys, f"{tmp_path / 'hybrid.py'}:build")


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_attention_by_other_means_is_noted(tmp_path: Path) -> None:
    """Masks in torch.nn.TransformerEncoderLayer, and attention that PyTorch computes by separate kernels."""
    (tmp_path / "encoder.py").write_text(ENCODER)
    kinds, notes = dict[str, Any](), dict[str, str]()
    for function in ("causal", "masked", "weighted"):
        kinds[function] = trace(f"{tmp_path / 'encoder.py'}:{function}", tmp_path)["layer_kinds"]["traced_a1"]
        told = (tmp_path / "out.yaml").read_text().split("model:")[0]
        notes[function] = " ".join(line for line in told.splitlines() if "Assumed: attention" in line)
    assert notes["causal"] == ""
    assert "attention of layers.0 has a mask tensor: simulated as one kernel over all pairs" in notes["masked"]
    assert "attention of layers.0 is traced as unfused matmul, softmax, matmul" in notes["weighted"]
    found = {name: find_attention(kind) for name, kind in kinds.items()}
    assert (found["causal"]["seen"], found["masked"]["seen"], found["weighted"]) == ("0.5", "1.0", {})
    assert (found["causal"]["flops"], found["masked"]["flops"]) == (
        "512 * tokens * sequence", "1024 * tokens * sequence",
    )  # fmt: skip
    assert "sequence * sequence" in found["masked"]["bytes"]
    assert "sequence * sequence" not in found["causal"]["bytes"]


def find_attention(kind: dict[str, Any]) -> dict[str, Any]:
    """Return the forward kernel of attention of a layer kind."""
    kernels = [each.get("forward", {}).get("attention", {}) for each in kind["body"]]
    return next(filter(None, kernels), {})


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_reference_code_of_transformers_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "mamba2", "hidden_size": 256, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 64,
              "n_groups": 2, "state_size": 32, "vocab_size": 1000}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    trace(tmp_path / "config.json", tmp_path, 2048)
    assert "kind mamba2 models (simcluster show mamba2)" in (tmp_path / "out.yaml").read_text()
    config = {"model_type": "qwen3_next", "hidden_size": 256, "num_hidden_layers": 2, "num_experts": 4,
              "num_experts_per_tok": 2, "vocab_size": 1000, "layer_types": ["linear_attention"] * 2}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = fail(capsys, tmp_path / "config.json")
    assert "as a loop over tokens does" in message
    assert "kind gated_delta_net models (simcluster show gated_delta_net)" in message


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_sequence_longer_than_the_positions_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "--sequence-length 256 is more than the 128 positions" in fail(capsys, tmp_path / "config.json")


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_plan_of_a_class_that_cannot_be_used_is_noted(tmp_path: Path) -> None:
    """Multi-head latent attention: the gradients of the shared rotary key are partial sums."""
    config = {"model_type": "glm4_moe_lite", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 4, "vocab_size": 1000, "n_routed_experts": 8, "intermediate_size": 512,
              "moe_intermediate_size": 128}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    kinds = trace(tmp_path / "config.json", tmp_path)["layer_kinds"]
    assert {kind["supports"]["parallel.tp"]["values"][-1] for kind in kinds.values()} == {1}
    assert "# Assumed: tp 1, without the plan of the class: model.layers.0" in (tmp_path / "out.yaml").read_text()


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_plan_that_forgets_a_module_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hybrid.py").write_text(HYBRID.replace('"*.down": "rowwise"', ""))
    message = fail(capsys, f"{tmp_path / 'hybrid.py'}:build")
    assert "blocks.1.down.weight multiplies a tensor that the tensor-parallel plan divides" in message


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"*.qkv"', '"*.qvk"', "TP_PLAN: '*.qvk' matches no module"),
        ('"*.qkv": "colwise"', '"*.qkv": "columns"', "TP_PLAN: '*.qkv' is 'columns', which is not a known split"),
    ],
)
def test_a_wrong_entry_of_a_plan_is_rejected(
    before: str, after: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(HYBRID.replace(before, after))
    assert message in fail(capsys, f"{tmp_path / 'model.py'}:build")
