"""Launch scripts are read as data: what they assign and test, and the training that they start."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.import_result import ImportResult
from simcluster.importers.launch_scripts import parse_launch_script
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.shell.script_reader import read_script
from simcluster.importers.shell.script_state import ScriptState, shell_value_to_text
from simcluster.importers.shell.word_expansion import evaluate_arithmetic
from simcluster.scenario.scenario import load_text

FOLDER = Path(__file__).parent / "inputs" / "launch"


def read_file(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text() if path.is_file() else None


def imported(name: str, **given: str) -> ImportResult:
    return scenario_from_arguments(
        (FOLDER / name).read_text(), cluster={"topology": "dgx_h100", "nodes": 4}, source=name, given=given,
        read_file=read_file, gpus_per_node=8, available=32,
    )  # fmt: skip


def read(text: str, **more: Any) -> ScriptState:
    return read_script(text, ScriptState("x.sh", **more))


def after(text: str, name: str, **more: Any) -> str | None:
    value = read(text, **more).variable_value(name)
    return None if value is None else shell_value_to_text(value)


def test_a_script_of_arrays_defaults_and_tests() -> None:
    found = imported("arrays.sh")
    scenario = load_text(found.to_yaml_text("x"))
    assert (scenario.gpus, scenario.parallel.tp, scenario.parallel.pp) == (16, 2, 2)
    assert (scenario.pipeline.chunks, scenario.training.precision) == (4, "fp8-mixed")
    assert (scenario.model.sequence_length, scenario.training.global_batch) == (2048, 64)
    assert not found.unknown
    assert any("sets no value: WANDB_API_KEY, EXTRA, MORE_ARGS" in sentence for sentence in found.assumed)


TRAINS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 512 --micro-batch-size 1 --global-batch-size 8 --vocab-size 1000 --max-position-embeddings 512"
)


@pytest.mark.parametrize(
    "check",
    [
        "usage() { echo no; exit 1; }\nif [ $# -lt 2 ]; then\n  usage\nfi",
        'X=${X:-}\nif [[ -z "$X" ]]; then echo set X; exit 1; fi',
        'X=${X:-}\n[ -z "$X" ] && { echo no; exit 1; }',
        "[[ $# -ge 1 ]] || exit 2",
    ],
)
def test_a_script_that_asks_for_something_is_read_on(check: str) -> None:
    found = scenario_from_arguments(f"#!/bin/bash\n{check}\n{TRAINS}\n", cluster={"topology": "dgx_h100", "nodes": 1})
    assert found.document["model"]["layers"] == 2
    with pytest.raises(InputError, match="line 2 of the script ends it"):
        scenario_from_arguments(f"#!/bin/bash\nif [ 1 = 1 ]; then exit 1; fi\n{TRAINS}\n", cluster={"topology": "x"})


def test_a_script_in_a_folder_around_is_read_and_one_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scripts" / "starts").mkdir(parents=True)
    (tmp_path / "scripts" / "trains").mkdir()
    outer = tmp_path / "scripts" / "starts" / "run.sh"
    outer.write_text("#!/bin/bash\nsrun bash $ROOT/scripts/trains/inner.sh\n")
    command = ["import", "megatron", str(outer), "--cluster", "dgx_h100"]
    assert main(command) == 2
    assert "it reads scripts/trains/inner.sh, which is neither next to it" in capsys.readouterr().err
    (tmp_path / "scripts" / "trains" / "inner.sh").write_text(f"#!/bin/bash\n{TRAINS}\n")
    assert main(command) == 0
    assert "layers: 2" in capsys.readouterr().out


def test_the_configuration_of_deepspeed_that_a_script_writes() -> None:
    zero = '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "fp16": {"enabled": true}}'
    options = "--deepspeed --deepspeed_config ds.json --zero-stage 3"
    text = f"#!/bin/bash\ncat <<EOT > ds.json\n{zero}\nEOT\n{TRAINS} {options}\n"
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 1})
    assert found.document["overlap"]["grad_reduce"]
    assert found.document["overlap"]["param_gather"]
    assert found.document["training"]["precision"] == "fp16-mixed"
    assert found.document["memory"]["offload"]["optimizer"] == "host"
    assert any("the host updates the optimizer state" in sentence for sentence in found.assumed)
    other = scenario_from_arguments(f"#!/bin/bash\n{TRAINS} {options}\n", cluster={"topology": "dgx_h100", "nodes": 1})
    assert any("ds.json is not read: it is missing" in sentence for sentence in other.assumed)


def test_the_performance_launcher_of_megatron_bridge_is_told_what_to_give() -> None:
    text = "#!/bin/bash\npython scripts/performance/setup_experiment.py -g h100 -mr llama3_70b -ng 64\n"
    with pytest.raises(InputError, match=r"performance launcher, whose recipes are code: .* the run_config\.yaml"):
        scenario_from_bridge(text, cluster={"topology": "dgx_h100"}, source="run.sh")


def with_deepspeed(zero: str) -> ImportResult:
    config = f'{{"zero_optimization": {{{zero}}}, "fp16": {{"enabled": true}}}}'
    text = f"#!/bin/bash\ncat <<EOT > ds.json\n{config}\nEOT\n{TRAINS} --deepspeed --deepspeed_config ds.json\n"
    return scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 1}, source="run.sh")


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        ('"stage": 3, "offload_param": {"device": "cpu"}', "offload_param.device: parameters in host memory"),
        ('"stage": 2, "offload_optimizer": {"device": "nvme"}', "offload_optimizer.device: nvme is not modelled"),
        ('"stage": 3, "zero_quantized_gradients": true', "zero_quantized_gradients: reductions of quantized gradients"),
    ],
)
def test_what_is_refused_of_deepspeed_is_refused_of_a_script_that_writes_it(zero: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"run\.sh: ds\.json: zero_optimization\.{words}"):
        with_deepspeed(zero)


def test_what_a_script_writes_for_deepspeed_is_listed() -> None:
    found = with_deepspeed('"stage": 2, "offload_param": {"device": "cpu"}, "overlap_comm": true, "new_key": 1')
    assert "zero_optimization.offload_param has no effect with ZeRO 2: parameters stay on GPUs" in found.assumed
    assert found.unknown == ("zero_optimization.new_key of ds.json",)
    assert "bucket_size" not in found.document["overlap"]
    assert (
        "bucket_size"
        in with_deepspeed('"stage": 1, "overlap_comm": true, "reduce_bucket_size": 5e8').document["overlap"]
    )
    assert any("it is not JSON" in sentence for sentence in with_deepspeed('"stage": $STAGE').assumed)


def test_a_script_that_ends_itself_says_what_it_tests() -> None:
    size = "SIZE=$2\nif [[ $SIZE -eq 117 ]]; then N=2\nelse\n  echo no\n  exit 1\nfi\n"
    text = f"#!/bin/bash\n{size}{TRAINS.replace('--num-layers 2', '--num-layers $N')}\n"
    cluster = {"topology": "dgx_h100", "nodes": 1}
    with pytest.raises(InputError, match=r"argument 2 \(SIZE\), which is not given; set it with --arg 2=\.\.\."):
        scenario_from_arguments(text, cluster=cluster)
    assert scenario_from_arguments(text, cluster=cluster, given={"2": "117"}).document["model"]["layers"] == 2
    named = text.replace("SIZE=$2", "").replace("[[ $SIZE -eq", "[[ $MODE = big || $SIZE -eq")
    with pytest.raises(InputError, match=r"it tests MODE, SIZE, which are not given; set them with --arg MODE=\.\.\. "):
        scenario_from_arguments(named, cluster=cluster)


@pytest.mark.parametrize("between", ["\\  # sizes\n", "\\ \n", "\n", "\\\n  # sizes\n", "\n\n"])
def test_options_behind_a_line_that_bash_ends_a_command_in_are_of_it(between: str) -> None:
    whole = "torchrun --nproc_per_node 4 pretrain_gpt.py --bf16 \\\n  --num-layers 12 --hidden-size 512\n"
    broken = read(whole.replace("\\\n", between))
    assert broken.commands == read(whole).commands
    assert any("continues the command above it" in sentence for sentence in broken.assumed)
    assert not read(whole).assumed


def test_values_that_the_user_gives() -> None:
    document = imported("arrays.sh", NUM_NODES="4", DTYPE="bf16", EXTRA="yes").document
    assert (document["gpus"], document["parallel"]["pp"], document["training"]["precision"]) == (32, 4, "bf16-mixed")
    assert document["model"]["qk_norm"] == "head"
    other = imported("arrays.sh", **{"2": "Qwen/Qwen3-8B"})
    assert other.document["model"]["vocab_size"] == 151936
    assert "Qwen/Qwen3-8B has 151936 tokens" in other.assumed


@pytest.mark.parametrize(
    "text",
    [
        "M=$1\nshift\nwhile [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; *) exit 1;; esac; done\n",
        'f() { N=$1; }\nf "$3"\n',
        "N=$3; A=m; B=$A/$1/$2\n",
    ],
)
def test_arguments_that_the_user_gives_are_shifted_and_are_not_those_of_a_function(text: str) -> None:
    train = f"{text}torchrun pretrain_gpt.py --num-layers $N --load=x/$1`echo $A`/$2-$3\n"
    found = parse_launch_script(
        train, "x.sh", user_values={"1": "llama", "2": "--n", "3": "8"}, read_file=lambda name: None
    )
    assert found.options["num-layers"] == ("8",)
    assert len(found.options["load"]) == 1


def test_odd_names_and_sets_are_no_faults() -> None:
    text = 'A=${00}${0000009}${9999999}\ncase "a&" in [[\\&\\|~a]*) B=1;; esac\ntorchrun a.py --num-layers ${B}2\n'
    found = parse_launch_script(text, "x.sh", user_values={"1": "x"}, read_file=lambda name: None)
    assert found.options == {"num-layers": ("12",)}


def test_a_batch_script_with_a_file_beside_it_a_function_and_a_json() -> None:
    found = imported("slurm.sh")
    assert (found.document["gpus"], found.document["model"]["layers"]) == (32, 6)
    assert (found.document["parallel"]["zero"], found.document["training"]["recompute"]) == (1, "full")
    assert found.document["model"]["gated_mlp"] is True


def test_a_script_that_hands_a_script_to_the_batch_system() -> None:
    found = imported("batch.sh", BATCH="48")
    assert (found.document["gpus"], found.document["parallel"]["zero"]) == (24, 3)
    without = imported("batch.sh", NODES="1", FSDP="0")
    assert (without.document["gpus"], without.document["parallel"]["zero"]) == (8, 0)
    assert without.document["training"]["global_batch"] == 16
    assert any("the global batch is $BATCH, which is not set" in sentence for sentence in without.assumed)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=3; B=`expr $A + 4`", "7"),
        ("\nB=$(echo $A | tr -d x)", "$(echo...:2)"),
        ("read -r A B <<< '1 2'", "$(read...:1)"),
        ("A=x; read -r -d '' B <<EOF\n$A `pwd`\nEOF\n", "x $PWD\n"),
        ('eval "B=3"', "3"),
        ("bash -c 'B=4'", "4"),
        ("B=<YOUR PATH>", "_YOUR_PATH_"),
        ("B=$NOBODY/x", "$NOBODY/x"),
        ("if [ -z ${NOBODY} ]; then B=unset; fi", "unset"),
        ("if [ ! -d /nowhere ]; then B=1; exit 1; fi; B=2", "2"),
        ("if [[ $X =~ ^a ]]; then B=1; else B=2; fi", "$([[$X=~^a]]...:1)"),
        ("if [[ $X =~ ^a ]]; then B=c; else B=d; fi", "d"),
        ("A=a/b.json; B=${A##*/}", "$(${A##*/}...:1)"),
        ("A=70B; B=${A/B/}; A=${B:-1}\nB=$A/$((A * 2))", "$(${A/B/}...:1)/$(${A/B/}...:1)"),
        ("A=(1 2); B=${A[@]:1}", "$(${A[@]:1}...:1)"),
        ("A=(1 2); B=${#A[@]}", "$(${#A[@]}...:1)"),
        ("A=(x y); A[1]=z; B=${A[1]}${A[@]}", "z$(A...:1)"),
        ("declare -A A=([k]=v); B=${A[k]}${A[@]}", "v$(A...:1)"),
        ("A=(x y); for i in ${!A[@]}; do B=${A[$i]}; done", "$(A[$i]...:1)"),
        ("X=1; ((X+=$(wc -l))); B=$X", "$(X+=$wc-l...:1)"),
        ("B=$((2 ** 3))", "$((2**3))"),
        ("while getopts ab O; do B=1; done; B=${B:-2}", "2"),
        ("echo a > f; echo b >> f; cat <<EOF > g\n$((1 + 1))\nEOF\nB=1", "1"),
    ],
)
def test_what_is_taken_where_no_shell_runs(text: str, value: str) -> None:
    """What bash itself would do is compared in test_inputs_as_bash.py."""
    assert after(text, "B") == value


@pytest.mark.parametrize(
    ("lines", "text", "value"),
    [
        ("#SBATCH --gpus-per-node=4\n", "B=$SLURM_GPUS_PER_NODE", "4"),
        ("#SBATCH --gres=gpu:h100:8  # all of them\n", "B=$SLURM_GPUS_ON_NODE", "8"),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node 8\n", "B=$((SLURM_NTASKS + SLURM_NNODES))", "18"),
        ("#SBATCH -n16 --nodes=4\n#SBATCH --ntasks-per-node=8\n", "B=$SLURM_NTASKS", "16"),
        ("#SBATCH --gpus-per-node=4\n", "export SLURM_GPUS_PER_NODE=2; B=$SLURM_GPUS_PER_NODE", "2"),
        ("#SBATCH --nodes=$MANY\n", "B=$SLURM_NNODES", "$SLURM_NNODES"),
        ("#$ -l rt_AF=16\n#$ -l h_rt=1:00:00\n", "B=$NHOSTS", "16"),
        ("#PJM -L rscgrp=a,node=4\n", "B=$PJM_NODE", "4"),
    ],
)
def test_what_the_batch_system_sets(lines: str, text: str, value: str) -> None:
    assert after(f"#!/bin/bash\n{lines}{text}\n", "B") == value


@pytest.mark.parametrize(
    ("head", "gpus"),
    [
        ("#$ -l node_f=2\n", 8),
        ("#PBS -l select=2:ncpus=192:ngpus=4\n", 8),
        ('#PJM -L "rscgrp=a,node=2"\n', 8),
        ("#BSUB -nnodes 2\n", 8),
    ],
)
def test_processes_of_other_batch_systems(head: str, gpus: int) -> None:
    sizes = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1 --fp16"
    run = f"#!/bin/sh\n{head}mpirun -np $((N * 4)) -npernode 4 python pretrain_gpt.py {sizes} --vocab-size 5000\n"
    found = scenario_from_arguments(run, cluster={"topology": "dgx_h100", "nodes": 8}, source="run.sh", available=64)
    assert found.document["gpus"] == gpus


@pytest.mark.parametrize(
    ("before", "changes", "layers"),
    [
        ("if [ $1 = 8 ]; then\n N=8\nelif [ $1 = 2 ]; then\n N=2\n # the\n # next\nelif [ $1 = 3 ]; then\n N=3\nfi",
         {"1": "2"}, 2),
        ("# bash run.sh <layers>\nN=${1:-4}", {}, 4),
    ],
)  # fmt: skip
def test_layers_by_branches_and_by_what_is_found(before: str, changes: dict[str, str], layers: int) -> None:
    text = f"#!/bin/bash\n{before}\n{TRAINS.replace('--num-layers 2', '--num-layers $N')} --decoder-seq-length 64\n"
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 1}, given=changes)
    assert found.document["model"]["layers"] == layers
    assert any("decoder-seq-length" in sentence for sentence in found.assumed)


def test_processes_around_a_shell_and_none_that_are_said() -> None:
    sizes = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1 --fp16"
    inside = f"python pretrain_gpt.py {sizes} --vocab-size 5000 --global-batch-size 64"
    around = f"#!/bin/bash\nN=$((4 * 8))\nCMD=\"mpirun -np $N bash -c '{inside}'\"\neval $CMD\n"
    cluster = {"topology": "dgx_h100", "nodes": 8}
    found = scenario_from_arguments(around, cluster=cluster, source="run.sh", available=64)
    assert found.document["gpus"] == 32
    alone = scenario_from_arguments(f"#!/bin/bash\n{inside}\n", cluster=cluster, source="run.sh", available=64)
    assert any("all GPUs of the cluster" in sentence for sentence in alone.assumed)
    socket = f"#!/bin/bash\nexport NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=1\n{inside}\n"
    by_nccl = scenario_from_arguments(socket, cluster=cluster, source="run.sh", available=64).assumed
    assert any(sentence.endswith("the cluster's defaults; NCCL_IB_DISABLE=1 is ignored") for sentence in by_nccl)
    by_hosts = "deepspeed --num_gpus 8"  # on all machines of a file of hosts
    by_shell = f"deepspeed --num_nodes 2 --num_gpus 4 --no_python /usr/bin/bash -c '{inside}'"
    found = scenario_from_arguments(f"A=1\n{by_shell}\n", cluster=cluster, source="run.sh")
    assert found.document["gpus"] == 8
    for launcher in ("torchrun --nproc_per_node 8 --nnodes $N", "mpirun -np $((8 * $N)) -npernode 8", by_hosts):
        text = f"#!/bin/bash\n{launcher} {inside}\n"
        one = scenario_from_arguments(text, cluster=cluster, source="run.sh", available=64)
        assert one.document["gpus"] == 8
        assert any("one node of 8 GPUs" in sentence for sentence in one.assumed)
    asked = scenario_from_arguments(f"#!/bin/bash\n{by_hosts} {inside}\n", cluster=cluster, source="x.sh", gpus=64)
    assert not any("as requested, not the" in fact for fact in asked.facts)


def test_options_without_a_value_and_arguments_of_the_script() -> None:
    text = (
        "#!/bin/bash\nif ! [ -d $TOKENS ]; then exit 1; fi\nN=$1\n"
        'run="\n  torchrun --nproc_per_node $2 pretrain_gpt.py --num-layers $N --hidden-size 512 $more --bf16 $sp \\\n"'
        "\n"
        'if [ $3 = full ]; then run="$run --seq-length 64"; fi\nrun="$run |& tee $LOG"\neval $run\n'
    )
    found = parse_launch_script(
        text, "x.sh", user_values={"1": "8", "2": "4", "3": "full"}, read_file=lambda name: None
    )
    assert found.options == {"num-layers": ("8",), "hidden-size": ("512",), "bf16": (), "seq-length": ("64",)}
    assert found.process_count == 4
    assert any("sets no value: more, sp" in sentence for sentence in found.assumed)


def test_a_wrapper_that_is_not_there_hands_on_what_it_is_given() -> None:
    text = 'A="--num-layers 8 --bf16"\nsrun --label bash ./wrap.sh pretrain_gpt.py $A --seq-length 64\n'
    found = parse_launch_script(text, "x.sh", user_values={}, read_file=lambda name: None)
    assert found.options == {"num-layers": ("8",), "bf16": (), "seq-length": ("64",)}


def test_a_script_without_its_arguments_says_that_it_takes_some() -> None:
    sizes = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 500 --bf16 --micro-batch-size 1"
    text = f"N=$1\ntorchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --seq-length $2 --global-batch-size $((N * 8))\n"
    with pytest.raises(InputError, match="the script takes 2 arguments, and none is given; set all by --arg @="):
        scenario_from_arguments(text, cluster={"topology": "dgx_h100"}, source="run.sh")
    text = text.replace("$2", "64")
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100"}, source="run.sh")
    assert any("which is not set (--arg NAME=VALUE" in sentence for sentence in found.assumed)
    text = f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --seq-length 64 --global-batch-size %s\n"
    for batch in ("$4", "${4}", "$((2 * $4))"):
        found = scenario_from_arguments(text % batch, cluster={"topology": "dgx_h100"}, source="run.sh")
        assert any("which is not set (--arg NAME=VALUE" in sentence for sentence in found.assumed), batch


COUNTS = (
    "#!/bin/bash\nif command -v nvidia-smi; then N=${N:-$(nvidia-smi -L | wc -l)}; else N=${N:-1}; fi\n"
    "NNODES=${NNODES:-1}\n"
    f"{TRAINS.replace('node 8', 'node $N --nnodes $NNODES').replace('size 8', 'size 100')} --bf16 --num-experts 16 "
    "--expert-model-parallel-size $N\n"
)


@pytest.mark.parametrize(("gpus", "ep"), [(None, 8), (2, 2), (4, 4), (8, 8), (16, 8)])
def test_a_script_counts_no_more_gpus_in_a_machine_than_the_job_has(gpus: int | None, ep: int) -> None:
    cluster = {"topology": "dgx_h100", "nodes": 4}
    found = scenario_from_arguments(COUNTS, cluster=cluster, gpus=gpus, available=32, gpus_per_node=8)
    assert (found.document["gpus"], found.document["parallel"]["ep"]) == (gpus or 8, ep)
    assert any(sentence.startswith(f"{ep} GPUs per node where the script counts") for sentence in found.assumed)


def test_a_refusal_that_rests_on_gpus_that_are_counted_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(COUNTS)
    words = ["import", "megatron", str(path), "--cluster", "dgx_h100"]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "100 is not a multiple of dp 8" in told
    assert "assumed: 8 GPUs per node where the script counts them" in told
    assert main([*words, "--gpus", "2"]) == 0
    capsys.readouterr()
    assert main([*words, "--gpus", "2", "--set", "model.heads=7"]) == 2
    told = capsys.readouterr().err
    assert "7 heads" in told or "heads 7" in told
    assert "the fewest" not in told  # of 8 that are launched
    assert "assumed" not in told  # which does not rest on them


def test_a_counted_loop_goes_round_as_often_as_it_says() -> None:
    text = "P='*-'\nfor ((layer=1; layer<8; layer++)); do\n    P+='*E'\ndone\nP+='/*E'\n"
    assert after(text, "P") == "*-" + "*E" * 7 + "/*E"
    unknown = text.replace("8", "$LAYERS")
    assert after(unknown, "P") == "*-/*E"
    assert "the test layer<$LAYERS in line 2 is assumed to be false" in read(unknown).assumed


def test_a_tokenizer_that_is_an_argument_of_the_script_is_not_asked_for() -> None:
    text = f"#!/bin/bash\nT=$1\n{TRAINS.replace('--vocab-size 1000', '--tokenizer-type HuggingFaceTokenizer')}"
    found = scenario_from_arguments(f"{text} --tokenizer-model $T\n", cluster={"topology": "dgx_h100", "nodes": 1})
    assert found.document["model"]["vocab_size"] == 128000


def test_a_program_by_the_name_of_its_module() -> None:
    text = "exec torchrun --nproc_per_node 8 --nnodes 2 --module examples.own.train --num-layers 8 --bf16\n"
    found = parse_launch_script(text, "x.sh", user_values={}, read_file=lambda name: None)
    assert (found.options, found.process_count) == ({"num-layers": ("8",), "bf16": ()}, 16)


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    read(
        f'touch {target}; A=$(touch {target}); `touch {target}`; python -c \'open("{target}", "w")\'; rm -rf {tmp_path}'
    )
    assert tmp_path.exists()
    assert not target.exists()


SIZES = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1"
LAYERS = "torchrun pretrain_gpt.py --hidden-size 8 --num-layers $N"
NO_OPTION = r"^run.sh: run.py is not a Megatron program: none .*--seq-length\); create .*$"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo hello", "starts no readable training"),
        ('python3 -u "$@"', r"it starts the program named by its arguments.*--arg @='pretrain_gpt\.py"),
        ('python3 own.py "$@"', r"it starts own\.py"),
        ("python preprocess_data.py --input x --vocab-file y", "preprocess_data.py prepares files and trains nothing"),
        ("python run_text_generation_server.py --num-layers 2", "runs a trained model; only"),
        ("python pretrain_t5.py --num-layers 2", "other than a text decoder"),
        ("python train_rl.py --num-layers 2", "trains by reinforcement learning"),
        ("python -m own.train --num-layers 2 --advantage-estimator ppo", "means reinforcement learning"),
        ("if [ 1 = 1 ]; then exit 1; fi\npython pretrain_gpt.py --num-layers 2", "line 2 of the script ends it"),
        ("A=1\nwhile [ 1 = 1 ]; do A=$A$A; done", "expands to more|takes more than|starts no training"),
        ("f() { f; f; }\nf", "takes more than 20,000 steps|starts no training"),
        # in one sentence, and not as sizes that are missing
        ("torchrun --nproc_per_node=2 run.py --model=rwkv --vocab_size=200000 --seq_length=128", NO_OPTION),
        ("torchrun --nproc_per_node=2 run.py --lr 1e-4 --seq_length 128", NO_OPTION),
        ("torchrun run.py --seq-length 128 --num-layers 2", "--hidden-size is missing"),
        ("torchrun run.py --seq-length 128 $SIZES", "--hidden-size is missing"),
        ("torchrun pretrain_gpt.py --seq-length 128", "--hidden-size is missing"),
        ("N=$(echo 5 | tr -d x)\ntorchrun pretrain_gpt.py --hidden-size 8 --num-layers $N", "line 2 uses the output"),
        ("N=a/5\ntorchrun pretrain_gpt.py --num-layers ${N#a/}", r"line 3 uses the value of \$\{N#a/\}"),
        # numbers that hang on a test that is not decided
        (f"S=7b\nif [[ $S =~ 7b ]]; then N=32; else N=80; fi\n{LAYERS}", r"line 3 uses the value of \[\[\$S=~7b"),
        (f"S=7b\nN=80\n[[ $S =~ 7b ]] && N=32\n{LAYERS}", r"line 4 uses the value of \$S=~7b"),
        (
            "if [[ $S =~ 7b ]]; then M=(--num-layers 32); else M=(--num-layers 80); fi\ntorchrun pretrain_gpt.py "
            "--hidden-size 8 ${M[@]}",
            r"line 2 uses the value of \[\[\$S=~7b",
        ),
        (f"N=80\ncase $(hostname) in a*) N=32;; esac\n{LAYERS}", "line 3 uses the (output|value) of case"),
        (f"N=80\nfor ((i=0; i<$(nproc); i++)); do N=32; done\n{LAYERS}", "line 3 uses the (output|value) of i"),
        ("torchrun pretrain_gpt.py $(flags)", "line 2 uses the output of flags, .*import the command"),
        (
            "if grep -q x f; then TP=2; fi\ntorchrun pretrain_gpt.py --num-layers 2 --seq-length $(($TP * `wc -l`))",
            "wc",
        ),
        (
            f'source configs/70m.sh\n{TRAINS.replace("--num-layers 2", "")} "${{sizes[@]}}"',
            "reads files that are neither next to it nor .*: configs/70m.sh",
        ),
        (
            f"source own/helpers.sh\ntorchrun pretrain_gpt.py {SIZES.replace('512', '$HIDDEN')}",
            r"reads files that are neither next to it nor under a parent folder; put them there: own/helpers\.sh",
        ),
        ("python /opt/Megatron-Bridge/run_script.py -tp 1", "use simcluster import megatron-bridge"),
        ("python -m torchtitan.train --job.config_file a.toml", "use simcluster import torchtitan"),
    ],
)
def test_a_script_that_is_not_read_is_one_clear_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        scenario_from_arguments(f"#!/bin/bash\n{text}\n", cluster={"topology": "dgx_h100"}, source="run.sh")
    assert "run.sh" in str(caught.value)


FOUND_OUT = """#!/bin/bash
RANK=""
if [ "$(hostname)" == "node0" ]; then RANK=0; fi
if [[ $RANK == "" ]]; then
    echo "which node is this?"
    exit 1
