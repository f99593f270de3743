"""What a launch script says besides the options of its program: its configuration, its machines, what it asks for."""

from collections.abc import Mapping

from simcluster.importers.imported import Imported
from simcluster.importers.megatron import scenario_from_arguments

SIZES = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --global-batch-size 64"
)
TRAINS = f"{SIZES} --micro-batch-size 2 --vocab-size 1000"


def imported(text: str, files: Mapping[str, str] | None = None, **given: str) -> Imported:
    return scenario_from_arguments(
        f"#!/bin/bash\n{text}\n", cluster={"topology": "dgx_h100", "nodes": 4}, source="run.sh", given=given,
        beside=(files or {}).get, gpus_per_node=8, available=32,
    )  # fmt: skip


def told(found: Imported, words: str) -> bool:
    return any(words in sentence for sentence in found.assumed)


def test_a_file_that_sets_variables_and_is_not_there_is_told() -> None:
    found = imported(f". $SETTINGS\nsource venv/bin/activate\ntorchrun --nproc_per_node 8 {TRAINS}")
    assert told(found, "what $SETTINGS sets is not known")
    assert not told(found, "activate")


def test_the_null_tokenizer_adds_a_token() -> None:
    found = imported(f"torchrun --nproc_per_node 8 {TRAINS} --tokenizer-type NullTokenizer")
    assert found.document["model"]["vocab_size"] == 1001
    assert told(found, "NullTokenizer adds a token")


def test_how_many_experts_a_token_goes_to_is_told_where_it_is_not_given() -> None:
    text = f"torchrun --nproc_per_node 8 {TRAINS} --num-experts 8"
    assert told(imported(text), "a token goes to 2 of the experts")
    assert not told(imported(f"{text} --moe-router-topk 2"), "a token goes to")


def test_a_teacher_of_distillation_is_told() -> None:
    found = imported(f"torchrun --nproc_per_node 8 {TRAINS} --kd --num-layers-teacher 4")
    assert told(found, "--kd: the forward pass of the teacher is not played")
    assert not found.unknown
