"""Import of a DeepSpeed configuration (JSON) as a scenario, or as Megatron-LM options.

``deepspeed.yaml`` in this folder maps, lists or refuses every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.flat_settings import flatten_settings, parse_toml_or_json
from simcluster.importers.import_result import ImportResult, SettingClassifier, TrackedSettings

_GRADIENTS = "data_types.grad_accum_dtype"
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_ZERO = "zero_optimization."
CONFIG_OPTIONS = ("zero-stage",)
"""Script options that the DeepSpeed configuration overrides."""
_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_MAPPED, _NO_EFFECT, _NO_EFFECT_SECTIONS, _ADAM_OPTIMIZERS = (
    frozenset(_TABLES[name].split()) for name in ("mapped", "no_effect", "no_effect_sections", "adams")
)
_NOT_MODELLED, _SWITCHED_SECTIONS, _REFUSED = (
    {name: said for said, names in _TABLES[table].items() for name in names.split()}
    for table in ("not_modelled", "switched", "refused")
)
_OPTIONS: dict[str, str] = {
    _BATCHES[0]: "global-batch-size", _BATCHES[1]: "micro-batch-size", f"{_ZERO}stage": "zero-stage"
}  # fmt: skip
_SHARDED_ASSUMPTION = (
    "optimizer state is sharded even with ZeRO stage 0, and gradients are summed in fp32, as DeepSpeed does with bf16"
)
HOST_UPDATE = {
    "optimizer": "host", "host_update": "109 GB/s",
    "source": "CPUAdam, 10 B parameters in 2.57 s on a DGX-2 (arXiv:2101.06840, table 4)",
}  # fmt: skip
"""``memory.offload`` for an optimizer that runs on the host CPU."""
HOST_UPDATE_ASSUMED = (
    "the host updates the optimizer state at 109 GB/s per node, as CPUAdam does on a DGX-2 "
    "(--set memory.offload.host_update=... changes the rate)"
)


@dataclass(frozen=True)
class DeepSpeedOptions:
    """A DeepSpeed configuration converted to Megatron-LM options, with the assumptions made and the unknown keys."""

    options: dict[str, tuple[str, ...]]
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def options_from_deepspeed(
    text: str, name: str, source: str, options: Mapping[str, tuple[str, ...]]
) -> DeepSpeedOptions:
    """Convert the DeepSpeed configuration of a Megatron-DeepSpeed script to Megatron-LM options.

    ``options`` are the script's. Raises InputError for settings that are refused in a configuration on its own, too.
    """
    try:
        settings = flatten_settings(parse_toml_or_json(text, source), source)
    except InputError:
        return DeepSpeedOptions({}, (f"the DeepSpeed configuration {name[:60]} is not read: it is not JSON",))
    run = _DeepSpeedSettings(settings, f"{source}: {name}")
    stage = str(settings.get(f"{_ZERO}stage", " ".join(options.get("zero-stage", ("0",)))))
    zero = int(stage) if stage in ("1", "2", "3") else 0
    on_host = run.problems.attempt(run.memory_section, zero)
    run.problems.attempt(run.fsdp_section, zero)
    run.assumed = [each for each in run.assumed if each != HOST_UPDATE_ASSUMED]  # noted for the script's option
    run.classify_all()
    run.problems.raise_all()
    if settings.get(f"{_ZERO}mics_shard_size", -1) not in (-1, "auto"):
        run.unknown.append(f"{_ZERO}mics_shard_size")
    overlaps = zero > 0 and f"{_ZERO}stage" in settings and settings.get(f"{_ZERO}overlap_comm", zero == 3) is True
    names = _OPTIONS | ({f"{_ZERO}reduce_bucket_size": "ddp-bucket-size"} if overlaps and zero != 3 else {})
    found: dict[str, tuple[str, ...]] = {}
    for key, option in names.items():
        value = settings.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
            found[option] = (str(int(value)),)
    # batches of the script count, as Megatron-DeepSpeed passes them to DeepSpeed in every step (set_train_batch_size,
    # megatron/training.py); the ZeRO stage is the configuration's
    for key, option in _OPTIONS.items():
        if option in found and option in options and options[option] != found[option]:
            script = f"--{option} {' '.join(options[option])[:20]} of the script"
            pair = script, f"{key} {found[option][0][:20]} of {name}"
            counts, other = reversed(pair) if option in CONFIG_OPTIONS else pair
            run.assumed.append(f"{counts} is used instead of {other}")
    formats = () if {"bf16", "fp16"} & options.keys() else ("bf16", "fp16")
    switches = {name: settings.get(f"{name}.enabled") is True for name in formats} | {
        "grad-reduce-in-bf16": settings.get(_GRADIENTS) in ("bf16", "fp16"), "overlap-grad-reduce": overlaps,
        "overlap-param-gather": overlaps and zero == 3, "optimizer-cpu-offload": bool(on_host),
    }  # fmt: skip
    found |= {option: () for option, on in switches.items() if on}
    return DeepSpeedOptions(found, tuple(run.assumed), tuple(f"{key} of {name}" for key in run.unknown))


def scenario_from_deepspeed(
    text: str, *, cluster: Mapping[str, Any], model: Mapping[str, Any], gpus: int | None = None,
    available: int | None = None, launched: int | None = None, auto_values: Mapping[str, Any] | None = None,
    source: str = "<ds_config>",
) -> ImportResult:  # fmt: skip
    """Return the scenario of data-parallel training of a model with a DeepSpeed configuration.

    ``gpus`` defaults to the GPUs that the file's batch implies, those that its launcher starts if it states no number
    (``launched``), or all that are ``available``. ``auto_values`` are the values that the program reading the file uses
    instead of ``auto``, by dotted name, and for formats that the file omits. Raises InputError listing all keys that
    are not modelled or have unusable values.
    """
    written = flatten_settings(parse_toml_or_json(text, source, "JSON"), source)
    run = _DeepSpeedSettings(_fill_auto_values(written, auto_values or {}, model), source)
    gpus = gpus or run.gpu_count_from_batch()
    if not gpus:
        which = f"the {launched} GPUs that its launcher uses" if launched else "all GPUs of the cluster"
        run.assumed.append(f"{which}: the number is not stated (--gpus sets it)")
        gpus = launched or available or 1
    training = run.problems.attempt(run.training_section, gpus)
    zero = run.problems.attempt(run.read_whole_number, f"{_ZERO}stage", 0, 3) or 0
    memory, sharding = run.problems.attempt(run.memory_section, zero), run.problems.attempt(run.fsdp_section, zero)
    overlap = run.problems.attempt(run.overlap_section, zero, gpus)
    run.classify_all()
    if len(run.unknown) == len(written):
        what = "is not a configuration of DeepSpeed: it has no DeepSpeed keys, such as train_batch_size or bf16"
        raise InputError(f"{source}: {what}; give the file that --deepspeed names, or import this file as another kind")
    run.problems.raise_all()
    narrow = run.settings.get(_GRADIENTS) in ("bf16", "fp16")
    if zero == 0 and training is not None and training["precision"] == "bf16-mixed" and not narrow:
        run.assumed.append(_SHARDED_ASSUMPTION)
        zero, training = 1, {**training, "memory_recipe": "mixed-18"}
    document: dict[str, Any] = {"cluster": dict(cluster), "gpus": gpus, "model": dict(model)}
    document |= {"parallel": {"tp": 1, "pp": 1, "dp": gpus, "zero": zero}, "training": training}
    document |= {"memory": memory, "overlap": overlap, "fsdp": sharding}
    idle = (name for name in run.settings.unread_names if name in _MAPPED)
    return ImportResult(
        {key: value for key, value in document.items() if value}, run.settings.read_names, (*run.no_effect, *idle),
        tuple(run.assumed), unknown=tuple(run.unknown),
    ).classify_all_settings(written)  # fmt: skip


def _fill_auto_values(given: Mapping[str, Any], filled: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Replace DeepSpeed settings of value ``auto`` by the values that the training program sets for them."""
    width = (load_model_entry(model["preset"]) if "preset" in model else model).get("hidden_size", 0)
    known = {f"{_ZERO}reduce_bucket_size": width * width or "auto", **filled}
    formats = {} if any(name.startswith(("bf16.", "fp16.", "bfloat16.")) for name in given) else filled
    added = {name: value for name, value in formats.items() if name.endswith(".enabled") and value}
    return {name: known.get(name, value) if value == "auto" else value for name, value in given.items()} | added


