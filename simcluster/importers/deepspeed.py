"""A scenario from a DeepSpeed configuration (JSON) and a model beside it; or what it adds to Megatron-LM's options.

Every key is mapped, listed or refused by ``deepspeed.yaml`` beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import model_document
from simcluster.documents.diagnostics import shown
from simcluster.documents.reading import read_document
from simcluster.importers.flat_settings import flattened, parse_toml_or_json
from simcluster.importers.imported import Imported, Problems, Settings, guess

_GRADIENTS = "data_types.grad_accum_dtype"
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_ZERO = "zero_optimization."
OF_THE_CONFIGURATION = ("zero-stage",)
"""Options of a script that a configuration beside it overrules."""
_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_MAPPED, _NO_EFFECT, _NO_EFFECT_SECTIONS, _ADAMS = (
    frozenset(_TABLES[name].split()) for name in ("mapped", "no_effect", "no_effect_sections", "adams")
)
_NOT_MODELLED, _SWITCHED, _REFUSED = (
    {name: said for said, names in _TABLES[table].items() for name in names.split()}
    for table in ("not_modelled", "switched", "refused")
)


_SHARDED = (
    "the optimizer's state is sharded with ZeRO stage 0 too, and gradients are summed in fp32, as DeepSpeed does with "
    "bf16"
)
HOST_UPDATE = {
    "optimizer": "host", "host_update": "109 GB/s",
    "source": "CPUAdam, 10 B parameters in 2.57 s on a DGX-2 (arXiv:2101.06840, table 4)",
}  # fmt: skip
"""``memory.offload`` where the optimizer runs on the host's processors."""
HOST_UPDATE_ASSUMED = (
    "the host updates the optimizer's state, at the 109 GB/s per box that CPUAdam reaches on a DGX-2 "
    "(--set memory.offload.host_update=... sets what this host reaches)"
)


@dataclass(frozen=True)
class DeepSpeedAdds:
    """DeepSpeed settings as Megatron-LM options, what is taken otherwise, and the keys that are not known."""

    options: dict[str, tuple[str, ...]]
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def added_to_megatron(text: str, name: str, source: str, options: Mapping[str, tuple[str, ...]]) -> DeepSpeedAdds:
    """Return what a configuration, of the file ``name``, says beside the options of the script that gives it.

    Raises InputError for what is refused of it, as where it stands alone.
    """
    try:
        settings = flattened(parse_toml_or_json(text, source), source)
    except InputError:
        return DeepSpeedAdds({}, (f"what the DeepSpeed configuration {name[:60]} says is not known: it is no JSON",))
    run = _Config(settings, f"{source}: {name}")
    stage = settings.get(f"{_ZERO}stage", " ".join(options.get("zero-stage", ("0",))))
    zero = int(stage) if str(stage) in ("1", "2", "3") else 0
    for check in (lambda: run.parameters(zero), run.optimizer_in, lambda: run.fsdp(zero)):
        run.problems.of(check)
    run.sort()
    run.problems.tell()
    if settings.get(f"{_ZERO}mics_shard_size", -1) not in (-1, "auto"):
        run.unknown.append(f"{_ZERO}mics_shard_size")
    found = _options(settings)
    run.assumed += _given_otherwise(found, options, name)
    formats = {"bf16", "fp16"} if {"bf16", "fp16"} & options.keys() else set()
    found = {key: words for key, words in found.items() if key not in formats}
    return DeepSpeedAdds(found, tuple(run.assumed), tuple(f"{key} of {name}" for key in run.unknown))


def _given_otherwise(
    found: Mapping[str, tuple[str, ...]], options: Mapping[str, tuple[str, ...]], name: str
) -> list[str]:
    """Return sentences on numbers that the script gives otherwise.

    Batches of the script count: Megatron-DeepSpeed tells DeepSpeed its own in every step (``set_train_batch_size``,
    megatron/training.py), which starts by those of the configuration.  The stage is that of the configuration.
    """
    keys = {"global-batch-size": _BATCHES[0], "micro-batch-size": _BATCHES[1], "zero-stage": f"{_ZERO}stage"}
    told = []
    for option, key in keys.items():
        if option in found and option in options and options[option] != found[option]:
            script, own = (" ".join(words[option])[:20] for words in (options, found))
            pair = (f"--{option} {script} of the script", f"{key} {own} of {name}")
            counts, other = reversed(pair) if option in OF_THE_CONFIGURATION else pair
            told.append(f"{counts} counts, and not {other}")
    batch, micro = (int(found[option][0]) if option in found else 0 for option in list(keys)[:2])
    if micro and any("global-batch-size" in each for each in told):
        told.append(f"DeepSpeed starts on replicas that divide {batch // micro} alone, by {batch} / {micro} in {name}")
    return told


