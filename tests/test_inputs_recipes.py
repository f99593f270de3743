"""Recipes and registries in Python that say one thing in several sections, or through functions of other files."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.nemo import scenario_from_nemo
from simcluster.importers.torchtitan import scenario_from_torchtitan
from simcluster.model.shard_widths import padded_vocab_size
from simcluster.scenario.scenario import from_document

CLUSTER = {"topology": "dgx_h100", "nodes": 1}
LINES = (
    'cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider()',
    "cfg.optimizer = OptimizerConfig(bf16=True, fp16=False, use_distributed_optimizer=True)",
    "cfg.mixed_precision = 'bf16_mixed'",
    "cfg.ddp.grad_reduce_in_fp32 = False",
    "cfg.ddp.use_distributed_optimizer = False",
    "cfg.peft = None",
)


def own(*lines: str, base: str = "_pretrain_common()", name: str = "own_config") -> ImportResult:
    """Import a recipe with these lines between the first and the last one."""
    body = "".join(f"    {line}\n" for line in (f"cfg = {base}", *lines, "return cfg"))
    return scenario_from_bridge(f"def {name}():\n{body}", cluster=CLUSTER, source="r.py", function=name, gpus=8)


def at(document: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for key in path.split("."):
        document = document.get(key, {})
    return None if document == {} else document


WIDE, NARROW = "bf16-mixed mixed-18", "bf16-mixed mixed-16"
FORMATS = "cfg.mixed_precision = MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=False, {})"
NULL = "cfg.tokenizer = TokenizerConfig(tokenizer_type='NullTokenizer', vocab_size=32_000, use_tokenizer_vocab_size={})"


@pytest.mark.parametrize(
    ("line", "paths", "expected"),
    [
        ("", "training.precision training.memory_recipe", WIDE),  # reduced in 32 bits, whatever DDP says
        ("cfg.mixed_precision = 'fp16_mixed'", "training.precision training.memory_recipe", "fp16-mixed mixed-16"),
        (FORMATS.format(""), "training.precision training.memory_recipe", NARROW),
        (
            "cfg.mixed_precision = MixedPrecisionConfig(bf16=True)",
            "training.precision training.memory_recipe", WIDE,
        ),
        ("cfg.mixed_precision = None", "training.precision training.memory_recipe", NARROW),  # bf16 of the optimizer
        (
            FORMATS.format("fp8='e4m3', fp8_recipe='mxfp8', fp8_param_gather=True"),
            "training.precision training.memory_recipe", "mxfp8-mixed fp8-params-16",
        ),
        (
            FORMATS.format("fp8='hybrid', fp8_recipe='tensorwise'"),
            "training.precision training.memory_recipe", "fp8-mixed fp8-18",
        ),
        (FORMATS.format("fp8_recipe='tensorwise'"), "training.precision training.memory_recipe", NARROW),
        (
            FORMATS.format("fp4='e2m1', fp4_recipe='nvfp4', fp4_param_gather=True"),
            "training.precision training.memory_recipe", "nvfp4-mixed nvfp4-17",
        ),
        (
            "cfg.mixed_precision = get_mixed_precision_config('bf16_with_fp8_current_scaling_mixed')",
            "training.precision training.memory_recipe", "fp8-mixed fp8-params-18",
        ),
        ("cfg.mixed_precision = 'bf16_with_mxfp8_mixed'", "training.precision", "mxfp8-mixed"),
        ("", "parallel.zero software.rope", "1 None"),  # llama_bridge.py has positions fused
        ("cfg.optimizer.use_distributed_optimizer = False", "parallel.zero", "0"),
        ("cfg.model.apply_rope_fusion = False", "software.rope", "steps"),
        ("cfg.model = AutoBridge.from_hf_pretrained('Qwen/Qwen3-8B')", "software.rope", "steps"),  # Megatron-Core's own
        (
            "cfg.model = AutoBridge.from_hf_pretrained('Qwen/Qwen3-8B'); cfg.model.apply_rope_fusion = True",
            "software.rope", "None",
        ),
        ("cfg.model = AutoBridge.from_hf_pretrained('deepseek-ai/DeepSeek-V3')", "software.rope", "steps"),
        (
            "cfg.model = AutoBridge.from_hf_pretrained('openai/gpt-oss-20b')",
            "software.rope model.preset", "steps gpt-oss-20b",  # as its positions are YaRN's
        ),
        (
            "cfg.model = OlMoEModelProvider()",
            "model.name model.moe.aux_loss software.experts.router_dtype", "olmoe-7b True fp32",
        ),
        (NULL.format("True"), "model.vocab_size", "32000"),
        (NULL.format("False"), "model.vocab_size", "128256"),
    ],
)  # fmt: skip
def test_settings_of_a_recipe(line: str, paths: str, expected: str) -> None:
    found = own(*LINES, line or "pass")
    assert " ".join(str(at(found.document, path)) for path in paths.split()) == expected
    assert not [each for each in found.assumed if "gradients" in each]
    assert not found.unknown


def test_positions_of_nemo_by_the_class_of_the_model() -> None:
    found = [
        nemo("pretrain_recipe", NEMO.replace("Llama3Config8B", name)) for name in ("Llama3Config8B", "Qwen3Config8B")
    ]
    assert [at(each, "software.rope") for each in found] == [None, "steps"]


LLAMA = "cfg.model = AutoBridge.from_hf_pretrained('meta-llama/Meta-Llama-3-8B')"


@pytest.mark.parametrize(
    ("base", "line", "words"),
    [
        ("_pretrain_common()", f"{LLAMA}; cfg.peft = default_peft_config('dora')", "own_config trains adapters"),
        ("_pretrain_common()", f"{LLAMA}; cfg.peft = LoRA(dim=8, target_modules=['*.0.*.linear_qkv'])", "of rank 8 on"),
        ("llama3_8b_peft_config(scheme='lora')", "", "comes from llama3_8b_peft_config, which is in another"),
        ("_pretrain_common()", LLAMA.replace("meta-llama/Meta-Llama-3-8B", "zai-org/GLM-5.1"), "GLM-5.1' is not known"),
        ("_pretrain_common()", LLAMA.replace("meta-llama/Meta-Llama-3-8B", "Qwen/Qwen2-Audio-7B"), "takes sound"),
        (
            "_pretrain_common()",
            LLAMA.replace("meta-llama/Meta-Llama-3-8B", "moonshotai/Kimi-K3"),
            "has layers of several kinds of attention",
        ),
        ("_sft_common_vlm()", "", r"own_config .*takes images; only text"),
        ("_sft_common()", f"{LLAMA}; cfg.model.freeze_vision_model = False", r"own_config .*takes images; only text"),
        ("base(1)", "", "comes from base, which is in another file: run it once"),
        ("ConfigContainer(model=NemotronHProvider4B())", "", "is unknown, and the recipe does not give its sizes"),
        ("ConfigContainer(model=MambaModelProvider(num_layers=4))", "", "has Mamba-2 layers, but no hybrid_override"),
        ("ConfigContainer(model=X(num_layers=3))", "", "has an unknown class, so its"),
        (
            "ConfigContainer(model=AutoBridge.from_hf_pretrained('a/Own-7B'))", "",
            "the model 'a/Own-7B' is not known, and its sizes are not given",
        ),
    ],
)  # fmt: skip
def test_recipes_that_are_refused(base: str, line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        own(line or "pass", base=base)


def test_a_recipe_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match=r"wan_1_3b_config .*generates images or videos; only text"):
        own("cfg.model = from_own('x')", name="wan_1_3b_config")


def test_a_class_without_a_size_that_is_given_the_sizes_of_a_model() -> None:
    lines = (
        "sizes = {'num_layers': 26, 'hidden_size': 1152, 'num_attention_heads': 4}",
        "cfg.model = Gemma3ModelProvider(**sizes, seq_length=2048)",
        "cfg.model.moe_router_dtype = 'bf16'",
        "cfg.model.batch_p2p_comm = False",
        "cfg.model.mla_down_proj_fusion = True",
        "cfg.ddp.overlap_param_gather = True",
        "cfg.optimizer.overlap_param_gather = False",
        "if cfg.model.own: cfg.rng.te_rng_tracker = cfg.model.use_te_rng_tracker = True",
        "if cfg.model.own: cfg.model.own_field = True",
    )
    found, narrow = (own(*lines, f"cfg.optimizer.main_params_dtype = torch.float{bits}") for bits in (32, 16))
    assert found.document["model"]["name"] == "gemma-3-1b"
    assert found.document["overlap"]["param_gather"] is True  # either of both, as its setup has it
    assert found.unknown == ("effect of the recipe where cfg.model.own (it changes own_field)",)
    assert {"model.batch_p2p_comm", "optimizer.main_params_dtype"} <= set(found.no_effect)
    assert any(note.startswith("main-params-dtype: master") for note in narrow.assumed)
    assert any(
        note.startswith("mla-down-proj-fusion: down projections to latents are two matmuls, for")
        for note in found.assumed
    )


def test_a_vocabulary_of_the_model_and_a_length_that_differs() -> None:
    found = own(
        LLAMA,
        "cfg.tokenizer = TokenizerConfig(tokenizer_type='NullTokenizer', use_tokenizer_vocab_size=True)",
        "cfg.tokenizer.vocab_size = cfg.model.vocab_size",
        "cfg.model.seq_length = 8192",
        "cfg.dataset.seq_length = 4096",
    )
    assert found.document["model"] == {"preset": "llama3-8b", "sequence_length": 8192}
    told = "although dataset.seq_length is 4096 (Megatron-Bridge refuses unequal lengths)"
    assert f"sequences have the model's length, {told}" in found.assumed


@pytest.mark.parametrize("whole", [True, False])
def test_a_vocabulary_of_the_tokenizer(whole: bool) -> None:
    line = NULL.format(whole).replace("NullTokenizer', vocab_size=32_000", "HuggingFaceTokenizer'")
    assert any("takes the tokenizer's" in each for each in own(line, LLAMA).assumed) is whole


@pytest.mark.parametrize(
    ("base", "said", "multiple"),
    [
        ("_sft_common()", "pass", 1),
        ("ConfigContainer(train=TrainingConfig(micro_batch_size=1, global_batch_size=8))", "pass", 1),
        ("_sft_common()", "cfg.model.make_vocab_size_divisible_by = 64", 1),
        ("_sft_common()", "cfg.tokenizer.use_tokenizer_vocab_size = True", 128),
        ("_pretrain_common()", "pass", 128),  # which is not read, and may take the tokenizer's
    ],
)
def test_a_vocabulary_of_the_models_own_is_not_padded(base: str, said: str, multiple: int) -> None:
    model = 'cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen2.5-72B").to_megatron_provider()'
    found = own(model, "cfg.model.tensor_model_parallel_size = 8", said, base=base).document
    read = from_document(found).model
    assert (read.vocab_multiple, padded_vocab_size(read, 8)) == (multiple, 152_064 if multiple == 1 else 152_576)


CLASSES = """
from megatron.bridge.models.llama import LlamaModelProvider

