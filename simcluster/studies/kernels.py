"""Table of the kernels that one rank of a stage launches: matmul shape, FLOP, bytes and roofline limit.

Planning and the device's roofline alone; nothing is simulated. Matmuls that are cut into pieces to overlap with
communication (``overlap.tensor_pieces``) are listed whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import Records
from simcluster.devices.device import LOW_PRECISIONS, Device, kernel_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.model.adapters import shape_of_block, train_sections
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_block import embedding_block, lm_head_block, mtp_input_block
from simcluster.model.layers import RankShape, layer_kinds
from simcluster.model.quantization import weight_cast_kernels
from simcluster.model.transformer import Model
from simcluster.scenario.job_conversion import job_facts_of, job_of
from simcluster.scenario.memory_plan import shape_of
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario

PHASES = ("forward", "recompute", "input_grad", "weight_grad")
Roof = Literal["compute", "memory", "launch"]


@dataclass(frozen=True, slots=True)
class CountedSection:
    """A group of kernels in a model block (a section), with the number of layers that contain the group.

    ``once_per_step``: it runs once per step instead of once per microbatch.
    """

    block: str
    section: Section
    layers: int
    once_per_step: bool = False


@dataclass(frozen=True, slots=True)
class KernelRow(Displayable):
    """One kernel of a rank: its matmul shape (0 if it is not a matmul), FLOP, bytes and seconds.

    ``whole`` are m, k, n, batch of the same kernel of the unsplit model, None for a kernel without a shape or one that
    only the split needs. ``split`` is the rank's share: "column 1/8", "heads 1/8", "whole". ``seconds`` is one launch;
    ``launches`` are per step and rank. ``roof`` is the slowest resource at full rate, and ``of_roof`` the fraction of
    its rate that the kernel reaches.
    """

    block: str
    name: str
    phase: str
    kind: str
    m: int
    k: int
    n: int
    batch: int
    whole: tuple[int, int, int, int] | None
    split: str
    flops: float
    bytes: float
    seconds: float
    launches: int
    roof: Roof
    of_roof: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP per byte of device memory traffic."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def step_seconds(self) -> float:
        """Total seconds of all launches of this kernel in one step."""
        return self.seconds * self.launches

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready values, documented in CONTRACT.md under "Kernels"."""
        return {
            "block": self.block, "name": self.name, "phase": self.phase, "kind": self.kind,
            "m": self.m, "k": self.k, "n": self.n, "batch": self.batch,
            "whole": None if self.whole is None else dict(zip(("m", "k", "n", "batch"), self.whole, strict=True)),
            "split": self.split, "flops": self.flops, "bytes": self.bytes, "flops_per_byte": self.intensity,
            "seconds": self.seconds, "launches": self.launches, "step_s": self.step_seconds,
            "roof": self.roof, "of_roof": self.of_roof,
        }  # fmt: skip


@check_arguments
def kernels(scenario: ScenarioLike, stage: int = 0) -> Records[KernelRow]:
    """Return a row for each distinct kernel that a rank of this stage launches in a step, in model order.

    InputError for a stage that the job does not have.
    """
    scenario = to_scenario(scenario, "kernels")
    stages = scenario.parallel.pp
    if not 0 <= stage < stages:
        have = "stage 0" if stages == 1 else f"stages 0 to {stages - 1}"
        raise InputError(f"stage: {stage} does not exist; this job has {have}; use one of these")
    device, model = scenario.cluster.device, scenario.model
    job = job_of(scenario, device)
    passes = Counter(action.chunk for action in job.schedule.rows[stage] if action.kind == "F")
    attention = job_facts_of(scenario, device).attention
    shape = shape_of(scenario)
    alone = replace(shape, tp=1, cp=1, ep=1, etp=1, sequence_parallel=False)
    found: dict[tuple[str, str, str, Kernel], KernelRow] = {}
    for chunk, microbatches in sorted(passes.items()):
        part = job.slices.pass_over_slice(job.schedule.model_slice(stage, chunk))
        ends = part.embedding, part.lm_head
        both = zip(
            list_layer_sections(model, shape, part.layers, *ends),
            list_layer_sections(model, alone, part.layers, *ends),
            strict=True,
        )
        for here, unsplit in both:
            for phase in PHASES:
                wholes = {kernel.name: kernel for name in PHASES for kernel in getattr(unsplit.section, name)}
                for kernel in getattr(here.section, phase):
                    row = _make_kernel_row(here, phase, kernel, wholes, device, scenario, attention)
                    key = here.block, kernel.name, phase, kernel
                    past = found[key].launches if key in found else 0
                    found[key] = replace(row, launches=past + here.layers * (1 if here.once_per_step else microbatches))
    return Records(found.values())