def _options(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return settings by Megatron-LM's names."""
    zero = settings.get(f"{_ZERO}stage")
    overlaps = bool(zero) and settings.get(f"{_ZERO}overlap_comm", zero == 3) is True
    names = {_BATCHES[0]: "global-batch-size", _BATCHES[1]: "micro-batch-size", f"{_ZERO}stage": "zero-stage"}
    names |= {f"{_ZERO}reduce_bucket_size": "ddp-bucket-size"} if overlaps and zero != 3 else {}
    found: dict[str, tuple[str, ...]] = {}
    for key, option in names.items():
        value = settings.get(key)
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(value, int) and not isinstance(value, bool):
            found[option] = (str(value),)
    on_host = settings.get(f"{_ZERO}offload_optimizer.device", "none") != "none"
    switches = {
        "bf16": settings.get("bf16.enabled") is True, "fp16": settings.get("fp16.enabled") is True,
        "grad-reduce-in-bf16": settings.get(_GRADIENTS) in ("bf16", "fp16"), "overlap-grad-reduce": overlaps,
        "overlap-param-gather": overlaps and zero == 3,
        "optimizer-cpu-offload": on_host or settings.get(f"{_ZERO}cpu_offload") is True,
    }  # fmt: skip
    return found | {option: () for option, on in switches.items() if on}


def scenario_from_deepspeed(
    text: str,
    *,
    cluster: Mapping[str, Any],
    model: Mapping[str, Any],
    gpus: int | None = None,
    available: int | None = None,
    launched: int | None = None,
    filled: Mapping[str, Any] | None = None,
    source: str = "<ds_config>",
) -> Imported:
    """Return the scenario of a configuration, for a model (the section of it) on so many GPUs, all of them replicas.

    ``gpus`` left out are those that the file's batch is for, those that its launcher starts where it says no number
    (``launched``), or all that are ``available``.  ``filled`` is what the program that reads the file puts in the place
    of ``auto``, by dotted name, and as formats that the file leaves out.
    Raises InputError with all keys that are not modelled or have no value that can be.
    """
    written = flattened(parse_toml_or_json(text, source, "JSON"), source)
    run = _Config(_filled(written, filled or {}, model), source)
    gpus = gpus or run.gpus_of_batch() or run.all_there(launched, available)
    training = run.problems.of(run.training, gpus)
    zero = run.problems.of(run.number, f"{_ZERO}stage", 0, 3) or 0
    memory, sharding = run.problems.of(run.offload, zero), run.problems.of(run.fsdp, zero)
    overlap = run.problems.of(run.overlap, zero, gpus)
    run.sort()
    if len(run.unknown) == len(written):
        what = "is not a configuration of DeepSpeed: it has none of its keys, such as train_batch_size or bf16"
        raise InputError(f"{source}: {what}; name the file that --deepspeed does, or import it by its own kind")
    run.problems.tell()
    narrow = run.settings.get(_GRADIENTS) in ("bf16", "fp16")
    if zero == 0 and training is not None and training["precision"] == "bf16-mixed" and not narrow:
        run.assumed.append(_SHARDED)
        zero, training = 1, {**training, "memory_recipe": "mixed-18"}
    document: dict[str, Any] = {"cluster": dict(cluster), "gpus": gpus, "model": dict(model)}
    document |= {"parallel": {"tp": 1, "pp": 1, "dp": gpus, "zero": zero}, "training": training}
    document |= {"memory": memory, "overlap": overlap, "fsdp": sharding}
    idle = (name for name in run.settings.unread if name in _MAPPED)
    return Imported(
        {key: value for key, value in document.items() if value}, run.settings.read, (*run.no_effect, *idle),
        tuple(run.assumed), unknown=tuple(run.unknown),
    ).accounted(written)  # fmt: skip


def _filled(settings: Mapping[str, Any], filled: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with what takes the place of ``auto``; a bucket of gradients is as transformers makes it."""
    width = (model_document(model["preset"]) if "preset" in model else model).get("hidden_size", 0)
    known = {f"{_ZERO}reduce_bucket_size": width * width or "auto", **filled}
    formats = {} if any(name.startswith(("bf16.", "fp16.", "bfloat16.")) for name in settings) else filled
    added = {name: value for name, value in formats.items() if name.endswith(".enabled") and value}
    return {name: known.get(name, value) if value == "auto" else value for name, value in settings.items()} | added


class _Config:
    """The settings of one file, by dotted name."""

    def __init__(self, settings: Mapping[str, Any], source: str) -> None:
        self.settings, self._source = Settings(settings), source
        self.problems = Problems(source)
        self.assumed: list[str] = []
        self.no_effect: list[str] = []
        self.unknown: list[str] = []

    def _error(self, name: str, message: str) -> InputError:
        return InputError(f"{self._source}: {name}: {message}")

    def number(self, name: str, least: int = 1, most: int = 10**9) -> int | None:
        """Return a whole number; None where it is not given or left to the trainer ("auto")."""
        value = self.settings.get(name)
        if value == "auto" and name not in _BATCHES:
            self.assumed.append(f"{name} is auto, which the program that reads the file decides; taken as not given")
        if value in (None, "auto"):
            return None
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int) or not least <= whole <= most:
            raise self._error(name, f"{shown(value)} is not a whole number from {least} to {most}")
        return whole

    def switch(self, name: str, default: bool = False) -> bool:
        value = self.settings.get(name, default)
        return value if isinstance(value, bool) else default

    def gpus_of_batch(self) -> int | None:
        """Return the GPUs that the file is for, where it gives all of batch = micro batch x accumulation x GPUs."""
        batch, micro, steps = (self.settings.get(name) for name in _BATCHES)
        each = micro * steps if isinstance(micro, int) and isinstance(steps, int) else 0
        if not isinstance(batch, int) or each < 1 or batch < each or batch % each:
            return None
        self.assumed.append(f"{batch // each} GPUs, as a batch of {batch} in {steps} x {micro} on each says")
        return batch // each

    def all_there(self, launched: int | None, available: int | None) -> int:
        """Return all GPUs that a launcher starts, or else of the cluster, where nothing says how many."""
        which = f"the {launched} GPUs that its launcher takes" if launched else "all GPUs of the cluster"
        self.assumed.append(f"{which}: how many there are to be is not said (--gpus says it)")
        return launched or available or 1

    def training(self, gpus: int) -> dict[str, Any]:
        """Return batch and number formats; of batch = micro batch x accumulation x GPUs two say the third."""
        batch, micro, steps = map(self.number, _BATCHES)
        if batch and not micro:
            micro = batch // (gpus * (steps or 1))
        if not batch:
            self.assumed += [] if micro and steps else [self._not_said(micro, steps)]
            micro = micro or 1
            batch = micro * (steps or 1) * gpus
        if not micro or batch % (micro * gpus) or (steps and batch != micro * steps * gpus):
            what = f"{batch} is not micro batch {micro or 0} x accumulation {steps or 1} x {gpus} GPUs"
            remedy = "give --gpus as many as there are, or change one of them"
            raise self._error("train_batch_size", f"{what}, and it must be; {remedy}")
        optimizer = str(self.settings.get("optimizer.type", "adam")).lower()
        if optimizer not in _ADAMS:
            raise self._error("optimizer.type", f"{optimizer[:40]!r} is not modelled; Adam and AdamW are")
        return {"global_batch": batch, "micro_batch": micro, **self._precision()}

    def _precision(self) -> dict[str, str]:
        on = [name for name in ("bf16", "bfloat16", "fp16") if self.switch(f"{name}.enabled")]
        auto = [name for name in ("bf16", "fp16") if self.settings.get(f"{name}.enabled") == "auto"]
        if not on and not auto:
            return {"precision": "fp32"}
        bf16 = bool({"bf16", "bfloat16"} & {*on}) or (auto[:1] == ["bf16"] and "fp16" not in on)
        half = "bf16-mixed" if bf16 else "fp16-mixed"
        if not on:
            given, are = " and ".join(f"{name}.enabled" for name in auto), "are" if len(auto) > 1 else "is"
            self.assumed.append(f"{half}: {given} {are} auto, which the program that reads the file decides")
        return {
            "precision": half, "memory_recipe": "mixed-18" if self.settings.get(_GRADIENTS) == "fp32" else "mixed-16"
        }  # fmt: skip

    def _not_said(self, micro: int | None, steps: int | None) -> str:
        """Return what is taken where the file leaves the batch, or a part of it, to the program that reads it."""
        auto = [name for name in _BATCHES if self.settings.get(name) == "auto"]
        why = f"{', '.join(auto)} {'is' if len(auto) == 1 else 'are'} left to the program that reads the file (auto)"
        each = f"{micro or 1} sequence{'s' * ((micro or 1) > 1)}, {steps or 1} a step and GPU"
        otherwise = "--set training.micro_batch=4 --set training.global_batch=256 say otherwise"
        return f"micro batches of {each}: {why if auto else 'the file does not say it'} ({otherwise})"

    def overlap(self, zero: int, gpus: int) -> dict[str, Any]:
        overlapped = self.switch(f"{_ZERO}overlap_comm", zero == 3) and gpus > 1
        found: dict[str, Any] = {"grad_reduce": overlapped, "param_gather": overlapped and zero == 3}
        bucket = self.number(f"{_ZERO}reduce_bucket_size")
        return found | ({"bucket_size": f"{2 * bucket} B"} if bucket and overlapped and zero < 3 else {})

    def fsdp(self, zero: int) -> dict[str, Any]:
        """Return shards in groups (MiCS); hpZ, whose gathers of the backward stay in a group, is taken as absent."""
        group = self.number(f"{_ZERO}mics_shard_size", -1)
        if (self.number(f"{_ZERO}zero_hpz_partition_size") or 1) > 1:
            self.assumed.append("parameters are gathered over all GPUs, though zero_hpz_partition_size is more than 1")
        return {"shard_group": group} if zero == 3 and group and group > 1 else {}

    def parameters(self, zero: int) -> None:
        """Raise InputError where the parameters are not on the GPUs, as they may be of stage 3."""
        if str(self.settings.get(f"{_ZERO}offload_param.device", "none")) == "none":
            return
        if zero == 3:
            what = "parameters in host memory or on disk are not modelled"
            raise self._error(f"{_ZERO}offload_param.device", what)
        self.assumed.append(f"{_ZERO}offload_param says nothing with stage {zero}: parameters are on the GPUs")

    def optimizer_in(self) -> str:
        """Return where the optimizer's state is, if not on the GPUs; InputError for disks."""
        device = str(self.settings.get(f"{_ZERO}offload_optimizer.device", "none"))
        if device == "nvme":
            raise self._error(f"{_ZERO}offload_optimizer.device", "nvme is not modelled; cpu is")
        if (part := self.settings.get(f"{_ZERO}offload_optimizer.ratio", 1)) != 1:
            raise self._error(f"{_ZERO}offload_optimizer.ratio", f"{shown(part)} is not modelled; 1 (all) is")
        return "cpu" if device != "none" or self.switch(f"{_ZERO}cpu_offload") else ""

    def offload(self, zero: int) -> dict[str, Any]:
        self.parameters(zero)
        if not self.optimizer_in():
            return {}
        self.assumed.append(HOST_UPDATE_ASSUMED)
        return {"offload": dict(HOST_UPDATE)}

    def sort(self) -> None:
        """Put every key that nothing above has read in its place."""
        for name, value in self.settings.items():
            section = name.partition(".")[0]
            switch = next((switch for switch in _SWITCHED if name.startswith(f"{switch}.")), "")
            refused = next((why for key, why in _REFUSED.items() if name.startswith(key)), None)
            if name in _MAPPED:
                continue
            if switch or section == "data_efficiency":
                if name == f"{switch}.enabled" and value is True:
                    self.assumed.append(f"{switch}: {_SWITCHED[switch]}")
                self.no_effect.append(name)
            elif refused and value not in (False, None, 0):
                self.problems.add(self._error(name, f"{refused}; take it out to import the rest"))
            elif name in _NOT_MODELLED:
                self.assumed.append(f"{name}: {_NOT_MODELLED[name]}")
            elif name in _NO_EFFECT or section in _NO_EFFECT_SECTIONS or name.startswith(f"{_ZERO}offload_") or refused:
                self.no_effect.append(name)
            else:
                self.unknown.append(name + guess(name, _MAPPED))
