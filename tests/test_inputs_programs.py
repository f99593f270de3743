"""Programs in Python that start a training, and recipes that are worked out where they run: NeMo's and Bridge's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.nemo import scenario_from_nemo

CLUSTER = {"topology": "dgx_h100", "nodes": 1}


def nemo(text: str, function: str = "", **given: str) -> ImportResult:
    return scenario_from_nemo(text, cluster=CLUSTER, given=given, source="r.py", function=function)


def test_arguments_are_given_by_name_on_our_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.py"
    file.write_text(TUNES)
    told = ["--arg", "num-nodes=2", "--arg", "scheme=none"]
    assert main(["import", "nemo", f"{file}:finetune_recipe", "--cluster", "dgx_h100", *told]) == 0
    assert "gpus: 4" in capsys.readouterr().out
    plain = tmp_path / "llama.yaml"
    plain.write_text("model: {num_layers: 2}\n")
    assert main(["import", "nemo", str(plain), "--cluster", "dgx_h100", *told]) == 2
    assert "--arg does not apply to nemo" in capsys.readouterr().err


SMALL = """
from nemo.collections import llm
from nemo import lightning as nl

data = DATA
config = llm.GPTConfig(num_layers=6, hidden_size=384, num_attention_heads=6, seq_length=2048)
if __name__ == "__main__":
    nodes = NODES
    trainer = nl.Trainer(
        devices=8, num_nodes=nodes, strategy=nl.MegatronStrategy(tensor_model_parallel_size=4),
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
    )
    llm.train(model=llm.GPTModel(config, tokenizer=data.tokenizer), data=data, trainer=trainer)
"""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("llm.MockDataModule()", (8, 4, 50257)),  # as NeMo's data have it, and GPT-2's tokenizer
        ("llm.PreTrainingDataModule(paths=[], micro_batch_size=1, global_batch_size=64)", (64, 1, 50257)),
        (
            "llm.FineTuningDataModule(dataset_root='x', global_batch_size=64, "
            "tokenizer=AutoTokenizer('Qwen/Qwen3-8B'))",
            (64, 4, 151936),
        ),
        ("llm.MockDataModule(global_batch_size=64, tokenizer=SentencePieceTokenizer(path='x'))", (64, 4, 32000)),
    ],
)
def test_what_data_say_of_which_nothing_is_given(data: str, expected: tuple[int, ...]) -> None:
    found = nemo(SMALL.replace("DATA", data).replace("NODES", "1")).document
    training = found["training"]
    assert (training["global_batch"], training["micro_batch"], found["model"]["vocab_size"]) == expected
    assert found["gpus"] == 8


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('int(os.environ["NODES"])', None),  # of which nothing hangs but the number of GPUs
        ("args.nodes", None),
    ],
)
def test_a_number_of_machines_that_is_worked_out_is_not_taken(value: str, words: None) -> None:
    found = nemo(SMALL.replace("DATA", "llm.MockDataModule(global_batch_size=64)").replace("NODES", value))
    assert "gpus" not in found.document
    assert any(sentence.startswith("all GPUs of the cluster") for sentence in found.assumed)


@pytest.mark.parametrize("value", ["args.tp", "int(os.environ['TP'])", "sizes(4)[0]", "max(1, 4)"])
def test_a_degree_that_is_worked_out_asks_for_what_the_run_writes(value: str) -> None:
    text = SMALL.replace("DATA", "llm.MockDataModule()").replace("NODES", "1").replace("_size=4", f"_size={value}")
    with pytest.raises(InputError, match=r"tensor_model_parallel_size: .* is computed .* run it once and give the"):
        nemo(text)


RECIPES = """
from nemo.collections import llm
from nemo.collections.llm.recipes.NAME import finetune_recipe as base
from nemo.collections.vlm.clip.model import CLIPConfigB32, CLIPModel
from tests.small import config

def trains():
    RECIPE
    RECIPE_SET
    return recipe
