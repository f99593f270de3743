"""A training that a shell script starts with a configuration of DeepSpeed and the options of Hugging Face's Trainer.

Names and defaults of options are those of transformers' training_args.py; what takes the place of ``auto`` in the
configuration is that of its integrations/deepspeed.py (HfTrainerDeepSpeedConfig).  What becomes of every option is in
``trainer_scripts.yaml`` beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import read_document
from simcluster.importers.arguments import Arguments, from_words, with_given
from simcluster.importers.beside import Beside
from simcluster.importers.deepspeed import scenario_from_deepspeed
from simcluster.importers.imported import Imported
from simcluster.importers.model_classes import no_decoder
from simcluster.importers.models_by_path import model_named
from simcluster.importers.pre_training import require_pre_training
from simcluster.importers.processes import processes_of
from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import State, joined

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_CONFIGS, _LENGTHS, _MODELS, _RECOMPUTES, _MICROS, _ACCUMULATIONS = (
    _TABLES[name].split()
    for name in ("configurations", "lengths", "models", "recomputes", "micro_batches", "accumulations")
)
_READ = frozenset((*_CONFIGS, *_LENGTHS, *_MODELS, *_RECOMPUTES, *_MICROS, *_ACCUMULATIONS, *_TABLES["read"].split()))
_NO_EFFECT = frozenset(_TABLES["no_effect"].split())
_MODELLED_OTHERWISE, _REFUSED = (
    {name: said for said, names in _TABLES[table].items() for name in names.split()}
    for table in ("otherwise", "refused")
)
_PROGRAMS: dict[str, dict[str, Any]] = _TABLES["programs"]
_OFF = ("false", "0", "no", "none", "")
_MICRO, _STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_USUAL_MICRO = 8
"""Of TrainingArguments."""


def scenario_of_trainer(
    text: str,
    *,
    cluster: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    sequence_length: int | None = None,
    gpus: int | None = None,
    available: int | None = None,
    gpus_per_node: int | None = None,
    given: Mapping[str, str] | None = None,
    beside: Beside,
    source: str = "<script>",
) -> Imported:
    """The scenario of what the script starts on a cluster (as ``cluster`` stands in a scenario).

    ``model`` and ``sequence_length`` are the user's and go before the script's, ``given`` are values of the script's
    variables and options.  Raises InputError for a script that names no configuration of DeepSpeed or one that is not
    there, for a model that is not known, and for what ``scenario_from_deepspeed`` refuses.
    """
    state = read_script(text, State(source, dict(given or {}), beside, gpus_per_node))
    arguments, name, around = _started(state)
    arguments = with_given(arguments, given or {})
    run = _Started(arguments, source, beside)
    run.require(named=not model)
    config = state.text_named(name)
    if config is None:
        raise InputError(
            f"{source}: starts DeepSpeed with {name}, which is neither beside it nor in a folder around it; put it "
            "there"
        )
    section = dict(model) if model else run.model(sequence_length)
    if length := sequence_length or run.length():
        section["sequence_length"] = length
    elif not model:
        run.assumed.append("sequences as long as the model takes them: no length is said (--sequence-length does)")
    launched = _launched(arguments, around, state)
    started = int(launched.get("nnodes", "1")) * int(launched["nproc-per-node"]) if launched else None
    found = scenario_from_deepspeed(
        config, cluster=cluster, model=section, gpus=gpus or started, available=available, filled=run.filled(),
        source=f"{source}: {name}",
    )  # fmt: skip
    if state.unset:
        run.assumed.append(
            f"not set in the script, and taken as unset: {', '.join(state.unset)} (--arg NAME=VALUE sets one)"
        )
    document = found.document | {"training": found.document["training"] | run.training()}
    return replace(
        found, document=document, mapped=(*found.mapped, *run.read), no_effect=(*found.no_effect, *run.no_effect),
        assumed=(*state.assumed, *run.assumed, *found.assumed), unknown=(*found.unknown, *run.unknown, *state.unknown),
        facts=(f"launched by: {' '.join(arguments.launcher)[:200]}",),
    )  # fmt: skip


def refuse_trainer(arguments: Arguments, source: str) -> None:
    """InputError for a command of Hugging Face's Trainer, or another that says no sizes and starts DeepSpeed."""
    options = arguments.options
    sizes = any(name.endswith(("num-layers", "hidden-size")) for name in options)
    config = next((" ".join(options[name]) for name in _CONFIGS if options.get(name)), "")
    if not sizes and (config or any(name in options for name in ("model-name-or-path", "per-device-train-batch-size"))):
        program = next((word for word in arguments.launcher[::-1] if word.endswith(".py")), "its program")
        with_it = "starts DeepSpeed" if config else "takes the options of Hugging Face's Trainer"
        remedy = (
            f"write simcluster import deepspeed {source}"
            if config
            else "write the scenario with simcluster import hugging-face and the config.json of its model"
        )
        raise InputError(f"{source}: {program} {with_it}, and its model is not in Megatron-LM's options; {remedy}")


