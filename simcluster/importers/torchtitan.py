"""A scenario from a torchtitan job config: TOML, the JSON of one, or a function of a registry in Python.

Every key is mapped, listed as without effect or as unknown, or refused by name: ``torchtitan.yaml`` beside this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.catalogue.models import model_document
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.reading import read_document
from simcluster.importers.flat_settings import flattened, parse_toml_or_json
from simcluster.importers.imported import Imported, Problems, guess
from simcluster.importers.published_models import published_model
from simcluster.importers.split_points import layers_between
from simcluster.importers.torchtitan_registry import settings_of_registry
from simcluster.schedules import schedules_with

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_NO_EFFECT_SECTIONS, _NO_EFFECT, _MAY_MATTER, _FLOAT8, _MXFP8 = (
    frozenset(_TABLES[name].split()) for name in ("no_effect_sections", "no_effect", "may_matter", "float8", "mxfp8")
)
_DEFAULTS = flattened(_TABLES["defaults"], "torchtitan.yaml")
_RENAMED: dict[str, str] = _TABLES["renamed"]
_MODELS: dict[str, str] = _TABLES["models"]
_DEBUG_MODELS: dict[str, dict[str, Any]] = _TABLES["debug_models"]
_TWO_SLICES = ("zb-v", "dualpipe-v")  # a stage
_PRESET = re.compile(r"^#.*\bpreset for (\d{1,6}) [\w ]*GPUs?\b", re.MULTILINE | re.IGNORECASE)
_OF_CONVERTERS = ("float8.", "quantize.", "mx.")
_ROTATIONS: dict[str, str] = _TABLES["rotations"]
_SCHEDULES: dict[str, str] = _TABLES["schedules"]
_ALLOWED: dict[str, tuple[list[Any], str]] = _TABLES["allowed"]


def scenario_from_torchtitan(
    text: str,
    *,
    cluster: Mapping[str, Any],
    gpus: int | None = None,
    available: int | None = None,
    function: str = "",
    source: str = "<job config>",
) -> Imported:
    """The scenario of a job config on a cluster (as ``cluster`` stands in a scenario).

    Where data_parallel_shard_degree is -1, what is left, that is of ``gpus``, or of all that are ``available``.
    ``function`` is the name of a configuration in a registry.  Raises InputError with the names of all keys that are
    not modelled, for a model that is not known, and for text that is not TOML, JSON or Python.
    """
    if source.endswith(".py") or function:
        settings = settings_of_registry(text, source, function, tuple(name.split()[0] for name in _MODELS))
    else:
        settings = flattened(parse_toml_or_json(text, source), source)
    told = _PRESET.search(text)
    return _Job(settings, source, available, int(told[1]) if told else None).imported(dict(cluster), gpus)


class _Job:
    def __init__(
        self, settings: Mapping[str, Any], source: str, available: int | None = None, told: int | None = None
    ) -> None:
        self._source, self._available, self._told = source, available, told
        self._values = dict(_DEFAULTS)
        self._given: dict[str, str] = {}
        self._no_effect: list[str] = []
        self._assumed: list[str] = []
        self._unknown: list[str] = []
        self._problems = Problems(source)
        asked, converters = settings.get("float8.enable_float8_linear") is True, settings.get("model.converters")
        self._float8 = asked or (isinstance(converters, list) and any(str(name) in _FLOAT8 for name in converters))
        for name, value in settings.items():
            self._problems.of(self._sort, name, value)

    def _error(self, name: str, message: str) -> InputError:
        return InputError(f"{self._source}: {self._given.get(name, name)}: {message}")

    def _sort(self, name: str, value: Any) -> None:
        key = _RENAMED.get(name, name)
        if key.startswith(_OF_CONVERTERS) and (not self._float8 or ".mx." in f".{key}"):
            self._no_effect.append(name)  # of a converter that is not on, or which of MXFP8's kernels it takes
        elif key in _DEFAULTS:
            if key in self._given:
                raise self._error(name, f"is another name of {self._given[key]}, which is also given; keep one")
            self._given[key] = name
            self._values[key] = self._checked(key, value)
        elif key in _MAY_MATTER and value not in (None, "", [], False, True if key.endswith("early_stop") else None):
            raise self._error(name, f"{shown(value)} is not modelled; take it out to import the rest")
        elif key in _NO_EFFECT or key.partition(".")[0] in _NO_EFFECT_SECTIONS:
            self._no_effect.append(name)
        else:
            self._unknown.append(name + guess(name, _DEFAULTS))

    def _checked(self, key: str, value: Any) -> Any:
        """The value, of the kind of its default."""
        default = _DEFAULTS[key]
        if key.endswith("selective_ac_option") and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if key.endswith("split_points") and isinstance(value, list):
            value = ",".join(map(str, value))
        if isinstance(default, bool) != isinstance(value, bool) or not isinstance(value, type(default)):
            raise self._error(key, f"is {shown(value)}; {_kind(default)} is expected")
        if isinstance(default, int) and not isinstance(default, bool):
            least = default if default < 1 else 0 if "less_layers" in key else 1
            if not least <= value <= 10**9 or value == 0 > least:
                raise self._error(key, f"is {shown(value)}; a whole number{' from 1' * (least != 0)} is expected")
        known, said = _ALLOWED.get(key, ([value], ""))
        if value not in known:
            raise self._error(key, f"{shown(value)} {said}")
        return value

    def imported(self, cluster: dict[str, Any], gpus: int | None) -> Imported:
        """The whole scenario; InputError with all that stands against it."""
        model, split = self._problems.of(self._model), self._problems.of(self._parallel, gpus)
        parallel, fsdp = split or ({"tp": 1, "pp": self._values["parallelism.pipeline_parallel_degree"], "dp": 1}, {})
        dp = parallel["dp"]
        pipeline = self._problems.of(self._pipeline, parallel["pp"])
        training = self._problems.of(self._training, dp, parallel["pp"])
        self._problems.tell()
        gpus = parallel["tp"] * parallel["pp"] * parallel.get("cp", 1) * dp
        document: dict[str, Any] = {"cluster": cluster, "gpus": gpus, "model": model}
        document |= {"parallel": parallel, "pipeline": pipeline, "training": training, "fsdp": fsdp}
        replicas = dp * parallel.get("cp", 1)
        document["overlap"] = {"grad_reduce": replicas > 1, "param_gather": parallel["zero"] == 3}
        if self._is("parallelism.enable_async_tensor_parallel") and parallel["tp"] > 1:
            document["overlap"]["tensor_pieces"] = parallel["tp"]
        if f"{self._values['model.name']} {self._values['model.flavor']}" in _DEBUG_MODELS:
            self._assumed.append("the sizes of the debug model are those that it had longest; they changed at times")
        if self._is("optimizer.early_step_in_backward"):
            self._assumed.append("the optimizer steps behind the backward, though early_step_in_backward is set")
        compiled = self._is("compile.enable") or self._is("training.compile")
        document["software"] = "torch-compile" if compiled else "torch-eager"
        slices = parallel["pp"] * (document["pipeline"] or {}).get("chunks", 1)
        slices *= 1 + ((document["pipeline"] or {}).get("schedule") in _TWO_SLICES)
        cut = parallel["pp"] > 1 and "layers_per_stage" in document["pipeline"]
        if parallel["pp"] > 1 and not cut and self._layers(document["model"]) % slices:
            document["pipeline"]["layers_per_stage"] = "auto"
            self._assumed.append(f"the layers do not come out even on {slices} slices: cut by their times")
        document = {key: value for key, value in document.items() if value != {}}
        return Imported(
            document, tuple(self._given.values()), tuple(self._no_effect), tuple(self._assumed),
            unknown=tuple(self._unknown),
        )  # fmt: skip

    def _is(self, key: str) -> bool:
        return self._values[key] is True

    def _model(self) -> dict[str, Any]:
        name = f"{self._values['model.name']} {self._values['model.flavor']}"
        if name in _DEBUG_MODELS:
            return {"gated_mlp": True, **_DEBUG_MODELS[name], "sequence_length": self._values["training.seq_len"]}
        found = next((known for known in _MODELS if known.lower() == name.lower()), None)
        if found is None:
            raise self._error("model.flavor", f"{name} is not in the catalogue; known: {listed(_MODELS)}")
        return {**published_model(_MODELS[found]), "sequence_length": self._values["training.seq_len"]}

    def _parallel(self, gpus: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
        values = {key.partition(".")[2]: value for key, value in self._values.items() if key.startswith("parallelism.")}
        tp, pp = values["tensor_parallel_degree"], values["pipeline_parallel_degree"]
        cp = values["context_parallel_degree"]
        replicate, shard = values["data_parallel_replicate_degree"], values["data_parallel_shard_degree"]
        fixed = tp * pp * cp * replicate
        if shard == -1:
            if not gpus and self._told and self._told % fixed == 0:
                gpus = self._told
                self._assumed.append(f"{gpus} GPUs, as the note at the head of the file says")
            if not gpus and self._available:
                gpus = max(1, self._available // fixed) * fixed
                self._assumed.append(f"{gpus} GPUs, as the cluster has: the file does not say how many (--gpus does)")
            if not gpus:
                what = "is -1, what the GPUs leave over; say how many GPUs there are (--gpus), or the degree"
                raise self._error("parallelism.data_parallel_shard_degree", what)
            if gpus % fixed:
                what = f"{gpus} GPUs are no multiple of tensor x pipeline x context x replicate degrees = {fixed}"
                raise self._error("parallelism.data_parallel_shard_degree", what)
            shard = gpus // fixed
        elif gpus and fixed * shard != gpus:
            what = f"the degrees make {fixed * shard} GPUs, and {gpus} are asked for"
            raise self._error("parallelism.data_parallel_shard_degree", what)
        sharded = shard * cp  # FSDP shards over the ranks of both
        parallel: dict[str, Any] = {"tp": tp, "pp": pp, "dp": replicate * shard, "zero": 3 if sharded > 1 else 0}
        if tp > 1 and values["enable_sequence_parallel"]:
            parallel["sequence_parallel"] = True
        parallel |= self._context(cp) | self._experts(tp, sharded)
        if sharded > 1 and self._values["optimizer.name"] == "Muon":
            what = "Muon updates whole matrices, and is not modelled where FSDP cuts them"
            raise self._error("optimizer.name", f"{what}; it is with data_parallel_shard_degree 1, and AdamW is")
        fsdp: dict[str, Any] = {}
        reshard = values["fsdp_reshard_after_forward"]
        if sharded > 1 and (reshard == "never" or (reshard == "default" and pp > 1)):
            fsdp["reshard_after_forward"] = False
        if sharded > 1 and replicate > 1:
            fsdp["shard_group"] = sharded
        return parallel, fsdp

    def _context(self, cp: int) -> dict[str, Any]:
        way = self._values["parallelism.context_parallel_rotate_method"]
        return {"cp": cp, "cp_comm": _ROTATIONS[way]} if cp > 1 else {}

    def _experts(self, tp: int, sharded: int) -> dict[str, Any]:
        """Experts are whole on each rank where expert_tensor_parallel_degree is 1, its default."""
        ep, etp = (self._values[f"parallelism.expert_{what}parallel_degree"] for what in ("", "tensor_"))
        if ep == 1:
            return {}
        if sharded > 1:
            self._assumed.append(
                "the experts of a rank are sharded over the ranks of its shard group that hold the same, and gathered "
                "layer by layer"
            )
        return {"ep": ep, **({"etp": etp} if tp > 1 else {})}

    def _pipeline(self, pp: int) -> dict[str, Any]:
        if pp == 1:
            return {}
        csv = self._values["parallelism.pipeline_parallel_schedule_csv"]
        if csv:
            return {"schedule": csv}
        if self._values["parallelism.pipeline_parallel_layers_per_stage"]:
            key = "parallelism.pipeline_parallel_layers_per_stage"
            raise self._error(key, "is not modelled; write pipeline.chunks in the scenario instead")
        name = self._values["parallelism.pipeline_parallel_schedule"]
        known = _SCHEDULES.get(name.lower())
        if known is None:
            names = "1F1B, GPipe, Interleaved1F1B, LoopedBFS, ZBVZeroBubble, DualPipeV"
            what = f"{shown(name)} is not modelled; known: {names}"
            raise self._error("parallelism.pipeline_parallel_schedule", what)
        chunked = known in schedules_with("takes_chunks")
        if points := self._values["parallelism.pipeline_parallel_split_points"]:
            try:
                cut = layers_between(points, self._layers(self._model()), pp, several=chunked or known in _TWO_SLICES)
            except InputError as problem:
                raise self._error("parallelism.pipeline_parallel_split_points", str(problem)) from None
            return {"schedule": known, **({"chunks": len(cut) // pp} if chunked else {}), "layers_per_stage": cut}
        self._assumed.append("layers even on the stages: torchtitan gives the first and the last one less, by default")
        return {"schedule": known, **({"chunks": 2} if chunked else {})}

    def _training(self, dp: int, pp: int) -> dict[str, Any]:
        values = self._values
        local, batch = values["training.local_batch_size"], values["training.global_batch_size"]
        micro = values["parallelism.pipeline_parallel_microbatch_size"] if pp > 1 else local
        parts = values["parallelism.pipeline_parallel_microbatches"]  # of the oldest versions
        if parts and pp > 1 and local % parts == 0:
            micro = local // parts
        return {
            "global_batch": local * dp if batch == -1 else batch,
            "micro_batch": micro,
            **self._precision(),
            **self._recompute(),
            **({"optimizer": "muon"} if self._values["optimizer.name"] == "Muon" else {}),
        }

    def _precision(self) -> dict[str, Any]:
        param, reduce = (self._values[f"training.mixed_precision_{what}"] for what in ("param", "reduce"))
        converters = self._values["model.converters"] or ["float8"] * self._is("float8.enable_float8_linear")
        strange = [name for name in converters if name not in _FLOAT8 | _MXFP8]
        if strange:
            raise self._error("model.converters", f"{shown(strange[0])} is not modelled; float8 and mx are")
        if param == "float32":
            if converters:
                raise self._error("model.converters", "float8 needs mixed_precision_param bfloat16")
            return {"precision": "fp32"}
        if self._is("float8.enable_fsdp_float8_all_gather") and converters:
            self._assumed.append("parameters are gathered in 16 bits, though enable_fsdp_float8_all_gather is set")
        recipe = "fp32-16" if reduce == "float32" else "mixed-16"
        if self._values["training.dtype"] == "bfloat16":
            recipe = "bf16-8"
        narrow = "mxfp8-mixed" if _MXFP8 & set(converters) else "fp8-mixed"
        return {"precision": narrow if converters else "bf16-mixed", "memory_recipe": recipe}

    def _recompute(self) -> dict[str, Any]:
        mode = self._values["activation_checkpoint.mode"]
        option = self._values["activation_checkpoint.selective_ac_option"]
        if mode in ("none", "full"):
            return {"recompute": mode}
        if option == "op":
            return self._operators()
        if not option.isdecimal() or len(option) > 9 or int(option) < 1:
            raise self._error(
                "activation_checkpoint.selective_ac_option", f"{shown(option)} is neither op nor a number"
            )
        return {"recompute": "full", **({"recompute_every": int(option)} if int(option) > 1 else {})}

    def _layers(self, model: Mapping[str, Any]) -> int:
        return int((model_document(model["preset"]) if "preset" in model else model)["layers"])

    def _operators(self) -> dict[str, Any]:
        """Every second product again, which is modelled for plain layers."""
        model = self._problems.of(self._model) or {}
        name = model.get("preset")
        fields = model_document(name) if name else model
        if not {"moe", "mla"} & fields.keys():
            return {"recompute": "operators"}
        self._assumed.append(
            "every second layer is run again, nearest to the op-selective checkpointing of layers that are not plain"
        )
        return {"recompute": "full", "recompute_every": 2}


def _kind(default: object) -> str:
    if isinstance(default, bool):
        return "true or false"
    return {int: "a whole number", str: "a text", list: "a list of texts"}[type(default)]