"""


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        ("llama3_8b", "recipe = llm.llama3_8b.finetune_recipe(num_nodes=1)", "trains adapters .*peft_scheme none"),
        ("llama3_8b", "recipe = base(peft_scheme='none')", "llama3_8b.finetune_recipe, which is in another file"),
        ("nemotronh_8b", "recipe = base(peft_scheme='none')", "nemotronh_8b.finetune_recipe, which is in another"),
        ("llama3_8b", "recipe = llm.mamba2_130m.finetune_recipe(num_nodes=1)", "has Mamba-2 layers, but no"),
        (
            "llama3_8b", "recipe = run.Partial(x, model=run.Config(llm.LlamaModel, config(1)))",
            r"\(config\) cannot be imported: it is unknown, .*; run it once and give the NAME_config.yaml",
        ),
        ("llama3_8b", "recipe = run.Partial(x, model=vlm.LlavaModel(vlm.LlavaConfig()))", "takes images or sound"),
        ("llama3_8b", "recipe = run.Partial(x, model=CLIPModel(CLIPConfigB32()))", "takes images or sound"),
    ],
)  # fmt: skip
def test_recipes_of_another_file(name: str, recipe: str, words: str) -> None:
    text = RECIPES.replace("NAME", name).replace("RECIPE_SET", "recipe.trainer.devices = 4").replace("RECIPE", recipe)
    with pytest.raises(InputError, match=words):
        scenario_from_nemo(text, cluster=CLUSTER, source="r.py", function="trains")


def test_a_part_that_another_file_makes() -> None:
    text = RECIPES.replace("NAME", "llama3_8b").replace("RECIPE_SET", "pass")
    text = text.replace("RECIPE", "recipe = run.Partial(pretrain, model=model(), trainer=default_trainer(4))")
    text = f"from nemo.collections.llm.recipes.trainer.default import default_trainer\n{text}"
    with pytest.raises(InputError, match=r"trainer of trains comes from \S+\.default_trainer, which is in another"):
        scenario_from_nemo(text, cluster=CLUSTER, source="r.py", function="trains")


BRIDGE = """
from megatron.bridge.training.pretrain import pretrain

def built(*, tp=1, pp=1):
    return ConfigContainer(
        model=Llama3ModelProvider8B(seq_length=256, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp),
        train=TrainingConfig(global_batch_size=8, micro_batch_size=1), mixed_precision="bf16_mixed",
    )

def starts_two():
    config = built(tp=2, pp=2)
    config.model.sequence_parallel = True
    try:
        pretrain(config, forward_step)
    except Exception as problem:
        print(problem)
"""


def test_a_function_that_starts_a_training() -> None:
    found: dict[str, Any] = scenario_from_bridge(
        BRIDGE, cluster=CLUSTER, source="r.py", function="starts_two", gpus=4
    ).document
    assert (found["parallel"]["tp"], found["parallel"]["pp"]) == (2, 2)
    assert found["parallel"]["sequence_parallel"] is True
    assert found["training"]["memory_recipe"] == "mixed-18"
    assert scenario_from_bridge(BRIDGE, cluster=CLUSTER, source="r.py", gpus=4).document == found  # the one that does
    two = f"{BRIDGE}\ndef starts_one():\n    pretrain(built(), forward_step)\n"
    with pytest.raises(InputError, match=r"has several .* \(it has starts_two or starts_one\)"):
        scenario_from_bridge(two, cluster=CLUSTER, source="r.py", gpus=4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("experimental_attention_variant='own'", "only gated_delta_net is modelled, not sparse"),
        ("enable_hyper_connections=True", "hyper-connections .several residual streams"),
    ],
)
def test_latent_attention_by_its_class_and_what_is_not_modelled_of_it(fields: str, words: str) -> None:
    sizes = "num_layers=4, hidden_size=512, num_attention_heads=8, vocab_size=5000, normalization='RMSNorm', "
    model = f"MLAModelProvider({sizes}add_bias_linear=False, gated_linear_unit=True, seq_length=256"
    text = re.sub(r"Llama3ModelProvider8B\(.*\)", f"{model})", BRIDGE)
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="built", gpus=4).document["model"]
    assert found["mla"]["kv_lora_rank"] == 512
    text = re.sub(r"Llama3ModelProvider8B\(.*\)", f"{model}, {fields})", BRIDGE)
    with pytest.raises(InputError, match=words):
        scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="built", gpus=4)


def test_what_is_handed_on_unread_is_told() -> None:
    text = BRIDGE.replace("built(tp=2, pp=2)", "built(**asked())")
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="starts_two", gpus=4)
    assert found.unknown == ("effect of the recipe with **asked()",)


TRON = """
from nemo.tron.api import megatron_pretrain

if __name__ == "__main__":
    model = llm.Llama32Config1B(num_layers=4, seq_length=1024, bf16=True)
    cfg = ConfigContainer(
        model_config=model, train_config=TrainingConfig(global_batch_size=64, micro_batch_size=1),
        optimizer_config=OptimizerConfig(bf16=True, use_distributed_optimizer=True),
        ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True),
        dataset_config=GPTDatasetConfig(sequence_length=model.seq_length), rng_config=RNGConfig(seed=1),
    )
    megatron_pretrain(cfg, forward_step)