def container():
    return ConfigContainer(
        model=MODEL, train=TrainingConfig(global_batch_size=64, micro_batch_size=1), comm_overlap=OVERLAP,
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True),
        dataset=GPTDatasetConfig(sequence_length=4096), mixed_precision="bf16_mixed",
    )
"""


def of_class(model: str, overlap: str = "None") -> dict[str, Any]:
    text = f"MODEL = {model}\nOVERLAP = {overlap}\n{CLASSES}"
    return scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="container", gpus=8).document


def test_models_by_their_class_with_what_a_recipe_says_otherwise() -> None:
    assert of_class("Llama32ModelProvider1B()")["model"]["layers"] == 16
    assert of_class("Qwen3MoEModelProvider30B_A3B()")["model"]["preset"] == "qwen3-30b-a3b"
    assert of_class("Llama3ModelProvider8B(num_layers=4)")["model"] == {
        "preset": "llama3-8b", "sequence_length": 4096, "layers": 4, "vocab_multiple": 1
    }  # fmt: skip
    own = of_class(
        "LlamaModelProvider(num_layers=4, hidden_size=512, num_attention_heads=8, ffn_hidden_size=1536, vocab_size=999)"
    )["model"]
    assert (own["gated_mlp"], own["norm"], own["position"], own["bias"]) == (True, "rmsnorm", "rope", False)


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("None", (False, False)),  # Megatron-Core's own, where no function of recipes/common.py says otherwise
        ("CommOverlapConfig(tp_comm_overlap=False)", (True, True)),
        ("CommOverlapConfig(tp_comm_overlap=False, overlap_param_gather=False)", (True, False)),
    ],
)
def test_overlaps_are_those_of_their_own_section(overlap: str, expected: tuple[bool, bool]) -> None:
    found = of_class("Llama3ModelProvider8B()", overlap)["overlap"]
    assert (found["grad_reduce"], found["param_gather"]) == expected


def test_overlaps_of_their_own_section_are_those_of_a_distributed_optimizer() -> None:
    text = CLASSES.replace("MODEL", "Llama32ModelProvider1B()").replace("OVERLAP", "CommOverlapConfig()")
    text = text.replace("(use_distributed_optimizer=True)", "(overlap_grad_reduce=True)").replace(
        "dataset=", "optimizer=OptimizerConfig(optimizer='dist_muon'), dataset="
    )
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="container", gpus=8).document["overlap"]
    assert (found["grad_reduce"], found["param_gather"]) == (True, False)


BY_PATH = """
from megatron.bridge import AutoBridge
if __name__ == "__main__":
    cfg = ConfigContainer(model=AutoBridge.from_hf_pretrained(PATH).to_megatron_provider())
    cfg.train = TrainingConfig(global_batch_size=32, micro_batch_size=1)
    cfg.dataset = GPTDatasetConfig(sequence_length=2048)
    pretrain(cfg)
