"""Job configs of torchtitan become scenarios; no key is passed over."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.importers.import_result import ImportResult
from simcluster.importers.torchtitan import scenario_from_torchtitan
from simcluster.model.layers import parameters
from simcluster.scenario.scenario import Scenario, load_text

LLAMA_8B = """
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"
[metrics]
log_freq = 10
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1
[checkpoint]
enable = false
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = false
components = ["model", "loss"]
"""


def imported(text: str = LLAMA_8B, gpus: int | None = 16) -> ImportResult:
    cluster = {"topology": "dgx_h100", "nodes": 2}
    return scenario_from_torchtitan(text, cluster=cluster, gpus=gpus, source="job.toml")


def scenario(text: str = LLAMA_8B, gpus: int | None = 16) -> Scenario:
    return load_text(imported(text, gpus).to_yaml_text("a test"))


def changed(**values: str) -> str:
    """The config with keys set to other values, given as section__key."""
    text = LLAMA_8B
    for name, value in values.items():
        section, _, key = name.partition("__")
        lines = [line for line in text.splitlines() if not line.startswith(f"{key} = ")]
        if f"[{section}]" not in lines:
            lines.append(f"[{section}]")
        lines.insert(lines.index(f"[{section}]") + 1, f"{key} = {value}")
        text = "\n".join(lines)
    return text


def test_llama_8b_as_it_ships() -> None:
    found = scenario()
    assert (found.model.name, found.model.sequence_length) == ("llama3-8b", 8192)
    assert (found.parallel.dp, found.parallel.zero, found.training.global_batch) == (16, 3, 16)
    assert (found.training.recompute, found.training.memory_recipe) == ("operators", "fp32-16")
    assert found.software is not None
    assert found.software.name == "torch-eager"
    assert found.fsdp.reshard_after_forward
    assert (found.overlap.grad_reduce, found.overlap.param_gather) == (True, True)


def test_every_key_is_accounted_for() -> None:
    found = imported()
    keys = sum(1 for line in LLAMA_8B.splitlines() if " = " in line)
    assert len([*found.mapped, *found.no_effect]) == keys


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"parallelism__tensor_parallel_degree": "8"}, {"tp": 8, "dp": 2, "sequence_parallel": True}),
        (
            {"parallelism__tensor_parallel_degree": "2", "parallelism__enable_async_tensor_parallel": "true"},
            {"tensor_pieces": 2},
        ),
        ({"parallelism__data_parallel_replicate_degree": "2"}, {"dp": 16, "zero": 3, "shard_group": 8}),
        (
            {
                "parallelism__data_parallel_replicate_degree": "16",
                "parallelism__data_parallel_shard_degree": "1",
            },
            {"dp": 16, "zero": 0, "param_gather": False, "grad_reduce": True},
        ),
        ({"parallelism__fsdp_reshard_after_forward": '"never"'}, {"reshard_after_forward": False}),
        (
            {"parallelism__pipeline_parallel_degree": "2", "training__local_batch_size": "4"},
            {"schedule": "1f1b", "micro_batch": 1, "global_batch": 32, "reshard_after_forward": False},
        ),
        (
            {
                "parallelism__pipeline_parallel_degree": "2",
                "parallelism__pipeline_parallel_schedule": '"Interleaved1F1B"',
                "training__local_batch_size": "4",
            },
            {"schedule": "interleaved", "chunks": 2},
        ),
        ({"activation_checkpoint__mode": '"full"'}, {"recompute": "full"}),
        ({"activation_checkpoint__selective_ac_option": '"2"'}, {"recompute": "full", "recompute_every": 2}),
        ({"activation_checkpoint__selective_ac_option": "2"}, {"recompute": "full", "recompute_every": 2}),
        ({"model__converters": '["float8"]'}, {"precision": "fp8-mixed"}),
        ({"training__mixed_precision_reduce": '"bfloat16"'}, {"memory_recipe": "mixed-16"}),
        ({"training__dtype": '"bfloat16"'}, {"memory_recipe": "bf16-8"}),
        (
            {
                "optimizer__name": '"Muon"',
                "parallelism__data_parallel_replicate_degree": "16",
                "parallelism__data_parallel_shard_degree": "1",
            },
            {"optimizer": "muon", "zero": 0},
        ),
        (
            {"parallelism__context_parallel_degree": "2"},
            {"cp": 2, "cp_comm": "all_gather", "dp": 8, "zero": 3},
        ),
        (
            {
                "parallelism__context_parallel_degree": "2",
                "parallelism__context_parallel_rotate_method": '"alltoall"',
                "parallelism__data_parallel_replicate_degree": "2",
            },
            {"cp": 2, "cp_comm": "ring", "dp": 8, "shard_group": 8},
        ),
        (
            {
                "model__name": '"deepseek_v3"',
                "model__flavor": '"16B"',
                "parallelism__tensor_parallel_degree": "8",
                "parallelism__data_parallel_shard_degree": "1",
                "parallelism__data_parallel_replicate_degree": "2",
                "parallelism__expert_parallel_degree": "8",
                "activation_checkpoint__mode": '"full"',
            },
            {"preset": "deepseek-v2-lite", "ep": 8, "etp": 1, "tp": 8, "zero": 0},
        ),
        (
            {
                "model__name": '"deepseek_v3"',
                "model__flavor": '"16B"',
                "parallelism__expert_parallel_degree": "8",
            },
            {"ep": 8, "zero": 3, "recompute": "full", "recompute_every": 2},
        ),
        (
            {
                "model__name": '"deepseek_v3"',
                "model__flavor": '"16B"',
                "parallelism__expert_parallel_degree": "4",
                "parallelism__data_parallel_replicate_degree": "2",
            },
            {"ep": 4, "zero": 3, "shard_group": 8},
        ),
        ({"training__global_batch_size": "64"}, {"global_batch": 64, "micro_batch": 1}),
        ({"model__flavor": '"70B"'}, {"preset": "llama3-70b"}),
        (
            {"model__flavor": '"405B"', "parallelism__pipeline_parallel_degree": "8"},
            {"preset": "llama3-405b", "layers_per_stage": "auto"},
        ),
    ],
)
def test_single_keys(values: dict[str, str], expected: dict[str, Any]) -> None:
    found = imported(changed(**values))
    sections = [section for section in found.document.values() if isinstance(section, dict)]
    flat = {key: value for section in sections for key, value in section.items()}
    assert {key: flat.get(key) for key in expected} == expected
    load_text(found.to_yaml_text("x"))


def test_compiled_blocks_and_json_and_old_names() -> None:
    assert imported(changed(compile__enable="true")).document["software"] == "torch-compile"
    loss = imported(changed(compile__enable="true", compile__components='["loss"]'))
    assert loss.document["software"] == "torch-eager"
    text = '{"model": {"flavor": "8B"}, "training": {"batch_size": 2, "data_parallel_shard_degree": 8}}'
    found = imported(text, None).document
    assert (found["gpus"], found["training"]["global_batch"]) == (8, 16)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no settings"),
        ("[model", "is not TOML"),
        (LLAMA_8B[:200], "is not TOML"),
        ("{", "not valid JSON"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[model]\n[model]\n", "is not TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("{" + '"a": {' * 30 + "}" * 31, "nested more than 8 sections"),
        ("[training]\nseq_len = " + "9" * 5000, "is not TOML"),
        ("[training]\nseq_len = " + "9" * 100, "training.seq_len: .*a whole number"),
        (changed(training__seq_len='"8192"'), "training.seq_len: is '8192'; a whole number is expected"),
        (changed(training__seq_len="0"), "a whole number from 1 is expected"),
        (changed(compile__enable="1"), "compile.enable: is 1; true or false"),
        (changed(model__flavor='"9B"'), "llama3 9B is not in the catalogue"),
        (changed(model__flavor='"9B_flex"'), "llama3 9B_flex is not in the catalogue; take .* --set model.layers=34"),
        (changed(model__name='"deepseek_v3"'), "deepseek_v3 8B is not in the catalogue"),
        (changed(parallelism__context_parallel_degree="-2"), "context_parallel_degree: is -2; a whole number"),
        (changed(parallelism__tensor_parallel_degree="3"), "16 GPUs are not divisible by"),
        (changed(training__enable_cpu_offload="true"), "enable_cpu_offload: true is not modelled"),
        (changed(optimizer__name='"Muon"'), "Muon updates whole matrices, and is not modelled with FSDP, which shards"),
        (changed(optimizer__name='"Shampoo"'), "'Shampoo' is not modelled; AdamW and Muon are"),
        (changed(activation_checkpoint__mode='"memory_budget"'), "'memory_budget' is not modelled"),
        (changed(model__converters='["bitnet"]'), "'bitnet' is not modelled; use float8 or mx"),
        (changed(parallelism__disable_loss_parallel="true"), "disable_loss_parallel: true is not modelled"),
        (
            changed(
                parallelism__pipeline_parallel_degree="2",
                parallelism__pipeline_parallel_schedule='"InterleavedZeroBubble"',
            ),
            "'InterleavedZeroBubble' is not modelled; known: 1F1B",
        ),
        ("[training]\nbatch_size = 1\nlocal_batch_size = 1\n", "is another name of"),
        (changed(model__converters='["float8"]', float8__emulate="true"), "float8.emulate: true is not modelled"),
        (changed(training__fp8_linear='"dynamic"'), "training.fp8_linear: 'dynamic' is not modelled"),
        (changed(parallelism__expert_parallel_degree='"4"'), "expert_parallel_degree: is '4'; a whole number"),
        (changed(parallelism__context_parallel_rotate_method='"p2p"'), "'p2p' is not one of allgather or alltoall"),
        (LLAMA_8B.replace("llama3", "own") + "[grpo]\nkl_beta = 0.0\n", "is reinforcement learning"),
        (changed(model__name='"qwen3_5"'), "qwen3_5 has linear attention layers"),
        ("x = 1\n" * 200_000, "longer than 1,000,000 characters"),
    ],
)
def test_a_bad_config_is_one_clear_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        imported(text)
    assert "job.toml" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_not_known_is_listed_and_not_refused() -> None:
    found = imported(changed(training__seq_length="8192", warp__speed="9"))
    assert found.unknown == ("training.seq_length (did you mean 'training.seq_len'?)", "warp.speed")
    assert found.document == imported().document


def test_float8_says_nothing_without_its_converter() -> None:
    """As in the published files, whose converters = ["float8"] is a comment."""
    layers = '\n[quantize.linear.float8]\nfilter_fqns = ["output"]\nenable_fsdp_float8_all_gather = 7\n'
    found = imported(LLAMA_8B + layers)
    assert found.document == imported().document
    assert "quantize.linear.float8.filter_fqns" in found.no_effect
    given = imported(changed(model__converters='["float8"]') + layers.replace("= 7", "= true"))
    assert given.document["training"]["precision"] == "fp8-mixed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('recipe_name = "tensorwise"\nfilter_fqns = ["output", "router.gate"]', []),
        ('recipe_name = "rowwise"', ["take as long with rowwise scales"]),
        ('recipe_name = "rowwise_with_gw_hp"', ["take as long with rowwise scales", "although rowwise_with_gw_hp has"]),
        ('filter_fqns = "attention.wk,output"', ["in fp8, too: attention.wk"]),
        ("filter_fqns = []", ["the head's matmul is in 16 bits"]),
    ],
)
def test_products_in_float8_that_are_taken_otherwise_are_told(settings: str, said: list[str]) -> None:
    usual = imported(changed(model__converters='["float8"]'))
    found = imported(changed(model__converters='["float8"]') + f"\n[float8]\n{settings}\n")
    assert found.document == usual.document
    more = [sentence for sentence in found.assumed if sentence not in usual.assumed]
    assert len(more) == len(said)
    assert all(words in sentence for words, sentence in zip(said, more, strict=True))


def test_float8_before_there_were_converters() -> None:
    found = imported(changed(float8__enable_float8_linear="true"))
    assert found.document["training"]["precision"] == "fp8-mixed"
    assert "float8.enable_float8_linear" in found.mapped
    assert imported(changed(float8__enable_float8_linear="false")).document == imported().document


def test_all_problems_are_told_at_once() -> None:
    text = changed(model__flavor='"7B"', optimizer__name='"Shampoo"', training__seq_len='"8192"',
                   parallelism__tensor_parallel_degree="3")  # fmt: skip
    with pytest.raises(InputError) as caught:
        imported(text)
    said = str(caught.value)
    assert said.startswith("job.toml: 4 problems:\n  ")
    for words in (
        "training.seq_len: is '8192'",
        "llama3 7B is not in the catalogue",
        "'Shampoo' is not",
        "16 GPUs are no",
    ):
        assert words in said


def test_how_many_gpus_has_to_be_known() -> None:
    with pytest.raises(InputError, match="give --gpus, or the degree"):
        imported(gpus=None)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(LLAMA_8B)), st.text(max_size=8))
def test_a_config_cut_anywhere_is_a_scenario_or_one_complaint(place: int, junk: str) -> None:
    try:
        imported(LLAMA_8B[:place] + junk)
    except InputError:
        return


def test_configs_of_older_versions_and_models_for_trying_out() -> None:
    old = LLAMA_8B.replace("data_parallel_shard_degree = -1\n", "").replace(
        "[training]", "[dataset]\nuse_experimental_dataloader = false\n[training]\ndata_parallel_degree = -1\n"
        "enable_float8_linear = false"
    ).replace("tensor_parallel_degree = 1\n", "", 1)  # fmt: skip
    old = old.replace("[training]", "[training]\nsequence_parallel_degree = 2").replace('"llama3"', '"llama2"')
    found = scenario_from_torchtitan(
        f"# NOTE: this toml config is a preset for 64 A100 GPUs.\n{old}".replace('"8B"', '"70B"'),
        cluster={"topology": "dgx_a100"}, available=32,
    )  # fmt: skip
    assert (found.document["gpus"], found.document["parallel"]["tp"]) == (64, 2)
    assert found.document["model"]["preset"] == "llama2-70b"
    assert "64 GPUs, as noted at the head of the file" in found.assumed
    assert not found.unknown
    for name, flavor in (("deepseek_v3", "debugmodel"), ("qwen3", "debugmodel_moe"), ("gpt_oss", "120B")):
        text = changed(model__name=f'"{name}"', model__flavor=f'"{flavor}"', optimizer__early_step_in_backward="true")
        scenario = load_text(scenario_from_torchtitan(text, cluster={"topology": "dgx_h100"}, gpus=8).to_yaml_text("x"))
        assert scenario.model.moe is not None
    staged = changed(
        model__name='"deepseek_v3"', model__flavor='"debugmodel"', parallelism__pipeline_parallel_degree="2",
        parallelism__pipeline_parallel_schedule='"DualPipeV"', training__local_batch_size="4",
    )  # fmt: skip
    found = scenario_from_torchtitan(staged, cluster={"topology": "dgx_h100"}, gpus=8)
    assert load_text(found.to_yaml_text("x")).pipeline.schedule == "dualpipe-v"


def test_files_of_2024_are_read_with_later_defaults_which_is_told() -> None:
    experimental = "[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_split_points = 'layers.20'\n"
    old = LLAMA_8B.replace("pipeline_parallel_degree = 1\n", "").replace("local_batch_size = 1", "batch_size = 8")
    text = f"{experimental}pipeline_parallel_microbatches = 4\n{old}"
    found = scenario_from_torchtitan(text, cluster={"topology": "dgx_h100"}, gpus=8)
    assert found.document["pipeline"] == {"schedule": "1f1b"}
    assert (found.document["training"]["micro_batch"], found.document["training"]["global_batch"]) == (2, 32)
    assert [sentence.partition(" (")[0] for sentence in found.assumed[:2]] == [
        "unset values are torchtitan's defaults of 2025, although the keys are of 2024",
        "layers are evenly divided over stages: pipeline_parallel_split_points is not read",
    ]
    several = text.replace("'layers.20'", "['layers.8', 'layers.16', 'layers.25']")
    assert scenario_from_torchtitan(several, cluster={"topology": "dgx_h100"}, gpus=8).document == found.document
    first = '[model]\nname = "llama"\nflavor = "7B"\n[training]\nbatch_size = 8\nwarmup_pct = 0.2\n'
    found = scenario_from_torchtitan(first, cluster={}, gpus=8)
    assert "unset values are torchtitan's defaults of 2025" in found.assumed[0]
    assert found.assumed[1] == "a vocabulary of 32000 tokens, as in Llama 2's tokenizer"
    assert not found.unknown


def test_the_converter_to_mxfp8() -> None:
    text = (
        changed(model__converters='["quantize.linear.mx"]') + "\n[quantize.linear.mx]\nrecipe_name = 'mxfp8_cublas'\n"
    )
    found = scenario_from_torchtitan(text, cluster={"topology": "dgx_b200"}, gpus=8)
    assert found.document["training"]["precision"] == "mxfp8-mixed"
    assert not found.unknown


MASKED = "each sequence is one document, although attention is masked per document (block_causal)"


@pytest.mark.parametrize(
    ("name", "flavor", "more", "masked"),
    [
        ("llama3", "8B", "", False),
        ("llama3", "8B_flex", "", True),
        ("llama3", "8B_varlen", "", True),
        ("llama3", "8B", 'attn_backend = "varlen"', True),
        ("llama3", "8B", 'attn_backend = "sdpa"', False),
        ("llama3", "debugmodel_flex_attn", "", True),
        ("deepseek_v3", "16B", "", True),
        ("deepseek_v3", "debugmodel", "", False),
    ],
)
def test_attention_that_stays_in_documents_is_told(name: str, flavor: str, more: str, masked: bool) -> None:
    def of(flavor: str, more: str = "") -> ImportResult:
        text = LLAMA_8B.replace('name = "llama3"', f'name = "{name}"').replace('"8B"', f'"{flavor}"\n{more}')
        return imported(text)

    found = of(flavor, more)
    assert (MASKED in found.assumed) == masked
    assert not found.unknown
    assert found.document["model"] == of(flavor.partition("_")[0]).document["model"]


@pytest.mark.parametrize(
    ("name", "flavor", "total"),
    [("llama2", "271M", 271_090_688), ("llama2", "1B", 1_055_991_808), ("deepseek_v3", "kimi_k2", 1_026_408_232_448)],
)
def test_models_that_no_one_else_calls_so(name: str, flavor: str, total: int) -> None:
    text = LLAMA_8B.replace('name = "llama3"', f'name = "{name}"').replace('"8B"', f'"{flavor}"')
    model = load_text(imported(text).to_yaml_text("x")).model
    assert (parameters(model).total, model.norm, model.position, model.bias) == (total, "rmsnorm", "rope", False)


@pytest.mark.parametrize(
    ("name", "flavor", "preset"),
    [
        ("llama4", "17bx16e", "llama4-scout"),
        ("llama4", "17bx128e", "llama4-maverick"),
        ("qwen3_next", "80B-A3B", "qwen3-next-80b"),
        ("kimi_linear", "48B", "kimi-linear-48b"),
    ],
)
def test_models_of_several_kinds_of_layers_are_presets(name: str, flavor: str, preset: str) -> None:
    text = LLAMA_8B.replace('name = "llama3"', f'name = "{name}"').replace('"8B"', f'"{flavor}"')
    found = imported(text)
    assert found.document["model"] == {"preset": preset, "sequence_length": 8192}
    assert load_text(found.to_yaml_text("x")).model.layers_text.endswith(")")  # the number of each type


def test_a_job_config_that_a_launch_script_writes() -> None:
    script = f"#!/bin/bash\nGPUS=8\ncat > ./config.toml <<EOL\n{LLAMA_8B}\nEOL\ntorchrun -m torchtitan.train\n"
    assert imported(script).document == imported(LLAMA_8B).document
    with pytest.raises(InputError, match="is a script that writes no job config"):
        imported("#!/bin/bash\necho no\n")


def test_batches_in_tokens() -> None:
    keys = {
        "training__num_tokens_per_microbatch_per_dp_rank": "16384", "training__max_context_length": "4096",
        "parallelism__num_pp_microbatches": "8", "parallelism__pipeline_parallel_degree": "2",
    }  # fmt: skip
    lines = [each for each in changed(**keys).splitlines() if not each.startswith(("local_batch_size", "seq_len"))]
    document = imported("\n".join(lines)).document
    assert (document["training"]["micro_batch"], document["training"]["global_batch"]) == (4, 4 * 8 * 8)
    assert document["model"]["sequence_length"] == 4096
    lines.insert(lines.index("[training]") + 1, f"num_tokens_per_train_step = {2**20}")
    assert imported("\n".join(lines)).document["training"]["global_batch"] == 256
    with pytest.raises(
        InputError, match=r"num_tokens_per_train_step: 1048577 is not divisible by training.seq_len = 4096"
    ):
        imported("\n".join(lines).replace(str(2**20), str(2**20 + 1)))


STARTED = """#!/bin/bash
export CONFIG_FILE=${CONFIG_FILE:-"./train_configs/own.toml"}
NGPU=${NGPU:-4}
torchrun --nnodes 2 --nproc_per_node=${NGPU} --role rank -m torchtitan.train --job.config_file ${CONFIG_FILE} \\
    --parallelism.tensor_parallel_degree 2 --training.local-batch-size=3 --compile.enable \\
    --fault_tolerance.enable --activation_checkpoint.selective_ac_option=2
