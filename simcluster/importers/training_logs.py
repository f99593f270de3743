"""Readers of training logs: the configuration that a framework prints at the start, and the step times.

Configurations are resolved: what a launch script or a recipe computes is there as a value. The forms are those of the
functions that print them: ``_print_args`` and ``training_log`` of Megatron-LM (megatron/training), which
Megatron-DeepSpeed and Megatron-Bridge have too; ``print_yaml`` of Megatron-Bridge's ConfigContainer, and its
train_utils.py; the experiment configuration of NeMo 1's example programs (``OmegaConf.to_yaml``), NeMo's progress
printer and bar; ``maybe_log`` of torchtitan's configuration (before: config_manager.py) and ``MetricsProcessor.log``,
whose tps are per GPU; ``DeepSpeedConfig.print`` and ``print_user_config`` (deepspeed/runtime), ``train_batch`` of its
pipeline engine and ``ThroughputTimer``; ``TrainingArguments.__str__``, the configuration of a model, ``speed_metrics``
and the bar (tqdm) of transformers.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.framework_files import FIELD_OPTIONS, fields_to_options
from simcluster.importers.launch_arguments import LaunchArguments
from simcluster.importers.megatron_options import (
    EXPERT_OPTIONS,
    FIELD_REQUIREMENTS,
    INVERTED,
    MAPPED,
    NOT_MODELLED,
    ON_BY_DEFAULT,
    REFUSED,
    current_option_name,
)

_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"
_SHORT_TEXT = r"[^\n\r]{0,400}?"
_STEP_LINES = {
    "Megatron-LM": rf"iteration +(?P<step>\d+) */ *\d+ *\|{_SHORT_TEXT}elapsed time per iteration \(ms\): "
    rf"*(?P<ms>{_NUMBER})(?:{_SHORT_TEXT}global batch size: *(?P<batch>\d{{1,9}}))?",
    "Megatron-Bridge": rf"Step Time : (?P<s>{_NUMBER})s",
    "NeMo": rf"iteration (?P<step>\d+)/\d+ \|(?:{_SHORT_TEXT}global_batch_size: (?P<batch>\d{{1,9}}))?"
    rf"{_SHORT_TEXT}train_step_timing in s: (?P<s>{_NUMBER})",
    "NeMo's bar": rf"global_step=(?P<step>\d+){_SHORT_TEXT}train_step_timing in s=(?P<s>{_NUMBER})",
    "torchtitan": rf"step: *(?P<step>\d+) +loss:{_SHORT_TEXT} tps: *(?P<tokens>[\d,]{{1,15}})",
    "DeepSpeed's pipeline": rf"steps: (?P<step>\d+) loss:{_SHORT_TEXT}iter time \(s\): (?P<s>{_NUMBER})",
    "DeepSpeed": rf"(?:global_step=|\d/)(?P<step>\d+), RunningAvgSamplesPerSec=[\d.a-z]{{1,40}}, "
    rf"CurrSamplesPerSec=(?P<samples>{_NUMBER})",
    "tqdm": rf"\b(?P<step>\d+)/\d+ \[[\d:]{{4,12}}<[\d:?]{{1,12}}, *(?:(?P<s>{_NUMBER})s/it|(?P<rate>{_NUMBER})it/s)",
    "Hugging Face's Trainer": rf"'train_samples_per_second': '?(?P<samples>{_NUMBER})",
}
"""Patterns of lines with a step time, by the program that prints them; the first that occurs in a log counts."""
_MAX_SKIPPED = 10  # warm-up iterations: kernel selection, buffer growth, data loading
_COLORS = re.compile(r"\x1b\[[\d;]*m")
_PREFIX = re.compile(r"^(\[(?:rank|default)?\d+\]:|[ \t]*\d+:[ ])", re.MULTILINE)
_ARGUMENTS = re.compile(r"(?<!-)-{3,}+ arguments -{3,}+[^\n]*+\n(.*?)(?<!-)-{3,} end of arguments -{3,}", re.DOTALL)
_ARGUMENT = re.compile(r"^[ \t]*(\w+) (?:\.+ ?| )(.*)$", re.MULTILINE)
_PADDED_VOCABULARY = re.compile(r"> padded vocab \(size: (\d+)\)")
_TORCHTITAN_MARK = re.compile(r"Running with (?:args|configs): (?=\{)")
_CONTAINER = re.compile(
    r"^_target_: [\w.]+\.ConfigContainer\n(?:(?:[ \t-][^\n]*|[A-Za-z_][\w.]*:(?: [^\n]*)?)\n?)*", re.M
)
_EXPERIMENT = re.compile(r"Experiment configuration \*+ *\n(?:\[NeMo[^\n]*\n)?((?:[ \t]+[^\n]*\n?|\n)+)")
_DEEPSPEED = re.compile(r"\bjson = (?=\{)")
_MODEL = re.compile(r"Model config \w+ (?=\{)")
_WORLD_SIZE = re.compile(r"\bworld_size \.+ (\d+)\b")
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_MEMBER = re.compile(r"<?[A-Za-z]\w*\.(\w+)(?:: [^>]*>)?")
_FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_OFF_WORDS = ("0", "0.0", "[]", "none", "None", "False")
_FIELD_REQUIREMENTS = {
    **FIELD_REQUIREMENTS,
    "num_experts": (*FIELD_REQUIREMENTS["num_experts"], *(name.replace("-", "_") for name in EXPERT_OPTIONS)),
}


def has_step_times(text: str) -> bool:
    """Return whether a log has a line with a step time."""
    return any(re.search(form, text, re.IGNORECASE) for form in _STEP_LINES.values())


def measure_step_time(text: str, source: str, document: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a log's median step time as a scenario's ``measured`` section, and a sentence on how it was taken.

    It is the median (a line may have the mean of a logging interval) without warm-up: a tenth of the lines and at least
    one, but no further than iteration 10. Iterations with another batch, as during batch ramp-up, do not count. Raises
    InputError for a log without such lines.
    """
    batch = document["training"]["global_batch"]
    found = next((rows for form in _STEP_LINES.values() if (rows := _parse_step_lines(form, text, document))), [])
    if not found:
        raise InputError(
            f'{source}: has no line with a step time, such as "elapsed time per iteration (ms): ..."; give a log of '
            f"{', '.join(_STEP_LINES)}"
        )
    whole = [(step, seconds) for step, seconds, size in found if size in (None, batch)]
    if not whole:
        sizes = ", ".join(sorted({str(size) for _, _, size in found})[:5])
        raise InputError(f"{source}: has a global batch of {sizes}, but the scenario has {batch}; give that run's log")
    early = sum(step < whole[0][0] + _MAX_SKIPPED for step, _ in whole)
    skipped = min(early, max(1, len(whole) // 10)) if len(whole) > 1 else 0
    kept = [seconds for _, seconds in whole[skipped:] if seconds > 0]
    if not kept:
        raise InputError(f"{source}: all its iterations take 0 ms; give the log of a timed run")
    others = len(found) - len(whole)
    ramped = f", {others} with another batch excluded" if others else ""
    words = f"median of {len(kept)} logged iterations after the first {skipped}{ramped}"
    time = f"{statistics.median(kept):.6g} s"
    spread = f"{min(kept):.6g} to {max(kept):.6g} s"
    return {"step_time": time, "source": f"{source}: {words}"}, f"measured {time}: {words} ({spread})"


def _parse_step_lines(pattern: str, text: str, document: Mapping[str, Any]) -> list[tuple[int, float, int | None]]:
    """Return the iteration, seconds and batch size from every log line of the format ``pattern``.

    The batch is None if it is not printed. A line has a time, or a rate of steps, sequences or tokens per GPU.
    """
    rows = []
    batch, model = document["training"]["global_batch"], document["model"]
    for number, match in enumerate(re.finditer(pattern, text, re.IGNORECASE)):
        said = {name: float(value.replace(",", "")) for name, value in match.groupdict().items() if value}
        size = int(said["batch"]) if "batch" in said else None
        if "tokens" in said:
            length = model.get("sequence_length") or load_model_entry(model["preset"])["sequence_length"]
            rate = said["tokens"] * document["gpus"] / (batch * length)
        else:
            rate = said.get("rate", said.get("samples", 0.0) / batch)
        seconds = said["ms"] / 1e3 if "ms" in said else said["s"] if "s" in said else 1 / rate if rate else 0.0
        rows.append((int(said.get("step", number)), seconds, size))
    return rows


def clean_log_text(text: str) -> str:
    """Remove colors and rank prefixes from a training log, and the lines of all ranks but one."""
    text = _COLORS.sub("", text)
    places = [match.start() for form in (_ARGUMENTS, _TORCHTITAN_MARK, _DEEPSPEED) if (match := form.search(text))]
    begin = text.rfind("\n", 0, min(places)) + 1 if places else 0
    prefix = _PREFIX.match(text, begin)
    if not prefix:
        return text
    own = prefix[1].strip()
    lines = (line.lstrip() for line in text.splitlines(keepends=True))
    return "".join(line.removeprefix(own).removeprefix(" ") for line in lines if line.startswith(own))


def parse_printed_arguments(text: str, gpus_per_node: int | None) -> LaunchArguments | None:
    """Return, as options, the arguments that Megatron-LM prints in a log; None if the log has none.

    Of the hundreds of fields only those that a scenario has a place for, and switches that are on, are kept.
    """
    found = _ARGUMENTS.search(plain := clean_log_text(text)) if "end of arguments" in text else None
    if found is None:
        return None
    fields = {name: _parse_printed_value(value.strip()) for name, value in _ARGUMENT.findall(found[1])}
    idle = {
        name for switch, names in _FIELD_REQUIREMENTS.items() if fields.get(switch) in (None, False) for name in names
    }
    fields = {name: value for name, value in fields.items() if name not in idle}
    if padded := _PADDED_VOCABULARY.search(plain):
        fields["vocab_size"] = fields.get("vocab_size") or int(padded[1])
    virtual = fields.pop("virtual_pipeline_model_parallel_size", None)
    if fields.get("num_layers_per_virtual_pipeline_stage") is None:
        fields["num_virtual_stages_per_pipeline_rank"] = virtual
    if fields.get("sequence_parallel") is True:
        fields.pop("async_tensor_model_parallel_allreduce", None)  # validate_args switches it off
    world = fields.get("world_size")
    nodes = world // gpus_per_node if world and gpus_per_node and world % gpus_per_node == 0 else 1
    launched = {"nnodes": str(nodes), "nproc-per-node": str(world // nodes)} if isinstance(world, int) else {}
    said = "only those arguments in the log are used that map to scenario fields or are switches that are on"
    kept = {name: value for name, value in fields.items() if _affects_scenario(name, value)}
    return LaunchArguments(fields_to_options(kept), launched=launched, assumed=(said,))


def _affects_scenario(name: str, value: Any) -> bool:
    """Return whether a printed argument maps to the scenario or is a switch that is on."""
    if name in INVERTED:
        return value is False
    if name in ON_BY_DEFAULT or value is None or value is False or value == "":
        return False
    option = current_option_name(FIELD_OPTIONS.get(name) or name.replace("_", "-"))
    lists = isinstance(value, list) and option in NOT_MODELLED
    return option in MAPPED or value is True or lists or (option in REFUSED and str(value) not in _OFF_WORDS)


def _parse_printed_value(text: str) -> Any:
    """Parse a value as Python prints it: a literal, a dtype, an enum member or a text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        member = _MEMBER.fullmatch(text)
        return _FORMATS.get(member[1], member[1]) if member else text


def parse_printed_torchtitan(text: str, source: str) -> dict[str, Any] | None:
    """Return the job config that torchtitan prints in a log, or None if there is none."""
    return _parse_json_after(_TORCHTITAN_MARK, clean_log_text(text), source) if _TORCHTITAN_MARK.search(text) else None


def extract_printed_yaml(text: str) -> str:
    """Return the YAML configuration that Megatron-Bridge or NeMo prints in a log, or the text if it has none."""
    if experiment := _EXPERIMENT.search(text):
        return textwrap.dedent(experiment[1])
    container = _CONTAINER.search(text) if "ConfigContainer" in text else None
    return container[0] if container else text


@dataclass(frozen=True)
class PrintedDeepSpeedConfig:
    """Configurations of DeepSpeed and of the model, and the number of ranks, as printed in a training log."""

    config: str
    ranks: int | None
    model: dict[str, Any] | None
    recomputes: bool


def parse_printed_deepspeed(text: str, source: str) -> PrintedDeepSpeedConfig | None:
    """Return the configurations that DeepSpeed and transformers print in a log; None if there are none.

    Raises InputError for arguments of transformers' trainer without a DeepSpeed configuration.
    """
    if not _DEEPSPEED.search(text):
        if "TrainingArguments(" in text and "***** Running training" in text:
            raise InputError(
                f"{source}: is the log of a training without DeepSpeed; create the scenario with simcluster import "
                "hugging-face and the config.json of its model"
            )
        return None
    plain = clean_log_text(text)
    config = _parse_json_after(_DEEPSPEED, plain, source)
    resolved = {name: re.search(rf"\b{name} \.* *(\d+)\s*$", plain, re.MULTILINE) for name in _BATCHES}
    config |= {name: int(found[1]) for name, found in resolved.items() if found}
    world = _WORLD_SIZE.search(plain)
    model = _parse_json_after(_MODEL, plain, source) if _MODEL.search(plain) else None
    return PrintedDeepSpeedConfig(
        json.dumps(config), int(world[1]) if world else None, model, "gradient_checkpointing=True" in plain
    )


def _parse_json_after(marker: re.Pattern[str], text: str, source: str) -> dict[str, Any]:
    found = marker.search(text)
    begin = found.end() if found else 0
    try:
        value, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        raise InputError(
            f"{source}: the configuration after {text[begin - 20 : begin].strip()!r} is cut off or mixed with other "
            "lines; give the log of one rank, or only the configuration as JSON"
        ) from None
    return dict(value)