def list_layer_sections(
    model: Model, shape: RankShape, layers: tuple[int, ...], embedding: bool, lm_head: bool
) -> list[CountedSection]:  # fmt: skip
    """Return the groups of kernels (sections) in these layers, embedding and LM head; equal layers share an entry."""
    found: list[CountedSection] = []

    def add_sections(name: str, kind: str, own: Model, parts: Sequence[Section], count: int) -> None:
        casts = weight_cast_kernels(shape, parts)
        found.extend([CountedSection(name, Section(casts), count, once_per_step=True)] if casts else [])
        found.extend(CountedSection(name, section, count) for section in train_sections(parts, kind, own, shape))

    def add_block(block: Block, count: int) -> None:
        add_sections(block.name, block.name, model, block.sections, count)

    ends = model.layer_model(0)
    if embedding:
        add_block(embedding_block(ends, shape), 1)
    shapes = shape.list_variants()

    def add_layers(layers: Iterable[int]) -> None:
        types = Counter((shape.layer_variant(layer), model.layer_type(layer)) for layer in layers)
        for (variant, layer_type), count in types.items():
            layer, _ = model.count_layer_types()[layer_type]
            for kind in layer_kinds(model, layer):
                word = f" ({layer_type[0]})" if layer_type[0] else ""
                own = model.layer_model(layer)
                parts = kind.sections(own, shape_of_block(kind.name, own, shapes[variant]))
                add_sections(kind.name + word, kind.name, own, parts, count)

    predicted = model.prediction_layers
    add_layers(layer for layer in layers if layer not in predicted)
    with_head = lm_head and not shape.separate_prediction
    if ahead := tuple(predicted if with_head else (layer for layer in layers if layer in predicted)):
        add_block(mtp_input_block(ends, shape), len(ahead))
        add_layers(ahead)
    if lm_head:
        add_block(lm_head_block(ends, shape), 1 + len(model.prediction_layers))
    return found


def _make_kernel_row(
    counted: CountedSection,
    phase: str,
    kernel: Kernel,
    unsplit: Mapping[str, Kernel],
    device: Device,
    scenario: Scenario,
    attention: float,
) -> KernelRow:
    precision = scenario.training.precision.removesuffix("-mixed")
    left = attention if kernel.kind == "attention" else 1.0  # fraction left by packed documents
    seconds = left * kernel_seconds(device, kernel, precision=precision)
    of_peak = "bf16" if kernel.keeps_16_bits and precision in LOW_PRECISIONS else precision
    ideal: dict[Roof, float] = {
        "compute": left * kernel.flops / device.peak_flops(of_peak),
        "memory": kernel.bytes / device.memory_bandwidth,
        "launch": device.launch,
    }
    roof = max(ideal, key=lambda name: ideal[name])
    whole = unsplit.get(kernel.name)
    base = kernel.name.removesuffix("_input_grad").removesuffix("_weight_grad")  # the matmul whose gradient it is
    parent = next((section for section in counted.section.forward if section.name == base and section.m), None)
    split = (
        _describe_split(kernel, whole)
        if parent is None or base not in unsplit
        else _describe_split(parent, unsplit[base])
    )
    return KernelRow(
        counted.block, kernel.name, phase, kernel.kind, kernel.m, kernel.k, kernel.n, kernel.batch,
        (whole.m, whole.k, whole.n, whole.batch) if whole is not None and whole.m else None,
        split, left * kernel.flops, kernel.bytes, seconds, 0, roof, min(1.0, ideal[roof] / seconds) if seconds else 1.0,
    )  # fmt: skip


def _describe_split(kernel: Kernel, unsplit: Kernel | None) -> str:
    if unsplit is None:
        return "for the split"
    if not kernel.m:
        return f"1/{unsplit.bytes / kernel.bytes:.3g}" if kernel.bytes < unsplit.bytes else "whole"
    parts = []
    of_batch = "experts" if kernel.name.startswith("experts") else "heads"
    of_n, of_k = ("keys", "width") if kernel.kind == "attention" else ("column", "row")
    for word, mine, there in (
        (of_batch, kernel.batch, unsplit.batch), (of_n, kernel.n, unsplit.n), (of_k, kernel.k, unsplit.k),
        ("tokens", kernel.m, unsplit.m),
    ):  # fmt: skip
        if mine < there:
            parts.append(f"{word} 1/{there / mine:.3g}")
        elif mine > there:
            parts.append(f"{word} x{mine / there:.3g}")
    return ", ".join(parts) or "whole"
