"""Launch arguments of Megatron-LM and names of Megatron-Bridge become scenarios; no argument is passed over."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers import megatron_options as tables
from simcluster.importers.import_result import ImportResult
from simcluster.importers.launch_arguments import parse_launch_command
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import Scenario, load, load_text

CLUSTER = {"topology": "dgx_h100", "nodes": 8}
LLAMA_70B = r"""
torchrun --nproc_per_node 8 --nnodes=8 pretrain_gpt.py \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
    --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear \
    --untie-embeddings-and-output-weights --vocab-size 128256 --micro-batch-size 1 --global-batch-size=64 \
    --bf16 --attention-dropout 0.0 --hidden-dropout 0.0   # a comment
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --num-layers-per-virtual-pipeline-stage 5 --lr 1e-4 --train-iters 500 --data-path 0.5 "a b" 0.5 c
"""
GPT_345M = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 8 --global-batch-size 64 --tokenizer-type GPT2BPETokenizer --fp16"
)


def imported(text: str, **more: Any) -> ImportResult:
    return scenario_from_arguments(text, cluster=more.pop("cluster", CLUSTER), source="args.txt", **more)


def scenario(text: str, **more: Any) -> Scenario:
    return load_text(imported(text, **more).to_yaml_text("a test"))


def test_llama_70b_as_it_is_launched() -> None:
    found = scenario(LLAMA_70B)
    assert (found.gpus, found.parallel.tp, found.parallel.pp, found.parallel.dp) == (64, 8, 4, 2)
    assert parameters(found.model).total == 70_553_706_496
    assert (found.pipeline.schedule, found.pipeline.chunks, found.pipeline.p2p) == ("interleaved", 4, "async")
    assert (found.training.precision, found.training.memory_recipe, found.training.dropout) == (
        "bf16-mixed",
        "mixed-18",
        False,
    )
    assert (found.parallel.zero, found.overlap.grad_reduce, found.overlap.tensor) == (1, True, True)


def test_the_defaults_are_those_of_megatron() -> None:
    found = scenario(GPT_345M, gpus=8, cluster={"topology": "dgx_h100", "nodes": 1})
    assert found.training.dropout  # 0.1
    assert (found.model.norm, found.model.position, found.model.bias) == ("layernorm", "learned", True)
    assert (found.model.vocab_size, found.model.tied_embeddings, found.model.ffn_hidden_size) == (50257, True, 4096)
    assert found.training.memory_recipe == "mixed-16"  # fp16 reduces in fp16
    assert (found.parallel.zero, found.overlap.grad_reduce, found.overlap.tensor) == (0, False, False)
    assert parameters(found.model).total == 354_823_168  # gpt2-medium


def test_every_argument_is_accounted_for() -> None:
    found = imported(LLAMA_70B)
    given_options = parse_launch_command(LLAMA_70B, "x").options
    assert sorted([*found.mapped, *found.no_effect]) == sorted(given_options)
    assert found.no_effect == ("lr", "train-iters", "data-path")
    assert "no effect" in found.to_yaml_text("x").lower()


@pytest.mark.parametrize(
    ("options", "precision", "scaling", "wide"),
    [
        ("--fp8-format hybrid", "fp8-mixed", None, None),
        ("--fp8-format hybrid --fp8-recipe delayed", "fp8-mixed", None, None),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8-mixed", "blockwise", None),
        ("--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16", "fp8-mixed", "current", [1, 1]),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --first-last-layers-bf16 --num-layers-at-start-in-bf16 0",
         "mxfp8-mixed", None, [0, 1]),
        ("--fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-end-in-bf16 4", "nvfp4-mixed", None, [1, 4]),
        ("--fp8-format hybrid --num-layers-at-end-in-bf16 4", "fp8-mixed", None, None),  # without the switch
        ("--fp8-recipe blockwise --first-last-layers-bf16", "bf16-mixed", None, None),
    ],
)  # fmt: skip
def test_recipes_of_low_precision(options: str, precision: str, scaling: str | None, wide: list[int] | None) -> None:
    training = imported(f"{GPT_345M.replace('fp16', 'bf16')} {options}", gpus=8).document["training"]
    found = (training["precision"], training.get("fp8_scaling"), training.get("layers_in_16_bits"))
    assert found == (precision, scaling, wide)


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (f"{GPT_345M} --no-masked-softmax-fusion", "--no-masked-softmax-fusion: softmax", True),
        (f"{GPT_345M} --use-sharp", "--use-sharp:", True),
        (f"torchrun tools/own.py {GPT_345M}", "values set inside own.py are not read", True),
        (f"torchrun pretrain_gpt.py {GPT_345M}", "are", False),
        # 151643 tokens of Qwen2.5's, as a script counts them, are not another number than the 151936 rows
        (GPT_345M.replace("GPT2BPETokenizer", "HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-3B --vocab-size "
                          "151643"), "151", False),
    ],
)  # fmt: skip
def test_what_is_modelled_otherwise_is_said_by_name(text: str, words: str, said: bool) -> None:
    found = imported(text, gpus=8)
    assert any(words in sentence for sentence in found.assumed) is said
    assert f"# Assumed: {words}" in found.to_yaml_text("x") or not words.startswith("--")


@pytest.mark.parametrize(
    ("more", "recompute"),
    [
        ("--use-legacy-models --transformer-impl local --use-flash-attn", "none"),
        ("--data-impl mmap --use-flash-attn", "none"),
        ("--data-impl mmap", "selective"),
        ("--use-legacy-models --transformer-impl local", "selective"),
        ("--use-legacy-models --transformer-impl transformer_engine --use-flash-attn", "selective"),
        ("--use-mcore-models --data-impl mmap --use-flash-attn", "selective"),
        ("--use-flash-attn", "selective"),
    ],
)
def test_the_flash_kernel_of_legacy_layers_is_not_run_again(more: str, recompute: str) -> None:
    found = imported(f"{GPT_345M} --recompute-activations {more}", gpus=8)
    assert found.document["training"].get("recompute", "none") == recompute
    assert ("recomputes nothing" in found.to_yaml_text("x")) == (recompute == "none")


@pytest.mark.parametrize(
    ("formats", "attention"),
    [
        ("--bf16", "fused"),
        ("--fp16", "fused"),
        ("--fp8-format hybrid", "fused"),
        ("", "unfused"),
        ("--use-flash-attn", "unfused"),
        ("--attention-backend flash", "unfused"),
        ("--context-parallel-size 2", "fused"),  # in pieces by a kernel alone
        ("--attention-backend unfused", "unfused"),
    ],
)
def test_the_kernel_of_attention_takes_no_fp32(formats: str, attention: str) -> None:
    found = imported(f"{GPT_345M.replace('--fp16', '')} {formats}", gpus=8)
    assert found.document["training"]["attention"] == attention
    told = [sentence for sentence in found.assumed if "would need fp32 support" in sentence]
    assert len(told) == (attention == "unfused" and "unfused" not in formats)


@pytest.mark.parametrize(
    ("more", "every", "told"),
    [
        (
            "--decoder-last-pipeline-num-layers 8 --recompute-num-layers 18",
            1,
            "all layers are recomputed, nearest to 18 of",
        ),
        ("--decoder-last-pipeline-num-layers 8 --recompute-num-layers 24", 1, ""),
        (
            "--decoder-last-pipeline-num-layers 8 --recompute-num-layers 11",
            2,
            "one layer in 2 is recomputed, nearest to 11",
        ),
        ("--recompute-num-layers 10", 2, ""),
        ("--recompute-num-layers 16", 1, "all layers are recomputed, nearest to 16 of the 20 per stage or chunk"),
    ],
)
def test_layers_of_a_block_are_those_of_stages_that_differ(more: str, every: int, told: str) -> None:
    block = f"--recompute-granularity full --recompute-method block {more}"
    even = LLAMA_70B.replace("--num-layers-per-virtual-pipeline-stage 5", "")
    found = imported(even.replace("--bf16", f"--bf16 {block}"))
    assert found.document["training"].get("recompute_every", 1) == every
    said = [each for each in found.assumed if "recomputed, nearest" in each]
    assert [each.startswith(told) for each in said] == [True] * bool(told)
    assert not (told and "last" in more) or said[0].endswith("of the 8 to 24 per stage or chunk")


def test_the_tables_do_not_overlap() -> None:
    names = [*tables.MAPPED, *tables.NO_EFFECT, *tables.NOT_MODELLED, *tables.REFUSED]
    assert len(names) == len(dict.fromkeys(names))
    for name in (*tables.MAPPED, *tables.NO_EFFECT, *tables.NOT_MODELLED):
        assert not name.startswith(tuple(set(tables.REFUSED_PREFIXES) - {"encoder-"})), name


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--pipeline-model-parallel-size 2", {"schedule": "1f1b", "p2p": "rendezvous"}),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3 --no-overlap-p2p-communication",
            {"schedule": "interleaved", "chunks": 3, "p2p": "rendezvous"},
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3 "
            "--decoder-last-pipeline-num-layers 5",
            {"schedule": "1f1b", "p2p": "rendezvous", "layers_per_stage": [3, 8, 8, 5]},
        ),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", {"recompute": "full"}),
        ("--transformer-impl local", {"attention": "unfused"}),
        ("--transformer-impl local --use-flash-attn", {"attention": "fused"}),
        ("--accumulate-allreduce-grads-in-fp32", {"memory_recipe": "mixed-18"}),
        (
            "--data-parallel-sharding-strategy optim_grads --use-distributed-optimizer --use-megatron-fsdp",
            {"zero": 2},
        ),
        ("--data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer", {"zero": 1}),
        ("--use-torch-fsdp2", {"zero": 3, "grad_reduce": True, "param_gather": True}),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", {"reshard_after_forward": False}),
        ("--use-tp-pp-dp-mapping", {"order": ["tp", "cp", "pp", "dp"]}),
        ("--swiglu", {"gated_mlp": True, "ffn_hidden_size": 2688}),
        ("--group-query-attention", {"kv_heads": 1}),
        ("--kv-channels 96", {"head_dim": 96}),
        ("--disable-bias-linear --add-qkv-bias", {"bias": "qkv"}),
        ("--qk-layernorm", {"qk_norm": "head"}),
        ("--window-size 127,0", {"attention_window": 128}),
        ("--window-size 127 --window-attn-skip-freq 2", {"attention_window": 128, "full_attention_every": 2}),
        ("--window-size 127,0 --window-attn-skip-freq [1,0]*12", {"attention_window": 128, "full_attention_every": 2}),
        ("--window-size 127,0 --window-attn-skip-freq [1]*24", {"attention_window": 128, "full_attention_every": None}),
        ("--window-size 127,0 --window-attn-skip-freq 1", {"attention_window": None}),
        ("--context-parallel-size 2 --cp-comm-type p2p", {"cp": 2, "cp_comm": None}),
        ("--context-parallel-size 2 --cp-comm-type all_gather all_gather", {"cp": 2, "cp_comm": "all_gather"}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"cp": 2, "cp_comm": "all_to_all"}),
        ("--context-parallel-size 1 --cp-comm-type a2a", {"cp": 1, "cp_comm": None}),
        (
            "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4",
            {"cp": 8, "cp_comm": "hybrid", "cp_inner": 2},
        ),
        (
            "--context-parallel-size 2 --hierarchical-context-parallel-sizes 2 1",
            {"cp": 2, "cp_comm": None, "cp_inner": None},
        ),
        (
            "--num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2 --sequence-parallel "
            "--expert-tensor-parallel-size 1",
            {"tp": 2, "ep": 4, "etp": 1},
        ),
        ("--use-rotary-position-embeddings", {"position": "rope"}),
        ("--overlap-grad-reduce --ddp-bucket-size 1000000", {"grad_reduce": True, "bucket_size": "2000000 B"}),
        ("--overlap-grad-reduce --ddp-bucket-size 4294967296", {"bucket_size": "8589934592 B"}),
        ("--DDP-impl torch", {"grad_reduce": True, "bucket_size": "25 MiB"}),
        ("--DDP-impl local", {"grad_reduce": False}),
        ("--tensor-model-parallel-size 2 --tp-comm-overlap", {"tp": 2, "tensor_pieces": 2}),
        ("--cross-entropy-loss-fusion", {"logits": "in-place"}),
        ("--no-gradient-accumulation-fusion", {"accumulate": "separate"}),
    ],
)
def test_single_arguments(more: str, expected: dict[str, Any]) -> None:
    document = imported(f"{GPT_345M} {more}", gpus=8).document
    values = {
        key: value for section in document.values() if isinstance(section, dict) for key, value in section.items()
    }
    assert {key: values.get(key) for key in expected} == expected
    load_text(imported(f"{GPT_345M} {more}", gpus=8, cluster={"topology": "dgx_h100", "nodes": 1}).to_yaml_text("x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no arguments"),
        ("hello", "'hello' is not an option"),
        ("--hidden-size $HIDDEN", r"--hidden-size: \$HIDDEN is filled in by a shell"),
        ("--num-layers 2\n--hidden-size ${H}", r"--hidden-size: \$\{H\} is filled in by a shell"),
        ("--num-layers 2 ${MODEL_ARGS[@]}", r"\$\{MODEL_ARGS\[@\]\} may contain options, and no shell is run"),
        ("--lr 1 $MORE_ARGS", r"\$MORE_ARGS may contain options"),
        ("--lr 1 $@", r"\$@ may contain options"),
        ("--hidden-size `nproc`", "`nproc` is filled in by a shell"),
        ("--hidden-size $(rm x)", r"\$\(rm x\) is filled in by a shell"),
        ('--data-path "half', "no closing quotation"),
        ("--num-layers 2 --num-layers 3", "--num-layers is given twice"),
        ("--num-layer 2", "--num-layers is missing"),
        ("--num-layers two", "--num-layers: 'two' is not a whole number"),
        ("--num-layers -4", "--num-layers: '-4' is not a whole number"),
        ("--num-layers 2 3", "--num-layers: takes one value, got 2"),
        ("--num-layers " + "9" * 5000, "is not a whole number from 1 to 1000000000"),
        ("--swiglu yes", "--swiglu: takes no value"),
        ("--position-embedding-type relative", "'relative' is not modelled"),
        ("--attention-dropout 2", "'2' is not a number from 0 to 1"),
        ("--num-layers 2", "--hidden-size is missing"),
        (GPT_345M.replace("--tokenizer-type GPT2BPETokenizer", ""), "add --vocab-size"),
        (GPT_345M + " --optimizer sgd", "sgd is not modelled; use adam or muon"),
        (GPT_345M + " --fp8-format hybrid", "needs --bf16"),
        (
            GPT_345M + " --recompute-granularity selective --recompute-modules mtp",
            "'mtp' is unknown; known: core_attn",
        ),
        (GPT_345M + " --recompute-granularity selective --recompute-modules []", "'' is unknown"),
        (GPT_345M + " --encoder-seq-length 2048", "--encoder-seq-length: is another name of seq-length"),
        (
            GPT_345M + " --pipeline-model-parallel-size 5 --decoder-first-pipeline-num-layers 3",
            "must be a multiple of the stages",
        ),
        ("--x " * 60_000, "longer than 200,000 characters"),
        ("torchrun run.py --lr 1e-4 --seq_length 128", "run.py is not a Megatron program: none of its options"),
    ],
)
def test_bad_arguments_are_one_clear_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        imported(text)
    assert "args.txt" in str(caught.value)
    assert len(str(caught.value)) < 500


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | st.lists(st.sampled_from([*tables.MAPPED, "8", "'", "\\", "$X"])).map(" --".join))
@example(" --cpu-offloading")
def test_any_text_is_a_scenario_or_one_complaint(text: str) -> None:
    try:
        imported(text, gpus=8)
    except InputError:
        return


def test_what_is_not_known_is_listed_and_not_refused() -> None:
    """A name that is in no table may be anything: it is told, in the file too, and nothing false is said of it."""
    found = imported(f"{GPT_345M} --warp-speed 9 --sequence-paralel --rope-clamp 1 2", gpus=8)
    assert found.unknown == ("--warp-speed", "--sequence-paralel (did you mean 'sequence-parallel'?)", "--rope-clamp")
    assert "# Ignored (unknown): --warp-speed, --sequence-paralel" in found.to_yaml_text("x")
    assert found.document == imported(GPT_345M, gpus=8).document


@pytest.mark.parametrize(
    "option",
    [
        *("--decoupled-lr 5.0e-4", "--decoupled-min-lr 4.5e-5", "--data-path $DATA_PATH/a_text_document", "--save $1"),
        *("--load ${CHECKPOINT_PATH}/x", "--tokenizer-model $(dirname $0)/tokenizer.model", "--lr-decay-samples $N"),
        *("--wandb-project `whoami`", "--num-distributed-optimizer-instances 1", "--expert-tensor-parallel-size 1"),
    ],
)
def test_what_cannot_change_the_time_is_accepted(option: str) -> None:
    found = imported(f"{GPT_345M} {option}", gpus=8)
    assert found.document == imported(GPT_345M, gpus=8).document
    assert not found.unknown


def test_all_problems_are_told_at_once() -> None:
    text = (
        "--num-layers $LAYERS --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --mtp-num-layers 1 "
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --optimizer sgd --swiglu yes --save $DIR"
    )
    with pytest.raises(InputError) as caught:
        imported(text, available=64)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[0] == "args.txt: 5 problems:"
    beginnings = (
        "--num-layers: $LAYERS is filled in by a shell", "--swiglu: takes no value",
        "--micro-batch-size is missing", "the vocabulary size is in the tokenizer", "--optimizer: sgd",
    )  # fmt: skip
    for line, words in zip(lines[1:], beginnings, strict=True):
        assert line.startswith(words), line


def test_files_of_gpt2_tell_the_tokenizer() -> None:
    """pretrain_gpt.py takes GPT2BPETokenizer where no tokenizer is named (its args_defaults)."""
    plain = GPT_345M.replace("--tokenizer-type GPT2BPETokenizer", "--vocab-file $VOCAB --merge-file $MERGES")
    found = imported(plain, gpus=8)
    assert found.document["model"]["vocab_size"] == 50257
    said = "GPT2BPETokenizer, pretrain_gpt.py's default, has 50257 tokens"
    assert f"{said}; $VOCAB is not read and may differ (--set model.vocab_size=...)" in found.assumed
    assert said in imported(plain.replace("$VOCAB", "data/gpt2-vocab.json"), gpus=8).assumed


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [
        ("Llama2Tokenizer --tokenizer-model llama2/tokenizer.model", 32000),
        ("Llama2Tokenizer --tokenizer-model other/pieces.model", 3200),
        ("SentencePieceTokenizer --tokenizer-model pieces.model", 3200),
        ("NullTokenizer", 3201),
        ("HuggingFaceTokenizer --tokenizer-model somebody/tokens", 3200),
        ("HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V2-Lite", 102400),
        ("HuggingFaceTokenizer --tokenizer-model there/DeepSeek-V2-Lite-extended", 3200),
        ("TikTokenizer --tokenizer-model there/deepseek-v2.json", 3200),
    ],
)
def test_a_size_of_the_vocabulary_that_the_tokenizer_does_not_read(tokenizer: str, size: int) -> None:
    found = imported(GPT_345M.replace("GPT2BPETokenizer", f"{tokenizer} --vocab-size 3200"), gpus=8)
    assert found.document["model"]["vocab_size"] == size
    has = {32000: "Llama2Tokenizer has 32000 tokens: it", 102400: "Lite has 102400 tokens: HuggingFaceTokenizer"}
    said = [sentence for sentence in found.assumed if "ignores vocab-size 3200" in sentence]
    assert [has[size] in sentence for sentence in said] == [True] * (size in has)
    file = "Tik" not in tokenizer and "model" in tokenizer and size == 3200
    assert any("a vocabulary of 3200 tokens, as given: " in sentence for sentence in found.assumed) == file


def test_another_word_is_suggested_only_where_it_is_near() -> None:
    with pytest.raises(InputError, match="--optimizer: 'dion' is not modelled; known: adam, sgd, muon or dist_muon"):
        imported(f"{GPT_345M} --optimizer dion", gpus=8)
    with pytest.raises(InputError, match="'adan' is not modelled; did you mean 'adam'"):
        imported(f"{GPT_345M} --optimizer adan", gpus=8)


@pytest.mark.parametrize(("more", "size"), [("", 32000), ("--rotary-base 500000", 128256)])
def test_of_two_models_of_the_same_sizes_the_rotary_base_says_which(more: str, size: int) -> None:
    """Llama 2 and 3, both of 70B: an unknown tokenizer has as many tokens as the model's own."""
    sizes = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu"
    unknown = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model somebody/tokens"
    step = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 8"
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {unknown} {more} {step}"
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 1}, source="x", gpus_per_node=8)
    assert found.document["model"]["vocab_size"] == size