"""
CONFIG = """{"model_type": "qwen3", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
"head_dim": 64, "num_key_value_heads": 2, "intermediate_size": 1536, "vocab_size": 5000, "new_key": 1,
"max_position_embeddings": 4096, "tie_word_embeddings": true}"""


def by_path(path: str, files: dict[str, str]) -> ImportResult:
    text = BY_PATH.replace("PATH", path)
    return scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=8, read_file=files.get)


def test_a_model_that_is_named_by_its_path_alone_is_read_of_the_config_beside() -> None:
    found = by_path("'own/Model-1B'", {"own/Model-1B/config.json": CONFIG})
    model = found.document["model"]
    assert {model[key] for key in ("layers", "hidden_size", "kv_heads", "sequence_length")} == {6, 512, 2, 2048}
    assert model["tied_embeddings"] is True
    assert model["qk_norm"]
    assert "the model own/Model-1B is read from the config.json next to the file" in found.assumed
    assert "new_key of config.json" in found.unknown


def test_recipes_that_state_no_length_train_on_the_usual_one() -> None:
    said = "model: {hf_model_id: own/M%s}\ntrain: {global_batch_size: 8, micro_batch_size: 1}"
    read_file = {"own/M/config.json": CONFIG.replace("4096", "131072")}.get
    found = scenario_from_bridge(said % "", cluster=CLUSTER, gpus=8, read_file=read_file)
    assert found.document["model"]["sequence_length"] == 8192
    assert "sequences of 8192 tokens" in found.assumed
    stated = scenario_from_bridge(said % ", seq_length: 2048", cluster=CLUSTER, gpus=8, read_file=read_file)
    assert stated.document["model"]["sequence_length"] == 2048
    assert not any(sentence.startswith("sequences of") for sentence in stated.assumed)


@pytest.mark.parametrize(
    ("path", "files", "words"),
    [
        ("'own/Model-1B'", {}, "put its config.json next to the file, or in a folder own/Model-1B there"),
        ("args.hf_path", {}, "the model 'args.hf_path' is not known"),
        ("'a/b'", {"a/b/config.json": '{"model_type": "mamba"}'}, "config.json next to it: the config has model_type"),
        ("'a/b'", {"a/b/config.json": "{"}, "a/b/config.json:1:2: not valid JSON"),
    ],
)
def test_a_path_that_says_no_model(path: str, files: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        by_path(path, files)


def test_what_hangs_on_a_condition_that_is_not_known_is_told() -> None:
    found = own(*LINES, "if on_hopper(): cfg.train.micro_batch_size = 1")
    assert found.unknown == ("effect of the recipe where on_hopper() (it changes micro_batch_size)",)


def test_overrides_without_a_model_ask_for_their_recipe() -> None:
    with pytest.raises(InputError, match="name the recipe that they change"):
        scenario_from_bridge("train:\n  micro_batch_size: 1\n", cluster=CLUSTER, gpus=8)
    text = (
        "model:\n  hf_model_id: Qwen/Qwen3-8B\n  seq_length: 2048\ntrain: {global_batch_size: 8, micro_batch_size: 1}"
    )
    assert scenario_from_bridge(text, cluster=CLUSTER, gpus=8).document["model"]["name"] == "qwen3-8b"


WRITTEN = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.qwen.qwen_provider.Qwen3ModelProvider
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  attention_backend: {_args_: [3], _call_: true, _target_: megatron.core.transformer.enums.AttnBackend}
  add_bias_linear: false
  bf16: true
  hf_model_id: someone/Own-1B
  gated_linear_unit: true
  num_layers: 28
  hidden_size: 1536
  num_attention_heads: 16
  ffn_hidden_size: 4608
  vocab_size: 128256
  seq_length: 4096
  mamba_state_dim: 128
  use_kitchen: false
  own_switch: true
optimizer: {_target_: a.OptimizerConfig, bf16: false, overlap_param_gather: false, muon_momentum: 0.95}
ddp: {_target_: a.DDPConfig, use_distributed_optimizer: true, overlap_param_gather: true}
train: {_target_: a.TrainingConfig, global_batch_size: 256, micro_batch_size: 2}
"""


