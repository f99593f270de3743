"""Base class of optimizers (state, cost and traffic of an update), and DiLoCo's outer optimizer step.

An optimizer defines the bytes of its state, the cost and traffic of an update, and what it is not modelled with. All
methods have neutral defaults, those of Adam, which works on one element after the other: a kind of optimizer overrides
what differs.

A worker is a part of the replicas with separate gradients and optimizer. Every ``interval_steps`` steps each rank takes
what its part of the parameters has moved since they were last equal (a pseudo-gradient), the workers' are summed over
the axis "outer", and an outer optimizer with momentum (SGD, Nesterov's) makes the parameters from which all continue
(DiLoCo, arXiv:2311.08105). In ``parts``, one at a time, and overlapping with the next steps (``overlapped_steps``):
Streaming DiLoCo (arXiv:2501.18512). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, ClassVar, Self

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.kernels import Kernel
from simcluster.model.layer_kind import WeightMatrix
from simcluster.model.layers import layer_matrices, parameters
from simcluster.model.recipes import Recipe
from simcluster.model.transformer import Model
from simcluster.planning.ops import MAIN, Dependency, Op, WorkItem
from simcluster.planning.optimizer_registry import OPTIMIZERS
from simcluster.planning.owned_parameters import OwnedParameters
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Compute

OUTER_LANE = "outer"


@dataclass(frozen=True, slots=True)
class OuterOptimizerStep:
    """Schedule and cost of DiLoCo's outer optimizer step, which synchronizes workers that train separately.

    After step s part p of ``parts`` is summed if s + 1 is p x interval_steps / parts, modulo ``interval_steps``. A
    parameter has ``bytes_per_parameter`` on the wire; ``pass_seconds`` is the time of the passes over a number of
    parameters. The update is waited for at the end of the step that comes ``overlapped_steps`` later; with 0 at once.
    """

    interval_steps: int
    bytes_per_parameter: float
    parts: int
    overlapped_steps: int
    pass_seconds: Callable[[float], float]

    def count_due_parts(self, step: int) -> int:
        """Return how many parts of the parameters the DiLoCo workers synchronize after this step."""
        due = (step + 1) % self.interval_steps
        return -due * self.parts // self.interval_steps - -(due + 1) * self.parts // self.interval_steps

    def add_outer_step(self, lanes: ProgramBuilder, step: int, parameters: float, gathered: float) -> None:
        """Add DiLoCo's outer step after a training step, on a rank that holds N ``parameters``.

        Replicas that each hold all of them whole then gather ``gathered`` bytes of what the others updated.
        """
        share = self.count_due_parts(step) / self.parts
        if share:
            lane, needs = (OUTER_LANE, lanes.main_lane_end()) if self.overlapped_steps else (MAIN, ())
            calls = [("outer", parameters * self.bytes_per_parameter * share)]
            summed = lanes.collectives_segment("all_reduce", "pseudo_gradients", calls, lane)
            lanes.append_item(lane, WorkItem(summed, ("outer", step), needs, step))
        late = step - self.overlapped_steps
        share = self.count_due_parts(late) / self.parts if late >= 0 else 0.0
        if share:
            needs = (Dependency(lanes.stage, ("outer", late)),) if self.overlapped_steps else ()
            update = Op(Compute(self.pass_seconds(parameters * share)), "compute", "optimizer", "outer_optimizer")
            lanes.append_op(update, ("outer_optimizer", step), needs, step)
            if gathered:
                calls = [("dp", gathered * share)]
                gather = lanes.collectives_segment("all_gather", "outer_parameters", calls)
                lanes.append_item(MAIN, WorkItem(gather, ("outer_parameters", step), (), step))


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """Inputs of the cost of an optimizer update: model, rank grid, memory recipe and kernel times.

    A bucket of gradients has ``bucket_elements`` elements (infinite: there is one). ``pass_seconds`` is the time of a
    kernel that moves the given bytes, and ``matmul_seconds`` that of matmuls in 16 bits.
    """

    model: Model
    plan: ParallelPlan
    recipe: Recipe
    zero: int = 0
    bucket_elements: float = float("inf")
    pass_seconds: Callable[[float], float] = lambda size: 0.0
    matmul_seconds: Callable[[Sequence[Kernel]], float] = lambda kernels: 0.0

    def adam_seconds(self, elements: float) -> float:
        """Return the time (s) of Adam's update of N elements, without kernel launch overhead."""
        traffic = self.recipe.update_traffic
        return self.pass_seconds(2 * elements * traffic) - self.pass_seconds(elements * traffic)