def test_the_command_tells_on_stderr_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "args.txt").write_text(f"{GPT_345M} --warp-speed 9\n")
    command = ["import", "megatron", str(tmp_path / "args.txt"), "--cluster", "dgx_h100", "--gpus", "8"]
    assert main([*command, "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert "ignored unknown settings: --warp-speed; their effect on the step time is unknown" in captured.err
    assert json.loads(captured.out)["unknown"] == ["--warp-speed"]
    assert main([*command, "--strict"]) == 2
    assert "unknown settings: --warp-speed; remove them" in capsys.readouterr().err


# --- Megatron-Bridge -----------------------------------------------------------------------------------------------

BRIDGE = (
    "python run.py --recipe=llama3_8b_pretrain_config model.tensor_model_parallel_size=2 model.sequence_parallel=true "
    "train.global_batch_size=64 train.micro_batch_size=1 ddp.overlap_grad_reduce=True "
    "ddp.use_distributed_optimizer=true mixed_precision=bf16_mixed logger.log_interval=5 model.num_moe_experts=null"
)


def bridge(text: str, **more: Any) -> ImportResult:
    return scenario_from_bridge(text, cluster=CLUSTER, source="bridge.txt", **more)


def test_a_recipe_with_overrides() -> None:
    found = load_text(bridge(BRIDGE).to_yaml_text("x"))
    assert parameters(found.model).total == 8_030_261_248
    assert (found.parallel.tp, found.parallel.zero, found.training.global_batch) == (2, 1, 64)
    assert (found.model.sequence_length, found.training.dropout) == (8192, False)
    assert bridge(BRIDGE).no_effect == ("logger.log_interval",)


def test_sections_of_a_yaml_say_the_same_as_overrides() -> None:
    text = (
        "recipe: llama3_8b_pretrain_config\n"
        "model: {tensor_model_parallel_size: 2, sequence_parallel: true, num_moe_experts: null}\n"
        "train: {global_batch_size: 64, micro_batch_size: 1}\n"
        "ddp: {overlap_grad_reduce: true, use_distributed_optimizer: true}\n"
        "mixed_precision: bf16_mixed\nlogger: {log_interval: 5}\n"
    )
    assert bridge(text).document == bridge(BRIDGE).document


def test_a_model_without_a_recipe() -> None:
    text = (
        "model.num_layers=4 model.hidden_size=512 model.num_attention_heads=8 model.ffn_hidden_size=1536 "
        "model.gated_linear_unit=true model.add_bias_linear=false model.share_embeddings_and_output_weights=false "
        "model.normalization=RMSNorm model.position_embedding_type=rope model.num_query_groups=4 "
        "model.vocab_size=32000 dataset.sequence_length=1024 train.micro_batch_size=2 train.global_batch_size=128 "
        "model.recompute_granularity=selective model.recompute_modules=[core_attn] model.hidden_dropout=0"
    )
    document = bridge(text).document
    assert document["model"]["kv_heads"] == 4
    assert (document["model"]["bias"], document["model"]["tied_embeddings"]) == (False, False)
    assert document["training"]["recompute"] == "selective"
    assert load_text(bridge(text).to_yaml_text("x")).model.ffn_hidden_size == 1536


def test_fields_that_are_not_known_are_listed() -> None:
    found = bridge(f"{BRIDGE} model.tensor_paralel_size=2 models.num_layers=2 dataset.path=$DATA/x")
    assert found.unknown == (
        "model.tensor_paralel_size (did you mean 'tensor_model_parallel_size'?)",
        "models.num_layers (did you mean 'model'?)",
    )
    assert found.document == bridge(BRIDGE).document


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpt5_pretrain", "recipe 'gpt5_pretrain' is unknown"),
        ("llama3_8b model.num_moe_experts=many", "num-experts: 'many' is not a whole number"),
        ("llama3_8b model.hidden_size=$X", r"hidden-size: \$X is filled in by a shell"),
        ("llama3_8b train.global_batch_size=1 train.global_batch_size=2", "given twice"),
        ("llama3_8b mixed_precision=fp4", "mixed_precision 'fp4' is not modelled"),
        ("llama3_8b model.add_bias_linear=maybe", "neither true nor false"),
        ("llama3_8b", "micro-batch-size is missing"),
        ('""', "does not give the model's number of layers"),
        ("model:\n  a: &x 1\n  b: *x\n", "anchors and aliases"),
        ("model: !!python/object/apply:os.system ['true']\n", "tags"),
        ("model: {a: 1}\nmodel: {a: 2}\n", "already at"),
        ("model: " + "{a: " * 12 + "1" + "}" * 12, "nested more than 8"),
    ],
)
def test_bad_overrides_are_one_clear_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        bridge(text)
    assert "bridge.txt" in str(caught.value)


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_writes_a_scenario_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "args.txt").write_text(LLAMA_70B)
    command = ["import", "megatron", str(tmp_path / "args.txt"), "--cluster", "dgx_h100", "training.global_batch=128"]
    assert main([*command, "-o", str(tmp_path / "s.yaml")]) == 0
    assert "3 without effect" in capsys.readouterr().out
    found = load(tmp_path / "s.yaml")
    assert (found.gpus, found.training.global_batch) == (64, 128)
    assert main([*command, "--json", "-"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["document"]["cluster"] == {"topology": "dgx_h100", "nodes": 8}
    assert written["no_effect"] == ["lr", "train-iters", "data-path"]


@pytest.mark.parametrize(
    ("cluster", "gpus", "nodes"), [("dgx_b200", 8, 1), ("gb200_nvl72", 4, 1), ("dragonfly_plus", 4, None)]
)
def test_a_job_that_the_cluster_does_not_hold_is_on_one_machine(
    cluster: str, gpus: int, nodes: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1000 --bf16"
    (tmp_path / "args.txt").write_text(f"{sizes} --micro-batch-size 1 --global-batch-size 8")
    assert main(["import", "megatron", str(tmp_path / "args.txt"), "--cluster", cluster, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)["document"]
    assert (document["gpus"], document["cluster"].get("nodes")) == (gpus, nodes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "megatrn", "FILE"], "did you mean 'megatron'"),
        (["import", "megatron", "absent.txt", "--cluster", "dgx_h100"], "no such file"),
        (["import", "megatron", "FILE"], "name the cluster"),
        (["import", "megatron", "FILE", "--cluster", "dgx_h1000"], "did you mean"),
        (
            ["import", "megatron", "FILE", "--cluster", "dgx_h100", "--gpus", "48"],
            "its settings are not a valid scenario",
        ),
        (["import", "megatron", "FILE", "--cluster", "dgx_h100", "--device", "h100"], "--device does not apply to"),
        (["import", "hugging-face", "FILE"], "JSON"),
        (["import", "torchtitan", "FILE", "--cluster", "dgx_h100"], "is not TOML"),
        (["import", "astra-network", "FILE", "--device", "h100"], "FILE"),
    ],
)
def test_bad_commands_end_with_status_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "FILE"
    path.write_text(LLAMA_70B)
    assert main([str(path) if word == "FILE" else word for word in arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_arguments_can_be_pasted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import", "megatron", "-", "--cluster", "dgx_h100", "--gpus", "8"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GPT_345M.encode())))
    assert main(command) == 0
    assert load_text(capsys.readouterr().out).gpus == 8
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(command) == 2
    assert "stdin is empty" in capsys.readouterr().err


def test_a_number_of_gpus_that_differs_from_the_launcher_is_said() -> None:
    assert "32 GPUs as requested, not the 64" in imported(LLAMA_70B, gpus=32).to_yaml_text("x")


def test_a_config_of_transformers_becomes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 131072,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = ["import", "hugging-face", str(tmp_path / "config.json"), "--sequence-length", "4096", "--json", "-"]
    assert main(command) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["facts"] == ["7,615,616,512 parameters"]
    assert parameters(Model(**written["document"]["model"])).total == 7_615_616_512