def _started(state: State) -> tuple[Arguments, str, list[str]]:
    """The first command that names a configuration of DeepSpeed, the file, and the words around the command."""
    found: list[tuple[Arguments, str, list[str]]] = []
    without = ""
    for words, around in state.commands:
        arguments = from_words(words, repeated=True)
        name = next((" ".join(arguments.options[key]) for key in _CONFIGS if arguments.options.get(key)), "")
        if any(key.endswith("num-layers") for key in arguments.options):  # of Megatron-DeepSpeed
            continue
        if name:
            found.append((arguments, name, around))
        elif not without and not arguments.options.keys().isdisjoint(_MICROS):
            without = " ".join(arguments.launcher[-2:])[-60:]
    if not found and without:
        raise InputError(
            f"{state.source}: starts {without} without DeepSpeed (with no --deepspeed FILE): write the scenario with "
            "simcluster import hugging-face and the config.json of its model"
        )
    if not found:
        raise InputError(
            f"{state.source}: starts nothing with --deepspeed FILE or --deepspeed_config FILE that is not "
            "Megatron-DeepSpeed (of which use simcluster import megatron); give the script that does, or the "
            "configuration itself"
        )
    if len({str(arguments.options) for arguments, _, _ in found}) > 1:
        state.assumed[f"the first of {len(found)} trainings that the script starts"] = None
    return found[0]


def _launched(arguments: Arguments, around: list[str], state: State) -> dict[str, str]:
    """How many processes start, as far as the launcher or CUDA_VISIBLE_DEVICES says it."""
    launched = processes_of(arguments.launcher, around)
    seen = joined(state.get("CUDA_VISIBLE_DEVICES") or "")
    if "nproc-per-node" not in launched and seen and "$" not in seen:
        launched["nproc-per-node"] = str(len(seen.split(",")))
    return launched if launched.get("nproc-per-node") else {}


