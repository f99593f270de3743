"""Import of a torchtitan job config (TOML, JSON or a Python config registry) as a scenario.

``torchtitan.yaml`` in this folder maps every key, lists it as without effect or unknown, or refuses it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.diagnostics import join_or, quote_value
from simcluster.importers.flat_settings import flatten_settings, parse_toml_or_json
from simcluster.importers.framework_files import is_primus_file, read_primus_titan_settings
from simcluster.importers.import_result import FileReader, ImportResult, read_no_file
from simcluster.importers.named_models import published_model_section
from simcluster.importers.process_counts import count_visible_gpus
from simcluster.importers.python_recipes import NO_ARGUMENTS
from simcluster.importers.torchtitan_settings import TABLES, TorchtitanSettings, is_known_setting
from simcluster.importers.torchtitan_sources import read_job_script, read_registry_function
from simcluster.importers.training_logs import parse_printed_torchtitan
from simcluster.schedules import schedules_with

_MODELS: dict[str, str] = TABLES["models"]
_REINFORCEMENT_SECTIONS = frozenset(TABLES["reinforces"].split())
_AXES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel_replicate")
_DISPATCH_BACKENDS = ("deepep", "hybridep")
_TWO_SLICE_SCHEDULES = ("zb-v", "dualpipe-v")  # per stage
_PRESET_NOTE = re.compile(r"^#.*\bpreset for (\d{1,6}) [\w ]*GPUs?\b", re.MULTILINE | re.IGNORECASE)
_KERNEL_FLAVOR = re.compile(r"_(flex|varlen)(_attn)?$")  # flavors named after a kernel: 8B_flex, debugmodel_varlen_attn


def scenario_from_torchtitan(
    text: str, *, cluster: Mapping[str, Any], gpus: int | None = None, available: int | None = None, function: str = "",
    read_file: FileReader = read_no_file, given: Mapping[str, str] = NO_ARGUMENTS, gpus_per_node: int | None = None,
    sequence_length: int | None = None, source: str = "<job config>",
) -> ImportResult:  # fmt: skip
    """Return the scenario for a torchtitan job config on a cluster.

    A data_parallel_shard_degree of -1 takes what the other degrees leave of ``gpus``, or of all that are ``available``.
    ``function`` is the name of a configuration in a registry, which ``sequence_length`` is for, and ``read_file`` gives
    the text of a file next to it. ``given`` are values of a script's variables. Raises InputError with the names of all
    keys that are not modelled, for a model that is not known, and for text that is not TOML, JSON or Python.
    """
    preset = _PRESET_NOTE.search(text)
    started = (int(preset[1]), "as noted at the head of the file") if preset else None
    assumed: tuple[str, ...] = ()
    if text.startswith("#!") or source.endswith(".sh"):
        job_started = read_job_script(text, source, read_file, given, count_visible_gpus(gpus, gpus_per_node))
        settings, assumed = job_started.settings, job_started.assumed
        started = (job_started.gpus, "started by its script") if job_started.gpus else None
    elif is_primus_file(text):
        settings = read_primus_titan_settings(text, source, read_file, is_known_setting)
    elif source.endswith(".py") or function:
        families = tuple(name.split()[0] for name in _MODELS)
        settings = read_registry_function(text, source, function, families, sequence_length)
    elif printed := parse_printed_torchtitan(text, source):
        settings = _flatten_printed_config(printed, source)
    else:
        flatten = _flatten_printed_config if text.lstrip().startswith("{") else flatten_settings
        settings = flatten(parse_toml_or_json(text, source), source)
    if section := next((name for name in settings if name.partition(".")[0] in _REINFORCEMENT_SECTIONS), ""):
        what = "is reinforcement learning; only pre-training steps are modelled"
        raise InputError(f"{source}: [{section.partition('.')[0]}] {what}")
    job = _TorchtitanJob(settings, source)
    job.assumed += assumed
    if settings.get("fault_tolerance.enable") is True:
        job.assumed.append("one replica group: fault-tolerant averaging between groups is not modelled")
    return job.build_result(dict(cluster), gpus, started, available)


def _flatten_printed_config(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    plain = {name.replace("model_spec.", "model."): value for name, value in flatten_settings(data, source).items()}
    none = {"activation_checkpoint.mode": "none"} if data.get("activation_checkpoint", {}) is None else {}
    on = {name: value for name, value in plain.items() if value is not None and (value or is_known_setting(name))}
    return none | on


class _TorchtitanJob(TorchtitanSettings):
    def build_result(
        self, cluster: dict[str, Any], gpus: int | None, started: tuple[int, str] | None, available: int | None
    ) -> ImportResult:
        """Build the job's scenario; raise one InputError that lists all problems."""
        if self.unknown and len(self.unknown) == len(self.written_names):
            what = "is not a job config of torchtitan: it has no torchtitan keys, such as training.seq_len"
            raise InputError(f"{self.source}: {what}; give the TOML file that torchtitan is started with")
        model = self.problems.attempt(self._model_section)
        split = self.problems.attempt(self._parallel_sections, gpus, started, available)
        sizes = load_model_entry(model["preset"]) if model and "preset" in model else model or {}
        parallel, fsdp = split or (
            {"tp": 1, "pp": self.values["parallelism.pipeline_parallel_degree"], "dp": 1, "zero": 0},
            {},
        )
        pipeline = self.problems.attempt(self._pipeline_section, parallel["pp"], sizes)
        training = self.problems.attempt(self._training_section, parallel, plain=not {"moe", "mla"} & sizes.keys())
        self.problems.raise_all()
        if parallel["zero"] == 3 and model and (predicted := model.pop("mtp_layers", 0)):
            layers = f"{predicted} layer{'s' * (predicted > 1)} of multi-token prediction"
            self.assumed.append(f"without {layers}, which is not modelled with FSDP")
        replicas = parallel["dp"] * parallel.get("cp", 1)
        overlap: dict[str, Any] = {"grad_reduce": replicas > 1, "param_gather": parallel["zero"] == 3}
        if self.is_on("parallelism.enable_async_tensor_parallel") and parallel["tp"] > 1:
            overlap["tensor_pieces"] = parallel["tp"]
        if self.is_on("optimizer.early_step_in_backward"):
            self.assumed.append("the optimizer steps after the backward, although early_step_in_backward is set")
        blocks = self.is_on("compile.enable") and "model" in self.values["compile.components"]
        document: dict[str, Any] = {
            "cluster": cluster, "gpus": parallel["tp"] * parallel["pp"] * replicas, "model": model,
            "parallel": parallel, "pipeline": pipeline, "training": training, "fsdp": fsdp, "overlap": overlap,
            "software": "torch-compile" if blocks or self.is_on("training.compile") else "torch-eager",
        }  # fmt: skip
        idle = [name for key, name in self.given.items() if key in self.values.unread_names]
        read = [name for name in self.given.values() if name not in idle]
        return ImportResult(
            {key: value for key, value in document.items() if value != {}}, tuple(read), (*self.no_effect, *idle),
            tuple(dict.fromkeys(self.assumed)), unknown=tuple(self.unknown),
        ).classify_all_settings(self.written_names)  # fmt: skip

    def _model_section(self) -> dict[str, Any]:
        family, flavor = self.values["model.name"], self.values["model.flavor"]
        more: dict[str, Any] = {"sequence_length": self.values["training.seq_len"]}
        if self.values["model.num_mtp_layers"]:
            more["mtp_layers"] = self.values["model.num_mtp_layers"]
        if against := TABLES["no_decoders"].get(family):
            raise self.error("model.name", f"the model {family} {against}, which is not modelled")
        plain = _KERNEL_FLAVOR.sub("", flavor)
        name = f"{family} {plain}"
        found = next((known for known in _MODELS if known.lower() == name.lower()), None)
        masks = plain != flavor or found in TABLES["masked"]
        if masks or self.values["model.attn_backend"] in TABLES["masking_backends"].split():
            what = "each sequence is one document, although attention is masked per document (block_causal)"
            self.assumed.append(what)
        debug = TABLES["debug_models"].get(name)
        if family in ("llama", "llama2") and not debug:  # the job takes the vocabulary of its tokenizer
            self.assumed.append("a vocabulary of 32000 tokens, as in Llama 2's tokenizer")
        if found:
            return {**published_model_section(_MODELS[found]), **more}
        sizes = debug or TABLES["own_models"].get(name)
        if not sizes:
            near = [known for known in _MODELS if known.startswith(f"{family} ")]
            of = "one of" if near else "a model of"
            near = near or list(dict.fromkeys(known.split()[0] for known in _MODELS))
            what = f"{family} {flavor} is not in the catalogue; take {of} {join_or(near)}"
            raise self.error("model.flavor", f"{what}, and change its sizes, as in --set model.layers=34")
        if debug:
            self.assumed.append("the debug model has its most common sizes; they changed between versions")
        return {"gated_mlp": True, **sizes, **more}

    def _fsdp_shard_degree(
        self, gpus: int | None, others: int, started: tuple[int, str] | None, available: int | None
    ) -> int:
        """Return the FSDP shard degree: the stated one, or the GPU count divided by all other degrees."""
        key = "parallelism.data_parallel_shard_degree"
        shard: int = self.values[key]
        if shard != -1:
            if gpus and others * shard != gpus:
                raise self.error(key, f"the degrees need {others * shard} GPUs, but {gpus} are requested")
            return shard
        if not gpus and started and started[0] % others == 0:
            gpus, who = started
            self.assumed.append(f"{gpus} GPUs, {who}")
        if not gpus and available:
            gpus = max(1, available // others) * others
            self.assumed.append(f"{gpus} GPUs of the cluster: the number is not stated (--gpus sets it)")
        if not gpus:
            what = "is -1 (all GPUs that other degrees leave), and the GPU count is unknown; give --gpus, or the degree"
            raise self.error(key, what)
        if gpus % others:
            what = f"{gpus} GPUs are not divisible by tensor x pipeline x context x replicate degrees = {others}"
            raise self.error(key, what)
        return gpus // others

    def _parallel_sections(
        self, gpus: int | None, started: tuple[int, str] | None, available: int | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        tp, pp, cp, replicate = (self.values[f"parallelism.{axis}_degree"] for axis in _AXES)
        shard = self._fsdp_shard_degree(gpus, tp * pp * cp * replicate, started, available)
        sharded = shard * cp > 1
        parallel: dict[str, Any] = {"tp": tp, "pp": pp, "dp": replicate * shard, "zero": 3 if sharded else 0}
        if tp > 1 and self.values["parallelism.enable_sequence_parallel"]:
            parallel["sequence_parallel"] = True
        if cp > 1:
            way = TABLES["rotations"][self.values["parallelism.context_parallel_rotate_method"]]
            parallel |= {"cp": cp, "cp_comm": way}
        parallel |= self._expert_fields(tp, sharded=sharded)
        if not sharded:
            return parallel, {}
        if self.values["optimizer.name"] == "Muon":
            what = "Muon updates whole matrices, and is not modelled with FSDP, which shards them"
            raise self.error("optimizer.name", f"{what}; use data_parallel_shard_degree 1, or AdamW")
        reshard = self.values["parallelism.fsdp_reshard_after_forward"]
        fsdp: dict[str, Any] = {}
        if reshard == "never" or (reshard == "default" and pp > 1):
            fsdp["reshard_after_forward"] = False
        if pp > 1:  # torch.distributed.pipelining defers the reduction (stage.py, backward_maybe_with_nosync)
            fsdp["sync_every_microbatch"] = False
        if replicate > 1:
            fsdp["shard_group"] = shard * cp
        return parallel, fsdp

    def _expert_fields(self, tp: int, *, sharded: bool) -> dict[str, Any]:
        ep, etp = (self.values[f"parallelism.expert_{what}parallel_degree"] for what in ("", "tensor_"))
        if ep == 1:
            return {}
        if sharded:
            self.assumed.append(
                "experts are sharded over the ranks of a shard group that hold the same experts, and gathered "
                "layer by layer"
            )
        way = self.values["parallelism.expert_parallel_comm_backend"]
        if way not in ("standard", *_DISPATCH_BACKENDS):
            self.assumed.append(f"tokens go to experts by all-to-alls, although the backend is {way}")
        dispatch = {"expert_dispatch": {"kind": way}} if way in _DISPATCH_BACKENDS else {}
        return {"ep": ep, **({"etp": etp} if tp > 1 else {}), **dispatch}

    def _pipeline_section(self, pp: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
        if pp == 1:
            return {}
        if csv := self.values["parallelism.pipeline_parallel_schedule_csv"]:
            return {"schedule": csv}
        if self.values["parallelism.pipeline_parallel_layers_per_stage"]:
            key = "parallelism.pipeline_parallel_layers_per_stage"
            raise self.error(key, "is not modelled; write pipeline.chunks in the scenario instead")
        name = self.values["parallelism.pipeline_parallel_schedule"]
        known = TABLES["schedules"].get(name.lower())
        if known is None:
            what = "is not modelled; known: 1F1B, GPipe, Interleaved1F1B, LoopedBFS, ZBVZeroBubble, DualPipeV"
            raise self.error("parallelism.pipeline_parallel_schedule", f"{quote_value(name)} {what}")
        chunks = {"chunks": 2} if known in schedules_with("takes_chunks") else {}
        by = "by default torchtitan gives the first and last stage fewer"
        if self.values["parallelism.pipeline_parallel_split_points"]:
            by = "pipeline_parallel_split_points is not read (--set pipeline.layers_per_stage=[8,8] sets them)"
        self.assumed.append(f"layers are evenly divided over stages: {by}")
        slices = pp * chunks.get("chunks", 1) * (1 + (known in _TWO_SLICE_SCHEDULES))
        if not sizes or sizes["layers"] % slices == 0:
            return {"schedule": known, **chunks}
        self.assumed.append(f"the layers are not divisible by {slices} slices: split by layer times")
        return {"schedule": known, **chunks, "layers_per_stage": "auto"}

    def _training_section(self, parallel: Mapping[str, Any], *, plain: bool) -> dict[str, Any]:
        """Return batch, precision and recompute settings; ``plain`` means a dense model without latent attention."""
        values, dp, pp = self.values, parallel["dp"], parallel["pp"]
        local, batch = values["training.local_batch_size"], values["training.global_batch_size"]
        micro = values["parallelism.pipeline_parallel_microbatch_size"] if pp > 1 else local
        if values["training.num_tokens_per_microbatch_per_dp_rank"]:  # batches in tokens since 2026
            micro = self._tokens_to_sequences("training.num_tokens_per_microbatch_per_dp_rank")
            local = micro * (values["parallelism.num_pp_microbatches"] if pp > 1 else 1)
            if values["training.num_tokens_per_train_step"] != -1:
                batch = self._tokens_to_sequences("training.num_tokens_per_train_step")
        parts = values["parallelism.pipeline_parallel_microbatches"]  # key of 2024
        if parts and pp > 1 and local % parts == 0:
            micro = local // parts
        return {
            "global_batch": local * dp if batch == -1 else batch, "micro_batch": micro,
            **self.precision_fields(parallel), **self._recompute_fields(plain=plain),
            **({"optimizer": "muon"} if self.values["optimizer.name"] == "Muon" else {}),
        }  # fmt: skip

    def _tokens_to_sequences(self, key: str) -> int:
        tokens, length = self.values[key], self.values["training.seq_len"]
        if tokens % length:
            raise self.error(key, f"{tokens} is not divisible by training.seq_len = {length}")
        return int(tokens // length)

    def _recompute_fields(self, *, plain: bool) -> dict[str, Any]:
        mode, option = (self.values[f"activation_checkpoint.{what}"] for what in ("mode", "selective_ac_option"))
        if mode in ("none", "full"):
            return {"recompute": mode}
        if option == "op" and plain:  # every second matmul
            return {"recompute": "operators"}
        if option == "op":
            what = "selective_ac_option op is not modelled with MoE or latent attention"
            self.assumed.append(f"every second layer is recomputed, the nearest: {what}")
            option = "2"
        if not option.isdecimal() or len(option) > 9 or int(option) < 1:
            what = f"{quote_value(option)} is neither op nor a number"
            raise self.error("activation_checkpoint.selective_ac_option", what)
        return {"recompute": "full", **({"recompute_every": int(option)} if int(option) > 1 else {})}
