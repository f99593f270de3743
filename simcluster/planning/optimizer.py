"""Base class of optimizers (state, cost and traffic of an update), and the outer step of DiLoCo workers.

An optimizer defines the bytes of its state, the cost and traffic of an update, and what it is not modelled with. All
methods have neutral defaults, those of Adam, which works on one element after the other: a kind of optimizer overrides
what differs.

A worker is a part of the replicas with separate gradients and optimizer. Every ``every`` steps each rank takes what its
part of the parameters has moved since they were last equal (a pseudo-gradient), the workers' are summed over the axis
"outer", and an outer optimizer with momentum (SGD, Nesterov's) makes the parameters from which all continue (DiLoCo,
arXiv:2311.08105). In ``parts``, one at a time, and overlapping with the next steps (``beside``): Streaming DiLoCo
(arXiv:2501.18512). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, ClassVar, Self

from simcluster.documents.kinds import AllowedValues
from simcluster.model.kernels import Kernel
from simcluster.model.layer_kind import WeightMatrix
from simcluster.model.layers import layer_matrices, parameters
from simcluster.model.recipes import Recipe
from simcluster.model.transformer import Model
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment
from simcluster.planning.optimizers import OPTIMIZERS
from simcluster.planning.owned_parameters import OwnedParameters
from simcluster.planning.parallel import Plan
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Compute

OUTER_LANE = "outer"


@dataclass(frozen=True, slots=True)
class OuterUpdate:
    """Schedule and cost of the outer optimizer step of DiLoCo workers, which train separately.

    After step s part p of ``parts`` is summed if s + 1 is p x every / parts, modulo ``every``. A parameter has
    ``bytes`` on the wire; ``seconds`` is the time of the passes over a number of parameters. The update is waited for
    at the end of the step that comes ``beside`` steps later; with 0 at once.
    """

    every: int
    bytes: float
    parts: int
    beside: int
    seconds: Callable[[float], float]

    def count_due_parts(self, step: int) -> int:
        """Return how many parts of the parameters are summed after a step; part p is due at p * every // parts."""
        due = (step + 1) % self.every
        return -due * self.parts // self.every - -(due + 1) * self.parts // self.every

    def add_outer_step(self, lanes: ProgramBuilder, step: int, parameters: float, gathered: float) -> None:
        """Add the outer step at the end of a step, on a rank with ``parameters`` of its DiLoCo worker.

        Replicas that each hold all of them whole then gather ``gathered`` bytes of what the others updated.
        """
        share = self.count_due_parts(step) / self.parts
        if share:
            lane = OUTER_LANE if self.beside else MAIN
            calls = [("outer", parameters * self.bytes * share)]
            summed = lanes.collectives("all_reduce", "pseudo_gradients", calls, lane)
            lanes.append_item(lane, Item(summed, ("outer", step), lanes.last_end() if self.beside else (), step))
        late = step - self.beside
        share = self.count_due_parts(late) / self.parts if late >= 0 else 0.0
        if share:
            needs = (Need(lanes.stage, ("outer", late)),) if self.beside else ()
            ops = (Op(Compute(self.seconds(parameters * share)), "compute", "optimizer", "outer_optimizer"),)
            lanes.append_item(MAIN, Item(Segment(ops), ("outer_optimizer", step), needs, step))
            if gathered:
                calls = [("dp", gathered * share)]
                gather = lanes.collectives("all_gather", "outer_parameters", calls)
                lanes.append_item(MAIN, Item(gather, ("outer_parameters", step), (), step))


@dataclass(frozen=True, slots=True)
class UpdateJob:
    """Model, rank grid and kernel times on which the cost of an optimizer's update depends.

    A bucket of gradients has ``bucket`` elements (infinite: there is one). ``pass_seconds`` is the time of a kernel
    that moves the given bytes, and ``matmul_seconds`` that of matmuls in 16 bits.
    """

    model: Model
    plan: Plan
    recipe: Recipe
    zero: int = 0
    bucket: float = float("inf")
    pass_seconds: Callable[[float], float] = lambda size: 0.0
    matmul_seconds: Callable[[Sequence[Kernel]], float] = lambda kernels: 0.0

    def adam_seconds(self, elements: float) -> float:
        """Return the time (s) of Adam's update of this many elements, without a kernel launch."""
        traffic = self.recipe.update_traffic
        return self.pass_seconds(2 * elements * traffic) - self.pass_seconds(elements * traffic)