class _Started:
    """The options of one command."""

    def __init__(self, arguments: Arguments, source: str, beside: Beside) -> None:
        self._arguments, self._source, self._beside = arguments, source, beside
        self._options = arguments.options
        self._program = next((name for name, has in _PROGRAMS.items() if self._runs(has)), "")
        self.read = [name for name in self._options if name in _READ]
        self.no_effect = [name for name in self._options if name in _NO_EFFECT]
        rest = [name for name in self._options if name not in _READ | _NO_EFFECT]
        otherwise = {name: said for name in rest if (said := _MODELLED_OTHERWISE.get(name)) and self._on(name)}
        self.assumed = [f"--{name}: {said}" for name, said in otherwise.items()]
        known = _MODELLED_OTHERWISE.keys() | {name.partition("=")[0] for name in _REFUSED}
        self.no_effect += [name for name in rest if name in known and name not in otherwise]
        self.unknown = [f"--{name}" for name in rest if name not in known]

    def _on(self, name: str) -> bool:
        """Whether a switch is given, and not as false."""
        return name in self._options and (not self._options[name] or " ".join(self._options[name]).lower() not in _OFF)

    def _runs(self, program: Mapping[str, Any]) -> bool:
        return not {*program["words"].split()}.isdisjoint(self._arguments.launcher) or any(
            name in self._options for name in program["options"].split()
        )

    def _without(self) -> bool:
        """Whether the script switches off that its program runs layers again."""
        off = _PROGRAMS[self._program]["off"]
        return self._on(off) if off.startswith("disable") else off in self._options

    def _first(self, names: list[str]) -> tuple[str, str]:
        return next(((name, " ".join(self._options[name])) for name in names if self._options.get(name)), ("", ""))

    def require(self, *, named: bool) -> None:
        """InputError for what is no training of a decoder as a whole; ``named``: as far as its model's name says."""
        for name, why in _REFUSED.items():
            name, _, value = name.partition("=")
            if self._on(name) and value in ("", " ".join(self._options[name]).lower()):
                raise InputError(f"{self._source}: --{name} {' '.join(self._options[name])[:40]}: {why}")
        require_pre_training(self._arguments, self._source)
        name, path = self._first(_MODELS)
        if named and (against := no_decoder(path.rstrip("/").rpartition("/")[2])):
            raise InputError(f"{self._source}: --{name} {path[:60]} {against}")

    def number(self, name: str) -> int | None:
        """The value of an option as a whole number; InputError where it is none."""
        words = " ".join(self._options.get(name, ()))
        if not words:
            return None
        if not words.isdecimal() or not 0 < int(words[:10]) < 10**9:
            given = " (--arg NAME=VALUE gives a variable of the script)" if "$" in words else ""
            raise InputError(f"{self._source}: --{name} {words[:40]!r} is not a whole number from 1{given}")
        return int(words)

    def length(self) -> int | None:
        """Tokens of a sequence, to which samples are cut."""
        name, _ = self._first(_LENGTHS)
        length = self.number(name) if name else None
        if length:
            self.assumed.append(f"every sequence has the {length} tokens of --{name}, to which samples are cut")
        elif length := _PROGRAMS.get(self._program, {}).get("length"):
            self.assumed.append(f"every sequence has {length} tokens, to which {self._program} cuts samples")
        return length

    def model(self, sequence_length: int | None) -> dict[str, Any]:
        """The section of the model that the script names; InputError where its sizes are not known."""
        name, path = self._first(_MODELS)
        if not path:
            raise InputError(
                f"{self._source}: does not say which model it trains; name it: --model llama3-8b, or a config.json"
            )
        try:
            found = model_named(path, self._source, self._beside)
        except InputError as problem:
            if "is not known here" not in str(problem):
                raise
            raise InputError(
                f"{self._source}: of the model only the name is said (--{name} {path[:60]}), not its sizes; give them: "
                "--model llama3-8b, or the path of its config.json"
            ) from None
        self.assumed += found.assumed
        self.unknown += found.unknown
        return dict(found.section)

    def filled(self) -> dict[str, Any]:
        """What takes the place of ``auto``, by the configuration's names."""
        micro, steps = (self.number(self._first(names)[0]) for names in (_MICROS, _ACCUMULATIONS))
        trains = any(name.startswith("per-device-") or name == "num-train-epochs" for name in self._options)
        if micro is None and trains:
            micro = _USUAL_MICRO
            self.assumed.append(f"a micro batch of {micro} sequences, as the Trainer takes where nothing is said")
        found: dict[str, Any] = {_MICRO: micro, _STEPS: steps or (1 if micro else None)}
        found = {name: value for name, value in found.items() if value}
        return found | {f"{name}.enabled": self._on(name) for name in ("bf16", "fp16") if trains or self._on(name)}

    def training(self) -> dict[str, Any]:
        """What the command line says of the passes."""
        found: dict[str, Any] = {}
        if any(self._on(name) for name in _RECOMPUTES):
            found["recompute"] = "full"
        elif self._program and not self._without():
            found["recompute"] = "full"
            self.assumed.append(f"layers are run again in the backward pass, as {self._program} does by itself")
        if " ".join(self._options.get("attn-implementation", ())).lower() == "eager":
            found["attention"] = "unfused"
        return found