def test_a_configuration_that_megatron_bridge_wrote() -> None:
    found = scenario_from_bridge(WRITTEN, cluster=CLUSTER, gpus=8)
    model = found.document["model"]
    assert (model["layers"], model["kv_heads"], model["head_dim"], model["qk_norm"]) == (28, 8, 128, "head")
    assert (found.document["training"]["global_batch"], found.document["training"]["attention"]) == (256, "unfused")
    assert found.document["overlap"]["param_gather"]
    assert found.unknown == ("model.own_switch",)  # what is off, or rests on what is off, is not told
    with pytest.raises(InputError, match="vocab-size: '<<<SIZE>>>' is not a whole number"):
        scenario_from_bridge(WRITTEN.replace("128256", "<<<SIZE>>>"), cluster=CLUSTER, gpus=8)


def test_attention_in_steps_of_gemma_2() -> None:
    assert of_class("Gemma2ModelProvider9B()")["training"]["attention"] == "unfused"
    assert of_class("Llama3ModelProvider8B()")["training"]["attention"] == "fused"


SCRIPT = """
def main():
    cfg = container()
    conf, excluded = create_omegaconf_dict_config(cfg)
    apply_overrides(cfg, parse_hydra_overrides(conf, []), excluded)
    pretrain(config=cfg, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
"""


