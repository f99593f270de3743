"""Check whether a fast path (a quicker, exact computation) supports a scenario, by an allow-list of fields.

A fast path (a sweep's quick rows, replicas in one sweep, the search's bounds) gives what the engine gives, but only for
what was known when it was written. So it lists what it supports, field by field; any other field that a scenario sets
is an obstacle, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from simcluster.documents.base_spec import Spec
from simcluster.documents.field_annotations import ModelFromRegistry
from simcluster.model.kind_documents import BUILTIN_DOCUMENTS, CODED_KINDS
from simcluster.scenario.scenario import Scenario


class FieldLimit(NamedTuple):
    """Scenario field or section that a fast path supports only for certain values.

    ``reason`` explains why not with others ("": unknown to it); ``also_supported``: whether another value is supported
    as well, since other fields leave it without effect.
    """

    reason: str
    values: tuple[object, ...]
    also_supported: Callable[[Scenario], bool] = lambda scenario: False


FaultRule = Callable[[Any], str]
"""Function that returns why a fault is an obstacle; "" if it is not."""


@dataclass(frozen=True)
class FastPath:
    """A quicker way to compute a result, and the scenarios for which the result is proved exact.

    ``unrestricted`` fields may have any value, ``field_limits`` ones some (a section includes all below it), and
    ``fault_rules`` has a rule per kind of fault. Fields are dotted paths of ``STEP_FIELDS``.
    """

    name: str
    unrestricted: frozenset[str]
    field_limits: Mapping[str, FieldLimit]
    fault_rules: Mapping[str, FaultRule]

    def find_obstacle(self, scenario: Scenario) -> str:
        """Return why the fast path does not support the scenario; "" if it does.

        A field on no list must have its default, which is the behaviour before the field existed.
        """
        for path, limited in self.field_limits.items():
            if _field_value(scenario, path) not in limited.values and not limited.also_supported(scenario):
                return limited.reason or f"{self.name} does not support {path} {_field_value(scenario, path)}"
        for fault in scenario.faults:
            if fault.kind not in self.fault_rules:
                return f"{self.name} does not support faults of kind {fault.kind}"
            reason = self.fault_rules[fault.kind](fault)
            if reason:
                return reason
        for path in self.fields_without_rule:
            if _field_value(scenario, path) != STEP_FIELDS[path].get_default(call_default_factory=True):
                return f"{self.name} does not support {path}"
        return ""

    @cached_property
    def fields_without_rule(self) -> tuple[str, ...]:
        """Scenario fields that this fast path supports only at their default values."""
        return tuple(path for path in STEP_FIELDS if path not in self.unrestricted and not self._has_limit(path))

    def _has_limit(self, path: str) -> bool:
        return any(path == section or path.startswith(f"{section}.") for section in self.field_limits)


def parse_field_paths(text: str) -> frozenset[str]:
    """Parse lines such as "parallel: tp pp dp" into dotted paths such as parallel.tp."""
    found = []
    for line in text.strip().splitlines():
        section, colon, names = line.rpartition(":")
        found += [f"{section.strip()}.{name}" if colon else name for name in names.split()]
    assert len(found) == len({*found}), found
    return frozenset(found)


EVERYWHERE = parse_field_paths(
    """
    name gpus seed
    cluster: topology
    cluster.scale: flops memory memory_bandwidth launch nvlink network pcie between_machines latency
    model: name layers hidden_size heads vocab_size sequence_length gated_mlp kv_heads head_dim ffn_hidden_size
    model: tied_embeddings norm position bias causal vocab_multiple position_rows qk_norm layer_norms embedding_norm
    model: parallel_residual attention_window full_attention_every attention_chunk attention_sinks attention_gate
    model: clamped_activation values_from_keys logit_softcap residual_streams hash_routing
    training.trainable: rank modules dropout kernels exchange base_weights frozen frozen_layers
    model.mla: kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    model.mla.indexer: heads head_dim top_k
    parallel: tp pp dp cp_comm cp_inner cp_shares cp_states sequence_parallel order
    pipeline: chunks scatter_gather layout
    training: global_batch micro_batch precision recompute recompute_every attention dropout memory_recipe
    training: recompute_modules fp8_scaling layers_in_16_bits
    data: documents packing mask unique seed
    memory: fragmentation communication_buffers workspace library logits backward_temporaries activation_input
    overlap: tensor tensor_pieces pipeline bucket_size interference
    software: name kernel launch collective microbatch gap late loss piece kernels checkpoint accumulate optimizer
    software: gradients shards selective probabilities ring rope bias sync source
    software.experts: router router_dtype permute products padding bias clamp casts
    collectives: all_reduce reduce_scatter all_gather nccl
    measured: step_time tokens_per_s source changed
    """
)
"""Fields that may have any value in every fast path; tests compare each of them, varied, with the reference."""

ANY_JOB = parse_field_paths(
    """
    engine steps replicas
    model: mtp_layers mtp_pattern blocks pattern layer_types layer_kinds
    model.encoder: layers hidden_size heads ffn_hidden_size image_tokens tokens_per_image patches_per_token patch_values
    model.encoder: patch_bias position_rows gated_mlp norm attention_window full_attention_every deepstack split_by_tp
    model.moe: experts top_k expert_ffn_hidden_size shared_experts shared_ffn_hidden_size shared_gate latent_size
    model.moe: first_dense_layers every offset router_bias capacity_factor pad_to_capacity aux_loss groups top_groups
    model.moe: separate_norms
    parallel: cp zero ep etp
    parallel.expert_dispatch: kind sms dtype combine_dtype reach
    training: optimizer
    training.muon: iterations distribute tp_mode
    pipeline: schedule layers_per_stage p2p
    memory.offload: activations modules ahead optimizer bucket buffers host_update source
    overlap: grad_reduce param_gather experts pairs
    fsdp: unit_layers prefetch reshard_after_forward lanes shard_group sync_every_microbatch
    """
)
"""Additional fields that may have any value in fast paths on the ops of any job: folding, chains, a sweep of
replicas."""


def _has_proved_kinds(scenario: Scenario) -> bool:
    kinds = {kind for _, *names in scenario.model.count_layer_types() for kind in names}
    return kinds <= {*CODED_KINDS, *BUILTIN_DOCUMENTS, *(scenario.model.layer_kinds or {})}


PROVED_KINDS = FieldLimit("", (), _has_proved_kinds)
"""Limit of ``model.mixer``: only layers of kinds for which fast paths are proved."""


def _walk_fields(spec: type[Spec], before: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in spec.model_fields.items():
        registered = any(isinstance(each, ModelFromRegistry) for each in info.metadata)
        section = None if registered else _section_type(info.annotation)
        if section is None:
            yield f"{before}{name}", info
        else:
            yield from _walk_fields(section, f"{before}{name}.")


def _section_type(annotation: Any) -> type[Spec] | None:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    wanted = [part for part in parts if part is not NoneType]
    only = wanted[0] if len(wanted) == 1 else None
    return only if isinstance(only, type) and issubclass(only, Spec) else None


def _field_value(scenario: Scenario, path: str) -> Any:
    found: Any = scenario
    for name in path.split("."):
        if found is None:
            return STEP_FIELDS[path].get_default(call_default_factory=True) if path in STEP_FIELDS else None
        found = getattr(found, name)
    return found


_BESIDE = ("faults", "run")  # a run of weeks asks for steps, and changes none
STEP_FIELDS: Mapping[str, FieldInfo] = {
    path: info for path, info in _walk_fields(Scenario, "") if path.partition(".")[0] not in _BESIDE
}
"""Fields of a scenario that affect a step, by dotted path, without those of faults."""