@dataclass(frozen=True, slots=True)
class UpdateWork:
    """Work of an optimizer's update on a stage beyond that of an Adam update of all parameters.

    Collectives named ``collective_name`` come first, as (axis, bytes): ``calls`` of one ``kind``, and all-to-alls
    (``exchanges``). Then comes computation of ``seconds``, named ``kernel_name``; if that is negative, Adam's update is
    shorter.
    """

    seconds: float = 0.0
    kernel_name: str = "update"
    calls: tuple[tuple[str, float], ...] = ()
    kind: str = "all_gather"
    collective_name: str = "update"
    exchanges: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Optimizer:
    """Base class of optimizers, defined by differences from Adam: state bytes saved and update work added.

    ``MODELLED_WITH`` lists by field of a scenario the values that the optimizer is modelled with; the scenario rejects
    others by name. The default allows nothing that splits or moves the optimizer's state.
    """

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "parallel.zero": AllowedValues((0,)),
        "memory.offload.optimizer": AllowedValues(("none",)),
        "training.outer": AllowedValues((None,)),
        "training.trainable": AllowedValues((None,)),
    }

    job: UpdateContext

    @classmethod
    def from_training_section(cls, job: UpdateContext, training: Any) -> Self:
        """Create the optimizer of a job from the options in the section ``training`` of a scenario."""
        return cls(job)

    @classmethod
    def describe_state_difference(cls, recipe: Recipe) -> str:
        """Describe how the optimizer state differs from the memory recipe's; "" if there is no difference."""
        return ""

    def saved_bytes_of_matrix(self, matrix: WeightMatrix) -> float:
        """Return the bytes of Adam's state of a matrix that this optimizer does not store."""
        return 0.0

    def update_work(self, layers: Sequence[int]) -> UpdateWork:
        """Return the work of the update of these layers beyond that of an Adam update."""
        return UpdateWork()

    # --- what follows ---------------------------------------------------------------------------------------------

    def saved_state_bytes(self, layers: Sequence[int]) -> float:
        """Return the bytes of state that the fullest rank of a stage saves compared with Adam."""
        held = self.unneeded_adam_state(layers)
        return held.sharded_count(self.job.plan) if self.job.zero else held.total

    def unneeded_adam_state(self, layers: Sequence[int]) -> OwnedParameters:
        """Return the bytes of Adam's state that this optimizer does not store for these layers, without ZeRO."""
        found = OwnedParameters()
        if type(self).saved_bytes_of_matrix is Optimizer.saved_bytes_of_matrix:
            return found
        for held in self.held_matrices(layers):
            size = sum(each.count * self.saved_bytes_of_matrix(each) for each in held)
            apart = held[0].experts and self.job.plan.has_separate_expert_groups
            found += OwnedParameters(0.0, size) if apart else OwnedParameters(size)
        return found

    @property
    def unneeded_bytes_per_parameter(self) -> float:
        """Bytes of Adam's state that this optimizer does not store, per parameter of the whole model."""
        model = self.job.model
        return self.unneeded_adam_state(range(model.encoder_layers.stop)).total / parameters(model).total

    def held_matrices(self, layers: Iterable[int]) -> list[list[WeightMatrix]]:
        """Return a rank's weight matrices of these layers: a list of non-expert and a list of expert matrices."""
        model, plan = self.job.model, self.job.plan
        sizes = {"tp": plan.tp, "ep": plan.ep, "etp": plan.expert_tp}
        known = {model.layer_type(layer): layer for layer in layers}
        of_type = {name: layer_matrices(model, layer, **sizes) for name, layer in known.items()}
        held = [each for layer in layers for each in of_type[model.layer_type(layer)]]
        kinds = ([each for each in held if each.experts == experts] for experts in (False, True))
        return [mine for mine in kinds if mine]


class Adam(Optimizer):
    """Adam optimizer: two moments of every parameter, updated in one pass."""

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {}


_resolve = cache(resolve_name)


def get_optimizer_class(name: str) -> type[Optimizer]:
    """Return the optimizer class for a name such as "adam" or "muon"."""
    found: type[Optimizer] = _resolve(OPTIMIZERS[name])
    return found