"""


def test_sections_of_a_container_by_the_names_of_nemo_tron() -> None:
    found = scenario_from_bridge(TRON, cluster=CLUSTER, source="r.py", gpus=8)
    assert (found.document["model"]["layers"], found.document["model"]["sequence_length"]) == (4, 1024)
    assert (found.document["parallel"]["zero"], found.document["overlap"]["grad_reduce"]) == (1, True)
    assert found.document["training"]["memory_recipe"] == "mixed-18"
    assert not found.unknown


def test_what_a_program_does_that_starts_nothing_is_not_told_of_its_recipe() -> None:
    main = """
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", required=True)
    args = parser.parse_args()
    if args.way == "long":
        recipe.trainer.devices = 4
    run.cli.main(own_pretrain_config)
"""
    text = BRIDGE.replace("def built(*, tp=1, pp=1)", "def own_pretrain_config(tp=1, pp=1)").partition(
        "def starts_two"
    )[0]
    found = scenario_from_bridge(text + main, cluster=CLUSTER, source="r.py", gpus=4)
    assert not found.unknown
    assert not any("way" in each for each in found.assumed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def own_pretrain_config():\n    return small_config()\n",
            "the configuration of own_pretrain_config comes from small_config, which is in another file: run it once",
        ),
        (
            "import recipes\nif __name__ == '__main__':\n    args = parser.parse_args()\n"
            "    pretrain(config=getattr(recipes, args.recipe)())\n",
            "run_config.yaml that Megatron-Bridge writes",
        ),
        ("def main():\n    print(1)\n", "has no pre-training recipe"),
        ("class Test:\n    def test_run(self):\n        pretrain(self.built())\n", "has no pre-training recipe"),
    ],
)
def test_a_recipe_that_the_file_does_not_say_asks_for_what_the_run_writes(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=8)


CONDITIONS = """
def own_pretrain_config(small=False, backend="deepep"):
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B").to_megatron_provider()
    cfg.model.expert_model_parallel_size = 8
    if backend is not None and not small:
        apply_flex_dispatcher_backend(cfg.model, backend)
    elif small:
        cfg.model.expert_model_parallel_size = 2
    if cfg.model.tensor_model_parallel_size > 1:
        cfg.model.sequence_parallel = True
    if is_large(cfg.model):
        make_small(cfg.model)
    set_layout(cfg.model)
    for part in (cfg.model, cfg.comm_overlap):
        part.own_field = None
    cfg.train.global_batch_size = 64 if small in (False, None) else 8
    return cfg
"""


def test_conditions_on_known_words_are_decided_and_others_told() -> None:
    found = scenario_from_bridge(CONDITIONS, cluster=CLUSTER, source="r.py", gpus=8)
    assert found.document["parallel"]["expert_dispatch"] == {"kind": "deepep"}
    assert found.document["training"]["global_batch"] == 64
    assert found.unknown == (
        "effect of the recipe where is_large(cfg.model) (it changes make_small())",
        "effect of the recipe in set_layout(cfg.model)",
        "effect of the recipe in for part in (cfg.model, cfg.comm_overlap): (it changes own_field)",
    )
    small = scenario_from_bridge(CONDITIONS, cluster=CLUSTER, source="r.py", gpus=8, given={"small": "true"}).document
    assert (small["parallel"]["ep"], small["training"]["global_batch"]) == (2, 8)


BUILDS = """
import fiddle as fdl
from nemo.collections import llm
from nemo import lightning as nl

model = llm.LlamaModel(config=llm.Llama31Config8B())
FORMAT = "tensorwise"

if __name__ == "__main__":
    data = llm.SquadDataModule(seq_length=4096, micro_batch_size=2, global_batch_size=64, PACKED)
    if FORMAT == "tensorwise":
        plugins = nl.MegatronMixedPrecision(
            precision="bf16-mixed", fp8="hybrid", fp8_recipe=FORMAT, first_last_layers_bf16=True
        )
    optim = fdl.build(distributed_fused_adam_with_cosine_annealing(max_lr=1e-6))
    trainer = nl.Trainer(devices=8, num_nodes=1, plugins=plugins, strategy=nl.MegatronStrategy())
    llm.finetune(model=model, data=data, trainer=trainer, optim=optim)
"""


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        ("packed_sequence_specs=None", "sequences are full, although fine-tuning samples vary in length"),
        (
            "packed_sequence_specs=PackedSequenceSpecs(4096)",
            "although the recipe packs several samples into a sequence",
        ),
    ],
)
def test_a_part_that_is_built_and_samples_of_fine_tuning(packed: str, told: str) -> None:
    found = nemo(BUILDS.replace("PACKED", packed))
    assert found.document["model"] == {"preset": "llama3-8b", "sequence_length": 4096}
    assert (found.document["parallel"]["zero"], found.document["training"]["precision"]) == (1, "fp8-mixed")
    said = " ".join(found.assumed)
    assert told in said
    assert found.document["training"]["layers_in_16_bits"] == [1, 1]
    assert found.document["training"]["fp8_scaling"] == "current"
    assert not any("fp8" in each or "bf16" in each for each in found.no_effect)


TUNES = """
def finetune_recipe(num_nodes: int = 1, scheme: str | None = "lora"):
    tp = 4 if scheme is None or scheme == "none" else 1
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tp)
    return run.Partial(
        llm.finetune, model=run.Config(llm.LlamaModel, config=run.Config(llm.Llama3Config8B)),
        trainer=run.Config(nl.Trainer, devices=2, num_nodes=num_nodes, strategy=strategy, plugins=bf16_mixed()),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=64, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4), peft=LoRA() if scheme == "lora" else None,
    )