fi
deepspeed pretrain_gpt.py SIZES --global-batch-size 64 --vocab-size 5000
"""


def test_a_check_that_something_was_found_out_is_passed() -> None:
    text = FOUND_OUT.replace("SIZES", SIZES)
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100"}, gpus_per_node=8, source="run.sh")
    assert "the check in line 4 of the script is assumed to pass" in found.assumed
    assert found.document["gpus"] == 8
    assert "the launch uses all 8 GPUs of a node, as it states no number (--gpus sets the number)" in found.assumed
    said = scenario_from_arguments(
        text.replace("deepspeed", "deepspeed --num_gpus 4"), cluster={"topology": "dgx_h100"}, gpus_per_node=8
    )
    assert said.document["gpus"] == 4
    assert not any("GPUs of a node" in each for each in said.assumed)


@pytest.mark.parametrize(
    ("text", "value"), [("2*3", 6), ("-7 / 2", -3), ("!0", None), ("1 << 2", None), ("x", None), ("9**9**9", None)]
)
def test_whole_numbers(text: str, value: int | None) -> None:
    assert evaluate_arithmetic(text, ScriptState("x")) == value


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2500), st.text("$(){}[]\"'`\\ \n#<>|&;A=1", max_size=12))
def test_a_script_cut_anywhere_is_read_or_one_complaint(place: int, junk: str) -> None:
    text = (FOLDER / "arrays.sh").read_text()
    try:
        parse_launch_script(text[:place] + junk + text[place:], "x.sh", user_values={}, read_file=lambda name: None)
    except InputError:
        return


def test_sizes_that_a_checkpoint_has_are_given_as_options() -> None:
    rest = SIZES.replace("--num-layers 4", "--use-checkpoint-args")
    text = f"#!/bin/bash\npython pretrain_gpt.py {rest} --global-batch-size 8 --vocab-size 5000\n"

    def read(**given: str) -> ImportResult:
        return scenario_from_arguments(text, cluster={"topology": "dgx_h100"}, given=given, source="run.sh")

    with pytest.raises(InputError, match=r"it is in the checkpoint .*; give it as --arg=--num-layers="):
        read()
    found = read(**{"--num-layers": "6", "--swiglu": ""})
    assert (found.document["model"]["layers"], found.document["model"]["gated_mlp"]) == (6, True)
    assert any("the checkpoint overrides sizes" in sentence for sentence in found.assumed)
    assert any("MLPs have Megatron-LM's default width" in sentence for sentence in found.assumed)
    found = read(**{"--num-layers": "6", "--ffn-hidden-size": "1408"})
    assert not any("MLPs have Megatron-LM's default width" in sentence for sentence in found.assumed)
    text = text.replace("--hidden-size 512", "")
    with pytest.raises(InputError, match=r"(?s)give it as --arg=--hidden-size=.*give it as --arg=--ffn-hidden-size="):
        read()


@pytest.mark.parametrize(("name", "said"), [("Mixtral-8x7B-v0.1-VE", True), ("Mixtral-8x7B-v0.1", False)])
def test_a_tokenizer_that_extends_one_that_is_known(name: str, said: bool) -> None:
    options = f"--tokenizer-type Llama2Tokenizer --tokenizer-model /m/{name}/tokenizer.model --global-batch-size 8"
    text = f"#!/bin/bash\npython pretrain_gpt.py {SIZES} {options}\n"
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100"}, source="run.sh")
    assert any("the added ones are not read (--set" in sentence for sentence in found.assumed) is said
