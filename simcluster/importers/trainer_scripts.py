"""Import of scripts that train with DeepSpeed and the Hugging Face Trainer's options as scenarios.

Names and defaults of options are those of transformers' training_args.py; values for ``auto`` in the configuration are
those of its integrations/deepspeed.py (HfTrainerDeepSpeedConfig). ``trainer_scripts.yaml`` in this folder classifies
every option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers import import_result
from simcluster.importers.deepspeed import scenario_from_deepspeed
from simcluster.importers.flat_settings import environment_assumptions
from simcluster.importers.launch_arguments import CONFIG_JSON_ADVICE, LaunchArguments, override_options
from simcluster.importers.named_models import NamedModel, explain_not_decoder, find_named_model
from simcluster.importers.pre_training_checks import check_pre_training
from simcluster.importers.process_counts import count_processes, count_visible_gpus, swift_process_counts
from simcluster.importers.shell.script_reader import read_script
from simcluster.importers.shell.script_state import ScriptState, shell_value_to_text
from simcluster.importers.trainer_commands import (
    CONFIG_OPTIONS,
    TABLES,
    AccelerateSettings,
    TrainerCommand,
    find_deepspeed_command,
    is_accelerate_file,
    is_trainer_option_file,
    read_accelerate_settings,
    read_trainer_option_file,
)

_LENGTH_OPTIONS, _MODEL_OPTIONS, _RECOMPUTE_OPTIONS, _MICRO_BATCH_OPTIONS, _ACCUMULATION_OPTIONS = (
    TABLES[name].split() for name in ("lengths", "models", "recomputes", "micro_batches", "accumulations")
)
_MAPPED_OPTIONS = frozenset(
    (
        *CONFIG_OPTIONS, *_LENGTH_OPTIONS, *_MODEL_OPTIONS, *_RECOMPUTE_OPTIONS, *_MICRO_BATCH_OPTIONS,
        *_ACCUMULATION_OPTIONS, *TABLES["read"].split(),
    )
)  # fmt: skip
_NO_EFFECT = frozenset(TABLES["no_effect"].split())
_ASSUMED_OPTIONS, _REFUSED = (
    {name: said for said, names in TABLES[table].items() for name in names.split()}
    for table in ("otherwise", "refused")
)
_PROGRAMS: dict[str, dict[str, Any]] = TABLES["programs"]
_OFF_WORDS = ("false", "0", "no", "none", "")
_FORMATS = {"float16": "fp16", "fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16", "float32": "", "fp32": ""}
_MICRO_BATCH_KEY, _ACCUMULATION_KEY = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_DEFAULT_MICRO_BATCH = 8
"""Default micro batch of Hugging Face's TrainingArguments."""


def scenario_from_trainer(
    text: str, *, cluster: Mapping[str, Any], model: NamedModel | None = None, sequence_length: int | None = None,
    gpus: int | None = None, available: int | None = None, gpus_per_node: int | None = None,
    given: Mapping[str, str] | None = None, read_file: import_result.FileReader, source: str = "<script>",
) -> import_result.ImportResult:  # fmt: skip
    """Return the scenario for the DeepSpeed training that a script starts on a cluster.

    ``model`` and ``sequence_length`` are the user's and override the script's, ``given`` are values of the script's
    variables and options. Raises InputError for a script that names no configuration of DeepSpeed or a missing one, for
    a model that is not known, and for what ``scenario_from_deepspeed`` refuses.
    """
    state = ScriptState(source, dict(given or {}), read_file, count_visible_gpus(gpus, gpus_per_node))
    alone = is_trainer_option_file(text)
    training = read_trainer_option_file(text, source) if alone else find_deepspeed_command(read_script(text, state))
    arguments = override_options(training.arguments, given or {})
    run = _TrainerSettings(arguments, source)
    run.check_training(by_name=not model)
    config = _find_deepspeed_config(training, run, state)
    named = model or run.find_model(read_file)
    section = dict(named.section)
    if length := sequence_length or run.sequence_length():
        section["sequence_length"] = length
    else:
        run.assumed.append(f"{named.length} (--sequence-length changes it)")
    started = _total_process_count(_count_launched_processes(training, config, state, run.program))
    whole = _total_process_count(count_processes(arguments.launcher, training.enclosing_words, state.gpus_per_node))
    found = scenario_from_deepspeed(
        config.config, cluster=cluster, model=section, gpus=gpus or started, available=available,
        launched=whole, auto_values=run.deepspeed_auto_values(config.precision, gpus or started or whole),
        source=f"{source}: {training.config}".removesuffix(": "),
    )  # fmt: skip
    run.assumed += state.unset_variable_assumption()
    document = found.document | {"training": found.document["training"] | run.training_fields()}
    by_script = (*state.assumed, *environment_assumptions(state.variables))
    settings = (*found.mapped, *found.no_effect, *config.mapped, *config.no_effect, *arguments.options)
    return replace(
        found, document=document, mapped=(*found.mapped, *config.mapped, *run.mapped_names),
        no_effect=(*found.no_effect, *config.no_effect, *run.no_effect, *run.overridden_names),
        assumed=(*by_script, *config.assumed, *run.assumed, *found.assumed),
        unknown=(*found.unknown, *config.unknown, *run.unknown, *state.unknown),
        facts=(f"launched by: {' '.join(arguments.launcher)[:200]}",) if arguments.launcher else (),
    ).classify_all_settings(settings)  # fmt: skip