class _DeepSpeedSettings(SettingClassifier):
    def __init__(self, settings: Mapping[str, Any], source: str) -> None:
        super().__init__(source)
        self.settings = TrackedSettings(settings)

    def read_whole_number(self, name: str, minimum: int = 1, maximum: int = 10**9) -> int | None:
        """Return a setting's value as a whole number, or None if the setting is missing or ``auto``."""
        value = self.settings.get(name)
        if value == "auto" and name not in _BATCHES:
            self.assumed.append(f"{name} is 'auto', which the program that reads the file sets; treated as not given")
        if value in (None, "auto"):
            return None
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int) or not minimum <= whole <= maximum:
            raise self.error(name, f"{quote_value(value)} is not a whole number from {minimum} to {maximum}")
        return whole

    def gpu_count_from_batch(self) -> int | None:
        """Return the GPU count, batch / (micro batch x accumulation steps); None if any of these is unknown."""
        batch, micro, steps = (self.settings.get(name) for name in _BATCHES)
        each = micro * steps if isinstance(micro, int) and isinstance(steps, int) else 0
        if not isinstance(batch, int) or each < 1 or batch < each or batch % each:
            return None
        self.assumed.append(f"{batch // each} GPUs, from a batch of {batch} as {steps} x {micro} per GPU")
        return batch // each

    def training_section(self, gpus: int) -> dict[str, Any]:
        """Return the scenario's batch sizes and number formats, with defaults for missing batch sizes."""
        batch, micro, steps = map(self.read_whole_number, _BATCHES)
        if batch and not micro:
            micro = batch // (gpus * (steps or 1))
        if not batch:
            if not (micro and steps):
                auto = [name for name in _BATCHES if self.settings.get(name) == "auto"]
                are = "is" if len(auto) == 1 else "are"
                why = f"{', '.join(auto)} {are} left to the program that reads the file (auto)"
                self.assumed.append(
                    f"micro batches of {micro or 1} sequence{'s' * ((micro or 1) > 1)}, {steps or 1} per step and GPU: "
                    f"{why if auto else 'not stated in the file'} (--set training.micro_batch=4 "
                    "--set training.global_batch=256 change this)"
                )
            micro = micro or 1
            batch = micro * (steps or 1) * gpus
        if not micro or batch % (micro * gpus) or (steps and batch != micro * steps * gpus):
            what = f"{batch} must equal micro batch {micro or 0} x accumulation {steps or 1} x {gpus} GPUs"
            remedy = "set --gpus to the number of GPUs, or change a batch setting"
            raise self.error("train_batch_size", f"{what}; {remedy}")
        optimizer = str(self.settings.get("optimizer.type", "adam")).lower()
        if optimizer not in _ADAM_OPTIMIZERS:
            raise self.error("optimizer.type", f"{optimizer[:40]!r} is not modelled; use Adam or AdamW")
        return {"global_batch": batch, "micro_batch": micro, **self._precision_fields()}

    def _precision_fields(self) -> dict[str, str]:
        said = {name: self.settings.get(f"{name}.enabled") for name in ("bf16", "bfloat16", "fp16")}
        on = [name for name, value in said.items() if value is True]
        auto = [name for name, value in said.items() if value == "auto" and name != "bfloat16"]
        if not on and not auto:
            return {"precision": "fp32"}
        bf16 = bool({"bf16", "bfloat16"} & {*on}) or (auto[:1] == ["bf16"] and "fp16" not in on)
        half = "bf16-mixed" if bf16 else "fp16-mixed"
        if not on:
            given, are = " and ".join(f"{name}.enabled" for name in auto), "are" if len(auto) > 1 else "is"
            self.assumed.append(f"{half}: {given} {are} auto, which the program that reads the file resolves")
        wide = self.settings.get(_GRADIENTS) == "fp32"
        return {"precision": half, "memory_recipe": "mixed-18" if wide else "mixed-16"}

    def overlap_section(self, zero_stage: int, gpus: int) -> dict[str, Any]:
        """Return the scenario's ``overlap`` section, which states the communication that overlaps with compute."""
        said = self.settings.get(f"{_ZERO}overlap_comm", zero_stage == 3)
        overlapped = (said if isinstance(said, bool) else zero_stage == 3) and gpus > 1
        found: dict[str, Any] = {"grad_reduce": overlapped, "param_gather": overlapped and zero_stage == 3}
        bucket = self.read_whole_number(f"{_ZERO}reduce_bucket_size")
        return found | ({"bucket_size": f"{2 * bucket} B"} if bucket and overlapped and zero_stage < 3 else {})

    def fsdp_section(self, zero_stage: int) -> dict[str, Any]:
        """Return the scenario's ``fsdp`` section, with the group sizes of MiCS and hpZ."""
        sizes = {
            "shard_group": self.read_whole_number(f"{_ZERO}mics_shard_size", -1),
            "reshard_after_forward": self.read_whole_number(f"{_ZERO}zero_hpz_partition_size"),
        }
        return {name: size for name, size in sizes.items() if zero_stage == 3 and size and size > 1}

    def memory_section(self, zero_stage: int) -> dict[str, Any]:
        """Return the scenario's ``memory`` section; accept optimizer offload to host memory, refuse any other."""
        parameters, state = (
            str(self.settings.get(f"{_ZERO}offload_{what}.device", "none")) for what in ("param", "optimizer")
        )
        if parameters != "none" and zero_stage == 3:
            what = "parameters in host memory or on disk are not modelled; only the optimizer can be offloaded"
            raise self.error(f"{_ZERO}offload_param.device", what)
        if parameters != "none":
            self.assumed.append(f"{_ZERO}offload_param has no effect with ZeRO {zero_stage}: parameters stay on GPUs")
        if state == "nvme":
            raise self.error(f"{_ZERO}offload_optimizer.device", "nvme is not modelled; use cpu")
        if (part := self.settings.get(f"{_ZERO}offload_optimizer.ratio", 1)) != 1:
            raise self.error(f"{_ZERO}offload_optimizer.ratio", f"{quote_value(part)} is not modelled; use 1 (all)")
        if state == "none" and self.settings.get(f"{_ZERO}cpu_offload") is not True:
            return {}
        self.assumed.append(HOST_UPDATE_ASSUMED)
        return {"offload": dict(HOST_UPDATE)}

    def classify_all(self) -> None:
        """Classify every key that was not read as refused, modelled differently, without effect or unknown."""
        for name, value in self.settings.items():
            section = name.partition(".")[0]
            switch = next((switch for switch in _SWITCHED_SECTIONS if name.startswith(f"{switch}.")), "")
            within = bool(switch) or section == "data_efficiency"
            if name == f"{switch}.enabled" and value is True:
                self.assumed.append(f"{switch}: {_SWITCHED_SECTIONS[switch]}")
            if name not in _MAPPED:
                refused = next((why for key, why in _REFUSED.items() if name.startswith(key) and not within), "")
                said = "" if within else _NOT_MODELLED.get(name, "")
                idle = name in _NO_EFFECT or section in _NO_EFFECT_SECTIONS or name.startswith(f"{_ZERO}offload_")
                on = bool(said) or value not in (False, None, 0)
                self.classify(name, refused=refused, modelled=said, on=on, idle=within or idle, known=_MAPPED)