def test_a_script_that_starts_a_recipe_with_its_command_line() -> None:
    container = CLASSES.replace("MODEL", "Llama32ModelProvider1B()").replace("OVERLAP", "None")
    found = scenario_from_bridge(container + SCRIPT, cluster=CLUSTER, source="pretrain.py", gpus=4)
    assert (found.document["gpus"], found.unknown) == (4, ())


# --- NeMo 2 -----------------------------------------------------------------------------------------------------------

NEMO = """
import nemo_run as run
from nemo.collections import llm


def trainer(tensor_parallelism=2, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy, tensor_model_parallel_size=tensor_parallelism, pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=4, sequence_parallel=True,
    )
    return run.Config(
        nl.Trainer, devices=8, num_nodes=2, plugins=bf16_mixed(), strategy=strategy, callbacks=callbacks
    )


def pretrain_recipe(performance=True, peft=None):
    recipe = run.Partial(
        llm.pretrain, model=run.Config(llm.LlamaModel, config=run.Config(llm.Llama3Config8B)),
        trainer=trainer(callbacks=[run.Config(TimingCallback)]),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=64, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    if performance:
        recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
        recipe.trainer.plugins.grad_reduce_in_fp32 = False
    return recipe


def own_recipe(peft_scheme="lora"):
    recipe = pretrain_recipe()
    if peft_scheme == "lora":
        recipe.peft = run.Config(LoRA)
    return recipe


def from_a_recipe():
    recipe = pretrain_recipe(performance=False)
    recipe.model.config.num_layers = 8
    return recipe
"""
LIGHTNING = """
TP_SIZE = 2


def main():
    trainer = nl.Trainer(
        devices=8, num_nodes=1, strategy=nl.MegatronStrategy(tensor_model_parallel_size=TP_SIZE),
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
    )
    llm.pretrain(
        model=llm.LlamaModel(llm.Llama3Config8B(num_layers=6)), trainer=trainer,
        data=llm.MockDataModule(seq_length=2048, micro_batch_size=1, global_batch_size=8),
        optim=nl.MegatronOptimizerModule(OptimizerConfig(use_distributed_optimizer=True)),
    )


if __name__ == "__main__":
    main()
"""


def nemo(function: str, text: str = NEMO) -> dict[str, Any]:
    return scenario_from_nemo(text, cluster=CLUSTER, function=function, source="r.py").document


def test_a_recipe_of_nemo_2_in_python() -> None:
    found = nemo("pretrain_recipe")
    assert (found["gpus"], found["model"]) == (16, {"preset": "llama3-8b", "sequence_length": 8192})
    assert found["parallel"] == {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1}
    assert found["pipeline"] == {"schedule": "interleaved", "chunks": 4}  # sends overlapped, by the callback
    assert (found["overlap"]["grad_reduce"], found["training"]["memory_recipe"]) == (True, "mixed-16")