def refuse_trainer_command(arguments: LaunchArguments, source: str) -> None:
    """Raise InputError for a Hugging Face Trainer command, and for a DeepSpeed command without model sizes."""
    options = arguments.options
    sizes = any(name.endswith(("num-layers", "hidden-size")) for name in options)
    config = arguments.option_text(*CONFIG_OPTIONS)
    if not sizes and (config or any(name in options for name in ("model-name-or-path", "per-device-train-batch-size"))):
        program = next((word for word in arguments.launcher[::-1] if word.endswith(".py")), "its program")
        with_it = "starts DeepSpeed" if config else "takes the options of Hugging Face's Trainer"
        remedy = f"run simcluster import deepspeed {source}" if config else CONFIG_JSON_ADVICE
        raise InputError(f"{source}: {program} {with_it}, and its options do not give the model's sizes; {remedy}")


def _find_deepspeed_config(training: TrainerCommand, run: _TrainerSettings, state: ScriptState) -> AccelerateSettings:
    """Return the DeepSpeed configuration that a command uses: its own file, or accelerate's settings."""
    name = training.config
    if own := run.builtin_deepspeed_config(name):
        return AccelerateSettings(own)
    text = state.find_file_text(name) if name else ""
    found = AccelerateSettings(text or "")
    if text is not None and (not name or is_accelerate_file(text)):
        where = f"{state.source}: {name}".removesuffix(": ")
        found = read_accelerate_settings(text, training.arguments.launched, where, steps_set=run.sets_accumulation)
        if found.config_file:
            name, text = found.config_file, state.find_file_text(found.config_file)
            found = replace(found, config=text or "")
    if text is None:
        raise InputError(
            f"{state.source}: starts DeepSpeed with {name}, which is neither next to it nor under a parent folder; put "
            "it there"
        )
    return found


def _count_launched_processes(
    training: TrainerCommand, config: AccelerateSettings, state: ScriptState, program: str
) -> Mapping[str, str]:
    launched = count_processes(training.arguments.launcher, training.enclosing_words)
    if "nproc-per-node" not in launched and config.process_counts:
        return config.process_counts
    launched = (swift_process_counts(state) if program else {}) | launched
    seen = shell_value_to_text(state.variable_value("CUDA_VISIBLE_DEVICES") or "")
    if "nproc-per-node" not in launched and seen and "$" not in seen:
        launched["nproc-per-node"] = str(len(seen.split(",")))
    return launched


def _total_process_count(launched: Mapping[str, str]) -> int | None:
    each = launched.get("nproc-per-node")
    return int(launched.get("nnodes", "1")) * int(each) if each else None