"""


def test_a_script_that_starts_a_job_with_settings_of_its_own() -> None:
    there = {"train_configs/own.toml": LLAMA_8B}
    found = scenario_from_torchtitan(STARTED, cluster={}, available=64, read_file=there.get, source="run.sh")
    document = found.document
    assert (document["gpus"], document["parallel"]["tp"], document["training"]["micro_batch"]) == (8, 2, 3)
    assert (document["training"]["recompute_every"], document["software"]) == (2, "torch-compile")
    assert "8 GPUs, started by its script" in found.assumed
    assert any(each.startswith("one replica group: fault-tolerant averaging") for each in found.assumed)
    eager = STARTED.replace("\nNGPU", "\nexport TORCH_COMPILE_DISABLE=1\nNGPU")
    told = scenario_from_torchtitan(eager, cluster={}, available=64, read_file=there.get, source="run.sh").assumed
    assert "kernels are assumed to run with default settings; TORCH_COMPILE_DISABLE=1 is ignored" in told
    plain = STARTED.replace("--job.config_file ${CONFIG_FILE}", "")
    by_variable = scenario_from_torchtitan(plain, cluster={}, available=64, read_file=there.get, source="run.sh")
    assert by_variable.document["model"] == document["model"]


def test_a_script_whose_job_config_is_not_there() -> None:
    with pytest.raises(InputError, match=r"starts torchtitan with \./train_configs/own\.toml, which is not next to it"):
        scenario_from_torchtitan(STARTED, cluster={}, available=64, source="run.sh")


def test_a_registry_takes_the_model_from_where_it_imports_it() -> None:
    text = (
        "from torchtitan.models.qwen3 import model_registry\n"
        "def own_small():\n"
        "    return Trainer.Config(model_spec=model_registry('0.6B'), training=TrainingConfig(seq_len=512))\n"
    )
    found = scenario_from_torchtitan(text, cluster={}, gpus=8, source="own.py")
    assert found.document["model"]["name"] == "qwen3-0.6b"


def test_a_registry_names_optimizers_for_groups_of_parameters() -> None:
    groups = "param_groups=[ParamGroupConfig(pattern='layers', optimizer_name='{}'), ParamGroupConfig(pattern='.*')]"

    def read(shard: int, within: str) -> ImportResult:
        text = (
            "def llama3_8b():\n    config = Trainer.Config(model_spec=model_registry('8B'))\n"
            f"    config.parallelism = ParallelismConfig(data_parallel_shard_degree={shard})\n"
            f"    config.optimizer = OptimizersContainer.Config({within})\n    return config\n"
        )
        return scenario_from_torchtitan(text, cluster={}, source="models/llama3/config_registry.py")

    assert read(1, groups.format("Muon")).document["training"]["optimizer"] == "muon"
    with pytest.raises(InputError, match="Muon updates whole matrices, and is not modelled with FSDP, which shards"):
        read(8, groups.format("Muon"))
    with pytest.raises(InputError, match="'AdamW and Shampoo' is not modelled"):
        read(1, groups.format("Shampoo"))
    assert "optimizer" not in read(8, groups.format("AdamW")).document["training"]
    assert read(8, "param_groups=made()").unknown == ("optimizer.param_groups",)
    more = read(8, "lr=1e-3, implementation='fused_opt_states_bf16', something_else=2")
    assert "optimizer.implementation: the optimizer state is assumed to be in 32 bits" in more.assumed
    assert ("optimizer.lr" in more.no_effect, more.unknown) == (True, ("optimizer.something_else",))


@pytest.mark.parametrize(
    ("degrees", "gpus", "training", "said"),
    [
        ({"data_parallel_shard_degree": 1, "pipeline_parallel_degree": 4}, 4, ("fp32", None), "in fp32: torchtitan sw"),
        ({"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2}, 2, ("fp32", None), "but with TP"),
        ({"data_parallel_shard_degree": 1}, 1, ("bf16-mixed", "fp32-16"), "uses autocast (no FSDP)"),
        ({"data_parallel_shard_degree": 1, "data_parallel_replicate_degree": 8}, 8, ("bf16-mixed", "fp32-16"),
         "uses autocast (no FSDP)"),
        ({"data_parallel_shard_degree": 2, "pipeline_parallel_degree": 4}, 8, ("bf16-mixed", "fp32-16"), ""),
        ({"data_parallel_shard_degree": 1, "context_parallel_degree": 2}, 2, ("bf16-mixed", "fp32-16"), ""),
    ],
)  # fmt: skip
def test_without_fsdp_mixed_precision_is_off_or_by_autocast(
    degrees: dict[str, int], gpus: int, training: tuple[str, str | None], said: str
) -> None:
    split = {f"parallelism__{name}": str(degree) for name, degree in degrees.items()}
    found = imported(changed(**split), gpus)
    section = found.document["training"]
    assert (section["precision"], section.get("memory_recipe")) == training
    told = [sentence for sentence in found.assumed if "autocast" in sentence or "mixed_precision_param" in sentence]
    assert len(told) == bool(said)
    assert said in "".join(told)
    assert load_text(found.to_yaml_text("a test")).gpus == gpus


def test_what_of_a_precision_without_fsdp_has_no_place_is_told() -> None:
    alone = {"parallelism__data_parallel_shard_degree": "1"}
    narrow = imported(changed(**alone, training__mixed_precision_reduce='"bfloat16"'), 1)
    assert narrow.document["training"]["memory_recipe"] == "fp32-16"
    assert any("whatever mixed_precision_reduce is" in sentence for sentence in narrow.assumed)
    split = alone | {"parallelism__tensor_parallel_degree": "2"}
    products = imported(changed(**split, model__converters='["float8"]'), 2)
    assert products.document["training"]["precision"] == "fp8-mixed"
    assert any("other than fp8 matmuls are simulated in 16 bits" in sentence for sentence in products.assumed)
    kept = imported(changed(**split, training__dtype='"bfloat16"'), 2).document["training"]
    assert (kept["precision"], kept["memory_recipe"]) == ("bf16-mixed", "bf16-8")


def test_a_registry_has_mixed_precision_without_fsdp() -> None:
    text = """
def small():
    return Trainer.Config(
        model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=4, seq_len=8192),
        parallelism=ParallelismConfig(data_parallel_shard_degree=1, tensor_parallel_degree=2),
    )
"""
    source = "models/llama3/config_registry.py"
    found = scenario_from_torchtitan(text, cluster={}, function="small", source=source)
    assert found.document["training"]["precision"] == "bf16-mixed"
    assert any(sentence.startswith("mixed precision is on without FSDP") for sentence in found.assumed)


@pytest.mark.parametrize("section", ["training", "debug"])
def test_deterministic_kernels_are_told(section: str) -> None:
    name = f"{section}.deterministic"
    on, off = (imported(changed(**{f"{section}__deterministic": word})) for word in ("true", "false"))
    assert any(sentence.startswith(f"{name}: deterministic kernels are assumed as fast") for sentence in on.assumed)
    assert name not in on.no_effect
    assert name in off.no_effect
    assert not any("deterministic" in sentence for sentence in off.assumed)
