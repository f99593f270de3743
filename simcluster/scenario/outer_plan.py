"""Workers that train apart and meet every so many steps: the rules of the section, and what a job makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.devices.device import Device, memory_seconds
from simcluster.documents.diagnostics import Complaint, listed
from simcluster.documents.suggestions import near_divisors
from simcluster.model.recipes import Recipe
from simcluster.planning.outer_step import OuterUpdate

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields

STATE_BYTES = 8.0
"""An outer optimizer's bytes a parameter: where all were last equal, and the momentum, in fp32."""
_MADE = 4.0 + 4.0 + 4.0  # pseudo-gradient: read master and what it was, write the difference
_UPDATED = 4.0 + 2 * STATE_BYTES + 4.0  # read the sum, read and write the state, write the master copy


def workers_of(scenario: ScenarioFields) -> int:
    """How many workers train apart; 1 for none, or where it is not known."""
    outer, cluster = scenario.training.outer, scenario.cluster.built
    if outer is None:
        return 1
    if outer.workers is not None:
        return outer.workers
    if not cluster.machines_per_site or not scenario.gpus:
        return 1
    return len(dict.fromkeys(host // cluster.machines_per_site for host in cluster.host_of[: scenario.gpus]))


def outer_of(scenario: ScenarioFields, device: Device, recipe: Recipe) -> OuterUpdate | None:
    """What the scenario's job does every so many steps."""
    outer = scenario.training.outer
    if outer is None:
        return None
    traffic = _MADE + _UPDATED + recipe.gathered
    return OuterUpdate(
        outer.every, outer.bytes_per_parameter, outer.parts, outer.beside,
        lambda parameters: memory_seconds(device, parameters * traffic),
    )  # fmt: skip


def outer_state(scenario: ScenarioFields) -> float:
    """Bytes that the outer step keeps of each parameter that is a rank's, with a copy of what is sent beside steps."""
    outer = scenario.training.outer
    if outer is None:
        return 0.0
    return STATE_BYTES + (outer.bytes_per_parameter / outer.parts if outer.beside else 0.0)


def outer_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """There are workers, each whole on a site, and nothing else that changes what they are."""
    outer, parallel = scenario.training.outer, scenario.parallel
    where = ("training", "outer")
    if outer is None or not parallel.dp:
        return
    workers = workers_of(scenario)
    if workers < 2:
        what = "needs two workers or more, and the job is on one site" if outer.workers is None else "is one worker"
        yield (*where, "workers"), f"{what}; say how many train apart, as in workers: 2, or leave training.outer out"
    elif parallel.dp % workers:
        fix = listed(near_divisors(parallel.dp, workers))
        yield (*where, "workers"), f"{workers} do not divide dp {parallel.dp}; use {fix}"
    elif scenario.fsdp.shard_group and (parallel.dp * parallel.cp // workers) % scenario.fsdp.shard_group:
        what = f"fsdp.shard_group {scenario.fsdp.shard_group} does not divide a worker's replicas"
        yield (*where, "workers"), f"{what}; make it smaller"
    if outer.parts > outer.every:
        yield (*where, "parts"), f"{outer.parts} parts in {outer.every} steps; use {outer.every} or fewer"
    if outer.beside >= outer.every:
        yield (*where, "beside"), f"is {outer.beside}, and the next outer step comes after {outer.every}; use fewer"
    others = {
        "an offloaded optimizer (memory.offload.optimizer)": scenario.memory.offload.optimizer != "none",
        "Muon (training.optimizer)": scenario.training.optimizer == "muon",
        "a checkpoint in the step (checkpoint)": scenario.checkpoint is not None,
        "experts on ranks of their own (parallel.ep, etp)": scenario.model.moe is not None
        and (parallel.ep > 1 or parallel.etp not in (None, 0, parallel.tp)),
    }
    for name, there in others.items():
        if there:
            yield where, f"is not modelled with {name}; leave one of the two out"
    yield from _on_one_site(scenario, workers)


def _on_one_site(scenario: ScenarioFields, workers: int) -> Iterator[Complaint]:
    """Slowest on the grid is dp, so that workers lie one after the other."""
    order = scenario.parallel.order
    slower = [axis for axis in order[order.index("dp") + 1 :] if getattr(scenario.parallel, axis) > 1]
    if scenario.cluster.built.machines_per_site and workers > 1 and slower:
        yield (
            ("parallel", "order"),
            f"{listed(slower)} is slower than dp, so every worker is on all sites; set order to [tp, cp, pp, dp]",
        )