class _TrainerSettings(import_result.SettingClassifier):
    def __init__(self, arguments: LaunchArguments, source: str) -> None:
        super().__init__(source, "--")
        self._options = import_result.TrackedSettings(arguments.options)
        self._arguments = replace(arguments, options=self._options)
        self.program = next((name for name, has in _PROGRAMS.items() if self._matches_program(has)), "")
        self._program_defaults: dict[str, Any] = _PROGRAMS.get(self.program, {})
        reads = _MAPPED_OPTIONS | {self._program_defaults.get("micro_batch", "")}
        known = _ASSUMED_OPTIONS.keys() | {re.split("[=>]", name)[0] for name in _REFUSED}
        for name, words in self._options.items():
            if name not in reads:
                idle = name in _NO_EFFECT or name in known or import_result.is_switched_off(name, " ".join(words))
                self.classify(name, modelled=_ASSUMED_OPTIONS.get(name, ""), on=self._is_option_on(name), idle=idle)
        self._mapped_options = reads
        self.sets_accumulation = any(self._options.get(name) for name in _ACCUMULATION_OPTIONS)

    @property
    def mapped_names(self) -> list[str]:
        """Names of the Trainer options that were read and are used in the scenario."""
        return [name for name in self._options.read_names if name in self._mapped_options]

    @property
    def overridden_names(self) -> list[str]:
        """Names of the Trainer options that have no effect because a synonymous option overrides them."""
        return [name for name in self._options.unread_names if name in self._mapped_options]

    def _is_option_on(self, name: str) -> bool:
        """Return whether a Trainer option is present and not false."""
        return name in self._options and (
            not self._options[name] or self._arguments.option_text(name).lower() not in _OFF_WORDS
        )

    def _matches_program(self, program: Mapping[str, Any]) -> bool:
        if "flag" in program and self._options.get(program["flag"]) != ():
            return False
        words, options = program["words"].split(), program["options"].split()
        return any(word in self._arguments.launcher for word in words) or any(name in self._options for name in options)

    def builtin_deepspeed_config(self, name: str) -> str:
        """Return the program's built-in DeepSpeed configuration as JSON; "" if ``name`` is a file's name instead."""
        zero = self._program_defaults.get("configurations", {}).get(name)
        stage = self._arguments.option_text("zero-stage")
        if zero:
            self.assumed.append(f"{name} is {self.program}'s built-in configuration of that name")
        elif not name and stage.isdecimal():
            devices = {
                f"offload_{what}": {"device": "cpu"} for what in ("param", "optimizer") if self._is_option_on("offload")
            }
            zero = {"stage": int(stage), "overlap_comm": True, **devices}
            self.assumed.append(f"the DeepSpeed configuration is that of {self.program} for --zero-stage {stage}")
        else:
            return ""
        auto = dict.fromkeys(("train_batch_size", _MICRO_BATCH_KEY, _ACCUMULATION_KEY), "auto")
        formats = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
        return json.dumps({**auto, **formats, "zero_optimization": zero})

    def _first_option(self, names: list[str]) -> tuple[str, str]:
        return next(((name, " ".join(self._options[name])) for name in names if self._options.get(name)), ("", ""))

    def check_training(self, *, by_name: bool) -> None:
        """Raise InputError for a launch that does anything other than train all weights of a decoder."""
        for name, why in _REFUSED.items():
            name, sign, value = re.split("([=>]|$)", name, maxsplit=1)
            said = self._arguments.option_text(name)
            more = not said.isdecimal() or int(said) > 1
            if self._is_option_on(name) and (more if sign == ">" else value in ("", said.lower())):
                raise InputError(f"{self.source}: --{name} {said[:40]}: {why}")
        tuners, launcher = self._program_defaults.get("tuners", "").split(), self._arguments.launcher
        whole = self._program_defaults.get("all") in launcher or any(name in self._options for name in tuners)
        if tuners and not whole:
            raise InputError(
                f"{self.source}: {self.program} trains adapters with frozen weights unless --{tuners[0]} "
                "full is given, which is not modelled"
            )
        check_pre_training(self._arguments, self.source)
        name, path = self._first_option(_MODEL_OPTIONS)
        if by_name and (against := explain_not_decoder(path.rstrip("/").rpartition("/")[2])):
            raise InputError(f"{self.source}: --{name} {path[:60]}: the model {against}")

    def option_number(self, name: str) -> int | None:
        """Return an option's whole number, or None if the option is absent; raise InputError for another value."""
        words = self._arguments.option_text(name)
        if not words:
            return None
        if not words.isdecimal() or not 0 < int(words[:10]) < 10**9:
            given = " (--arg NAME=VALUE sets a variable of the script)" if "$" in words else ""
            raise InputError(f"{self.source}: --{name} {words[:40]!r} is not a whole number from 1{given}")
        return int(words)

    def sequence_length(self) -> int | None:
        """Return the sequence length (tokens) at which the program truncates samples; None if unknown."""
        name, _ = self._first_option(_LENGTH_OPTIONS)
        if length := self.option_number(name):
            self.assumed.append(f"every sequence has the {length} tokens of --{name}, to which samples are truncated")
        elif length := self._program_defaults.get("length"):
            self.assumed.append(f"every sequence has {length} tokens, to which {self.program} truncates samples")
        return length

    def find_model(self, read_file: import_result.FileReader) -> NamedModel:
        """Return the model that the script names; raise InputError if the model's sizes are unknown."""
        name, path = self._first_option(_MODEL_OPTIONS)
        give = "--model llama3-8b, or"
        if not path:
            raise InputError(f"{self.source}: does not name the model; give it: {give} a config.json")
        try:
            found = find_named_model(path, self.source, read_file)
        except InputError as problem:
            if "is not known, and" not in str(problem):
                raise
            raise InputError(
                f"{self.source}: only the model's name is given (--{name} {path[:60]}), not its sizes; give them: "
                f"{give} the path of its config.json"
            ) from None
        self.assumed += found.assumed
        self.unknown += found.unknown
        return found

    def deepspeed_auto_values(self, precision: str, gpus: int | None) -> dict[str, Any]:
        """Return values for DeepSpeed's ``auto`` settings; ``precision`` is the launcher's number format."""
        program = self._program_defaults
        micro, steps = (
            self.option_number(self._first_option(names)[0]) for names in (_MICRO_BATCH_OPTIONS, _ACCUMULATION_OPTIONS)
        )
        micro = micro or self.option_number(program.get("micro_batch", ""))
        trains = any(name.startswith("per-device-") or name == "num-train-epochs" for name in self._options)
        if micro is None and trains:
            micro = program.get("usual_micro", _DEFAULT_MICRO_BATCH)
            whose = self.program if "usual_micro" in program else "the Trainer"
            self.assumed.append(f"a micro batch has {micro} sequences, the default of {whose}")
        if micro and not steps and gpus and (least := program.get("least_batch")):
            steps = -(-least // (micro * gpus))
            self.assumed.append(f"{steps} micro batches per step, as {self.program} sets for {least} sequences or more")
        found: dict[str, Any] = {_ACCUMULATION_KEY: steps} if steps else {}
        if micro:
            found = {_MICRO_BATCH_KEY: micro, _ACCUMULATION_KEY: steps or 1}
        said = self._arguments.option_text("torch-dtype", "dtype").lower()
        usual = precision or _FORMATS.get(said, str(program.get("format", "")))
        on = next((name for name in ("bf16", "fp16") if self._is_option_on(name)), usual)
        return found | {f"{name}.enabled": name == on for name in ("bf16", "fp16") if trains or name == on}

    def training_fields(self) -> dict[str, Any]:
        """Return the scenario's settings for recompute and the attention kernel."""
        found: dict[str, Any] = {}
        off = self._program_defaults.get("off", "")
        if any(self._is_option_on(name) for name in _RECOMPUTE_OPTIONS):
            found["recompute"] = "full"
        elif off and not (self._is_option_on(off) if off.startswith("disable") else off in self._options):
            found["recompute"] = "full"
            self.assumed.append(f"layers are recomputed in the backward pass, the default of {self.program}")
        kernels = {self._arguments.option_text(name).lower() for name in ("attn-implementation", "flash-attn")}
        if not kernels.isdisjoint(("eager", "disabled")):
            found["attention"] = "unfused"
        return found