@dataclass(frozen=True, slots=True)
class Update:
    """Work of an optimizer's update on a stage, in addition to Adam's update of all parameters.

    Collectives of one ``kind``, named ``called``, come first: ``calls`` of (axis, bytes). Then comes computation of
    ``seconds``, named ``name``; if that is negative, Adam's update is shorter.
    """

    seconds: float = 0.0
    name: str = "update"
    calls: tuple[tuple[str, float], ...] = ()
    kind: str = "all_gather"
    called: str = "update"


@dataclass(frozen=True)
class Optimizer:
    """Base class of optimizers, relative to Adam: bytes of state saved, and update work added.

    ``MODELLED_WITH`` lists by field of a scenario the values that the optimizer is modelled with; the scenario rejects
    others by name. The default allows nothing that splits or moves the optimizer's state.
    """

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "parallel.zero": AllowedValues((0,)),
        "memory.offload.optimizer": AllowedValues(("none",)),
        "training.outer": AllowedValues((None,)),
    }

    job: UpdateJob

    @classmethod
    def of(cls, job: UpdateJob, training: Any) -> Self:
        """Return the optimizer of a job with its options in the section ``training`` of a scenario."""
        return cls(job)

    @classmethod
    def state_in_words(cls, recipe: Recipe) -> str:
        """Describe how the optimizer state differs from the recipe's bytes per parameter; "" if it does not."""
        return ""

    def spared_by(self, matrix: WeightMatrix) -> float:
        """Return the bytes of Adam's state that the optimizer does not need for a matrix."""
        return 0.0

    def update(self, layers: Sequence[int]) -> Update:
        """Return the work of the update of a stage with these layers, in addition to Adam's."""
        return Update()

    # --- what follows ---------------------------------------------------------------------------------------------

    def spared(self, layers: Sequence[int]) -> float:
        """Return how many bytes less state than with Adam the fullest rank of a stage has."""
        held = self.unneeded(layers)
        return held.per_replica(self.job.plan) if self.job.zero else held.total

    def unneeded(self, layers: Sequence[int]) -> OwnedParameters:
        """Return the bytes of Adam's state that matrices of these layers do not need, on a rank that updates all."""
        found = OwnedParameters()
        if type(self).spared_by is Optimizer.spared_by:
            return found
        for held in self.held(layers):
            size = sum(each.count * self.spared_by(each) for each in held)
            apart = held[0].experts and self.job.plan.experts_apart
            found += OwnedParameters(0.0, size) if apart else OwnedParameters(size)
        return found

    @property
    def unneeded_per_parameter(self) -> float:
        """Bytes of Adam's state that the optimizer does not need, per parameter of the whole model."""
        model = self.job.model
        return self.unneeded(range(model.layers)).total / parameters(model).total

    def held(self, layers: Iterable[int]) -> list[list[WeightMatrix]]:
        """Return the weight matrices of layers on a rank, in order; experts' in a separate list at the end."""
        model, plan = self.job.model, self.job.plan
        sizes = {"tp": plan.tp, "ep": plan.ep, "etp": plan.expert_tp}
        known = {model.kinds(layer): layer for layer in layers}
        of_kind = {kind: layer_matrices(model, layer, **sizes) for kind, layer in known.items()}
        held = [each for layer in layers for each in of_kind[model.kinds(layer)]]
        kinds = ([each for each in held if each.experts == experts] for experts in (False, True))
        return [mine for mine in kinds if mine]


class Adam(Optimizer):
    """Adam optimizer: two moments of every parameter, updated in one pass."""

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {}


_resolve = cache(resolve_name)


def optimizer_class(word: str) -> type[Optimizer]:
    """Return the optimizer class of a name in ``OPTIMIZERS``."""
    found: type[Optimizer] = _resolve(OPTIMIZERS[word])
    return found