def test_no_note_says_that_a_known_model_has_other_groups_than_it_has() -> None:
    found = scenario_from_nemo(NEMO, cluster=CLUSTER, function="pretrain_recipe", source="r.py")
    assert not [note for note in found.assumed if "num-query-groups" in note]
    assert not found.unknown


@pytest.mark.parametrize(
    ("model", "multiple", "told"),
    [
        ("Qwen3Config8B", 1, False),  # its class says its vocabulary
        ("Gemma2Config2B", 1, False),
        ("GemmaConfig2B", 128, True),
        ("Llama3Config8B", 128, True),
        ("Llama3Config8B, vocab_size=128_300", 1, False),
        ("LlamaConfig, num_layers=4, hidden_size=512, num_attention_heads=8, vocab_size=1000", 1, False),
    ],
)
def test_a_vocabulary_that_nemo_pads_is_that_of_the_data(model: str, multiple: int, told: bool) -> None:
    text = NEMO.replace("llm.Llama3Config8B", f"llm.{model}")
    found = scenario_from_nemo(text, cluster=CLUSTER, function="pretrain_recipe", source="r.py")
    assert found.document["model"].get("vocab_multiple", 128) == multiple
    known = "takes that of the data's tokenizer, by default GPT-2's of 50257 tokens"  # as MockDataModule has it
    assert any(known in note for note in found.assumed) is told


def test_a_recipe_of_nemo_2_that_changes_another() -> None:
    found = nemo("from_a_recipe")
    assert (found["model"]["layers"], found["overlap"]["grad_reduce"]) == (8, False)
    other = NEMO.replace("= pretrain_recipe(performance=False)", "= llm.llama3_8b.pretrain_recipe(num_nodes=4)")
    with pytest.raises(InputError, match=r"nemo\.collections\.llm\.llama3_8b\.pretrain_recipe, which is in another"):
        nemo("from_a_recipe", other)


ADAPTED = ["qkv", "projection", "mlp_up", "mlp_down"]


def test_recipes_that_train_adapters() -> None:
    """LoRA's defaults are rank 32 on all four modules, in Megatron-Bridge and in NeMo 2."""
    assert nemo("own_recipe")["training"]["trainable"] == {"rank": 32, "modules": ADAPTED}
    assert "trainable" not in nemo("own_recipe", NEMO.replace('"lora"):', '"none"):'))["training"]
    with pytest.raises(InputError, match="own_recipe trains adapters"):
        nemo("own_recipe", NEMO.replace("run.Config(LoRA)", "run.Config(DoRA)"))

    def imported(*lines: str, base: str = "_pretrain_common()") -> Any:
        return own(LLAMA, *lines, base=base).document["training"].get("trainable")

    assert imported() is None
    assert imported("cfg.peft = None") is None
    assert imported("cfg.peft = default_peft_config('lora', dim=8)") == {"rank": 8, "modules": ADAPTED}
    assert imported(base="_peft_common()") == {"rank": 32, "modules": ADAPTED}
    mlperf = "LoRA(dim=16, alpha=32, dropout=0.1, a2a_experimental=True, target_modules=['linear_proj', 'linear_qkv'])"
    expected = {"rank": 16, "modules": ["projection", "qkv"], "dropout": True}
    assert imported(f"cfg.peft = {mlperf}") == expected  # exchanged without sequence parallelism
    sharded = "cfg.model.tensor_model_parallel_size = 4", "cfg.model.sequence_parallel = True"
    assert imported(f"cfg.peft = {mlperf}", *sharded) == {**expected, "exchange": "all_to_all"}
    found = from_document(own(LLAMA, f"cfg.peft = {mlperf}", *sharded).document)
    assert found.model.lora == found.training.trainable


def test_a_script_that_starts_a_training_of_its_parts() -> None:
    found = nemo("", LIGHTNING)
    assert (found["model"]["layers"], found["parallel"]) == (6, {"tp": 2, "pp": 1, "zero": 1})
    with pytest.raises(InputError, match=r"the model of main .* has an encoder"):
        nemo("", LIGHTNING.replace("LlamaModel", "BertModel"))


# --- torchtitan -------------------------------------------------------------------------------------------------------

BASE = """
def llama3_8b():
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, components=["loss"]),
    )
"""
GRAPHS = (
    BASE
    + """
def graph_llama3_8b_long():
    config = llama3_8b()
    config.training = replace(config.training, seq_len=32768)
    config.model_spec = model_registry("8B", converters=[MXFP8LinearConverter.Config()])
    return config


def graph_llama3_8b():
    return to_graph_trainer_config(llama3_8b(), model_registry)


def learns_by_rewards():
    return Controller.Config(trainer=PolicyTrainer.Config())
"""
)