"""


@pytest.mark.parametrize(("word", "tp", "nodes"), [("none", 4, "2"), ("None", 4, "2"), ("whole", 1, "4")])
def test_arguments_of_the_function_that_is_named(word: str, tp: int, nodes: str) -> None:
    found = nemo(TUNES, "finetune_recipe", **{"scheme": word, "num-nodes": nodes}).document
    assert (found["parallel"]["tp"], found["gpus"]) == (tp, 2 * int(nodes))
    assert "trainable" not in found["training"]
    assert nemo(TUNES, "finetune_recipe").document["training"]["trainable"]["rank"] == 32
    with pytest.raises(InputError, match=r"'schema'; did you mean 'scheme'.*it takes num_nodes or scheme"):
        nemo(TUNES, "finetune_recipe", schema=word)


# --- hybrids ----------------------------------------------------------------------------------------------------------

HYBRID = """
def tokenizer():
    return run.Config(get_nmt_tokenizer, library="tiktoken", model_name="TiktokenTokenizer")

def pretrain_recipe(num_nodes=4, gbs=192):
    return run.Partial(
        pretrain,
        model=run.Config(llm.MambaModel, config=run.Config(llm.CLASS), tokenizer=tokenizer()),
        trainer=run.Config(
            nl.Trainer, devices=8, num_nodes=num_nodes, plugins=[PRECISION()],
            callbacks=[run.Config(MegatronCommOverlapCallback, tp_comm_bootstrap_backend="nccl", tp_comm_overlap=True)],
            strategy=run.Config(
                nl.MegatronStrategy, tensor_model_parallel_size=8, sequence_parallel=True,
                ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True, overlap_param_gather=False),
            ),
        ),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=gbs, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
"""


@pytest.mark.parametrize(
    ("size", "precision", "formats"),
    [
        ("8B", "bf16_mixed", ("bf16-mixed", "mixed-18")),
        ("56B", "nemotron_h_bf16_with_fp8_current_scaling_mixed", ("fp8-mixed", "fp8-params-18")),
        ("56B", "bf16_with_fp8_mixed_current_scaling", ("fp8-mixed", "fp8-params-18")),
    ],
)
def test_nemotron_h_of_nemo(size: str, precision: str, formats: tuple[str, str]) -> None:
    text = HYBRID.replace("CLASS", f"NemotronHConfig{size}").replace("PRECISION", precision)
    found = scenario_from_nemo(text, cluster=CLUSTER, source="r.py", function="pretrain_recipe")
    document = found.document
    model = {"preset": f"nemotron-h-{size.lower()}", "sequence_length": 8192, "vocab_multiple": 1}
    assert (document["gpus"], document["model"]) == (32, model)
    assert document["parallel"] == {"tp": 8, "pp": 1, "sequence_parallel": True, "zero": 1}
    # the callback, as for other recipes, has the last word on what gradients and parameters overlap with
    assert document["overlap"] == {"grad_reduce": True, "param_gather": True, "tensor": True, "tensor_pieces": 8}
    assert (document["training"]["precision"], document["training"]["memory_recipe"]) == formats
    assert document["training"]["global_batch"] == 192
    assert not found.unknown


@pytest.mark.parametrize("name", ["hybrid_override_pattern", "hybrid_layer_pattern"])
def test_a_pattern_of_layers_in_a_recipe_of_megatron_bridge(name: str) -> None:
    sizes = "hidden_size=512, mamba_num_heads=16, mamba_state_dim=64, num_attention_heads=8, num_query_groups=4"
    model = f"MambaModelProvider({name}='M-M*E', {sizes}, ffn_hidden_size=1024, vocab_size=5000, seq_length=256"
    model += ", num_moe_experts=4, moe_router_topk=2, is_hybrid_model=True"
    model += ", num_layers=5)" if name == "hybrid_override_pattern" else ")"
    text = re.sub(r"Llama3ModelProvider8B\(.*\)", model, BRIDGE)
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="built", gpus=4)
    fields = found.document["model"]
    assert (fields["pattern"], fields["layers"], fields["position"], fields["norm"]) == ("M-M*E", 5, "none", "rmsnorm")
    assert fields["layer_kinds"] == {"mamba2": {"heads": 16, "groups": 8, "state": 64}}
    assert not found.unknown