def graphs(function: str) -> ImportResult:
    source = "graphs/llama3/config_registry.py"
    return scenario_from_torchtitan(GRAPHS, cluster=CLUSTER, gpus=8, function=function, source=source)


def test_a_registry_changes_a_configuration_of_its_own() -> None:
    found, long = (graphs(name).document for name in ("llama3_8b", "graph_llama3_8b_long"))
    assert found["model"] == {"preset": "llama3-8b", "sequence_length": 8192}
    assert (found["training"]["recompute"], found["software"]) == ("full", "torch-eager")
    assert (long["model"]["sequence_length"], long["training"]["global_batch"]) == (32768, 8)
    assert (found["training"]["precision"], long["training"]["precision"]) == ("bf16-mixed", "mxfp8-mixed")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("learns_by_rewards", "learns_by_rewards configures reinforcement learning"),
        (
            "graph_llama3_8b",
            r"returns no Trainer.Config that can be read as data: run it once with debug\.print_config",
        ),
    ],
)
def test_a_registry_that_is_not_read(function: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        graphs(function)


NEWEST = """
from torchtitan.models.deepseek_v3 import model_registry


def deepseek_v3_16b(seq_len: int | None = None) -> Trainer.Config:
    model_config = model_registry("16B", enable_sp=True, seq_len=seq_len, attn_backend="flex")
    return Trainer.Config(
        model=model_config,
        optim=Optim.Config(optimizer=OptimizersContainer.Config(optimizers=[AdamW.Config(pattern=r".*", lr=2e-4)])),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=4 * model_config.max_context_length,
            max_context_length=model_config.max_context_length,
            disable_cuda_graphs=False,
        ),
        parallelism=ParallelismConfig(expert_parallel_degree=4),
        checkpointer=None,
        activation_checkpoint=SelectiveAC.Config(),
        compile=CompileConfig(components=["model"]),
    )


def own_experts(seq_len: int | None = None) -> Trainer.Config:
    config = deepseek_v3_16b(seq_len=seq_len)
    config.parallelism.data_parallel_shard_degree = 4
    config.activation_checkpoint = ActivationCheckpointConfig(mode="selective")
    for optimizer in config.optim.optimizer.optimizers:
        optimizer.moment_dtype = "bfloat16"
    for _, layer in config.model.traverse(Layer.Config):
        layer.own = True
    return apply_transforms(config, [Float8GroupedLinearConverter.Config(), OwnTransform(factor=2)])


def predicts() -> Trainer.Config:
    config = own_experts(seq_len=2048)
    config.model = model_registry("16B", seq_len=2048, num_mtp_layers=1)
    return config
"""


def newest(function: str, **more: Any) -> ImportResult:
    return scenario_from_torchtitan(
        NEWEST, cluster=CLUSTER, function=function, source="models/deepseek_v3/config_registry.py", **more
    )


def test_the_newest_registries_take_the_length_of_a_sequence() -> None:
    with pytest.raises(InputError, match="leaves the sequence length to the model: set it, as in --sequence-len"):
        newest("deepseek_v3_16b", gpus=8)
    found = newest("deepseek_v3_16b", gpus=8, sequence_length=4096)
    assert found.document["model"] == {"preset": "deepseek-v2-lite", "sequence_length": 4096}
    assert (found.document["training"]["micro_batch"], found.document["parallel"]["ep"]) == (4, 4)
    assert found.document["software"] == "torch-compile"
    assert any("disable_cuda_graphs" in sentence for sentence in found.assumed)
    assert not found.unknown


def test_what_transforms_a_configuration_or_loops_over_its_model_is_listed() -> None:
    found = newest("own_experts", sequence_length=2048)
    assert (found.document["gpus"], found.document["training"]["precision"]) == (4, "fp8-mixed")
    assert found.document["training"]["recompute_every"] == 2  # by operators, of a mixture
    assert "transforms.OwnTransform" in found.unknown
    told = [each for each in found.unknown if " in for " in each]
    assert [each.rpartition("changes ")[2] for each in told] == ["moment_dtype)", "own)"]
    predicted = newest("predicts")
    assert "mtp_layers" not in predicted.document["model"]
    assert any("without 1 layer of multi-token prediction" in sentence for sentence in predicted.assumed)


JOB = """
[model]
name = "%s"
flavor = "8B"
converters = "%s"
[training]
batch_size = 1
seq_len = 8192
"""


@pytest.mark.parametrize(("converters", "precision"), [("", "bf16-mixed"), ("float8", "fp8-mixed")])
def test_a_list_of_converters_as_one_text(converters: str, precision: str) -> None:
    found = scenario_from_torchtitan(JOB % ("llama3", converters), cluster=CLUSTER, gpus=8)
    assert found.document["training"]["precision"] == precision


OLD = """
def llama3_own():
    return Trainer.Config(
        model_spec=model_registry("70B", moe_comm_backend="deepep"),
        model_converters=ModelConvertersContainer.Config(converters=[Float8LinearConverter.Config()]),
        optimizer=OptimizersContainer.Config(lr=1e-4),
        training=TrainingConfig(local_batch_size=2 * 2, seq_len=8192),
        parallelism=ParallelismConfig(data_parallel_replicate_degree=2, data_parallel_shard_degree=4),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective", selective_ac_option="3"),
    )
"""


def own_registry(text: str = OLD) -> ImportResult:
    return scenario_from_torchtitan(text, cluster=CLUSTER, function="llama3_own", source="r.py")


def test_recipes_of_float8_in_a_registry_are_told() -> None:
    text = OLD.replace("Float8LinearConverter.Config(", 'Float8LinearConverter.Config(recipe_name="rowwise"')
    found = own_registry(text)
    assert any("with rowwise scales (rowwise)" in sentence for sentence in found.assumed)
    assert found.document == own_registry().document


def test_a_registry_of_early_2026() -> None:
    found = own_registry().document
    assert found["model"] == {"preset": "llama3-70b", "sequence_length": 8192}
    assert found["training"] == {
        "global_batch": 32, "micro_batch": 4, "precision": "fp8-mixed", "memory_recipe": "fp32-16",
        "recompute": "full", "recompute_every": 3,
    }  # fmt: skip
    assert (found["gpus"], found["fsdp"]) == (8, {"shard_group": 4})


@pytest.mark.parametrize(("backend", "kind"), [("deepep", "deepep"), ("hybridep", "hybridep"), ("standard", None)])
def test_the_backend_of_experts_and_layers_of_more_tokens(backend: str, kind: str | None) -> None:
    text = (
        OLD.replace("llama3_own", "qwen3_own")
        .replace('"70B"', '"30B-A3B", num_mtp_layers=1')
        .replace("deepep", backend)
    )
    text = text.replace("data_parallel_replicate_degree=2", "expert_parallel_degree=4")
    found = scenario_from_torchtitan(text, cluster=CLUSTER, function="qwen3_own", source="r.py")
    assert found.document["parallel"].get("expert_dispatch", {}).get("kind") == kind
    assert any("without 1 layer of multi-token prediction" in sentence for sentence in found.assumed)


ENVIRONMENT = """
COMMON = {"NCCL_NVLS_ENABLE": 0, "NVTE_BWD_LAYERNORM_SM_MARGIN": 0}
def small_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider()
    cfg.env_vars = {**COMMON, "NCCL_GRAPH_REGISTER": 0}
    cfg.env_vars["NVTE_FWD_LAYERNORM_SM_MARGIN"] = MARGIN
    return cfg
"""


def test_variables_of_a_recipe_that_change_the_time_are_told() -> None:
    function = {"source": "r.py", "function": "small_config"}
    found = scenario_from_bridge(f"MARGIN = 16\n{ENVIRONMENT}", cluster=CLUSTER, **function)
    assert "NCCL is assumed to use the cluster's defaults; NCCL_NVLS_ENABLE=0 is ignored" in found.assumed
    assert any("default settings; NVTE_FWD_LAYERNORM_SM_MARGIN=16 is ignored" in sentence for sentence in found.assumed)
    assert "env_vars" not in found.no_effect
    usual = ENVIRONMENT.replace('ENABLE": 0', 'ENABLE": 1').replace("MARGIN\n", "0\n")
    idle = scenario_from_bridge(usual, cluster=CLUSTER, **function)
    assert "env_vars" in idle.no_effect
    assert not any("assumed to" in sentence or "ignored" in sentence for sentence in idle.assumed)
    said = scenario_from_bridge(
        "llama3_8b env_vars.NCCL_NVLS_ENABLE=0 train.micro_batch_size=1 train.global_batch_size=8", cluster=CLUSTER
    )
    assert any("NCCL_NVLS_ENABLE=0 is ignored" in sentence for sentence in said.assumed)
