"""Scenario changes that may shorten a step or save memory, each with its simulated result.

Candidates are guesses by the causes of a long step, most promising first; only simulation decides
(``studies.whatif.check_launch``), and rules of a scenario may reject them. Each lists all values that it changes, so
that a command with them gives the same.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from simcluster.base.errors import InputError
from simcluster.documents.suggestions import divisors
from simcluster.results.result import Result
from simcluster.scenario.effort_estimate import count_affordable_steps
from simcluster.scenario.memory_remedies import try_changes
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario

Verdict = Literal["pass", "warn", "fail"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""All verdicts, from best to worst."""

Values = Mapping[str, Any]
"""Values at dotted paths of a scenario."""

MakeScenario = Callable[[Values], Scenario]
"""Function that returns the scenario with these values; raises InputError if they are invalid."""

_WORTH_TRYING = 0.03  # of the step: nothing is tried for an axis that exposes less


def grade_number(value: float, warn: float, fail: float) -> Verdict:
    """Return the verdict on a number: "fail" above ``fail``, "warn" above ``warn``, else "pass"."""
    return "fail" if value > fail else "warn" if value > warn else "pass"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A scenario change, with the simulated step time (s) and memory (bytes of the fullest GPU) that result.

    ``values`` include dp. ``before`` is the step time of the unchanged scenario; ``memory`` is on the fullest GPU.
    ``point_result`` is verdict and number of the point that it is for; None where it is for the whole job.
    """

    values: Values
    step_time: float
    before: float
    memory: float
    point_result: tuple[Verdict, str] | None = None

    @property
    def change(self) -> float:
        """Relative change of the step time by the remedy; -0.1 means 10 % less."""
        return self.step_time / self.before - 1

    def shell_options(self) -> str:
        """Return the remedy as options to append to the command ``simcluster run SCENARIO``."""
        return " ".join(f"--set {shlex.quote(text)}" for text in format_changes(self.values))

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as JSON-ready values."""
        return {
            "set": dict(self.values),
            "step_time_s": self.step_time,
            "change": self.change,
            "peak_memory_bytes": self.memory,
            "then": self.point_result and {"verdict": self.point_result[0], "found": self.point_result[1]},
        }


class ChangeTrials:
    """Simulator of changes to one scenario; simulates each distinct change once, and at most ``most`` changes in all.

    Fewer where a step takes minutes. ``again`` makes the changed scenarios, by default from the scenario itself.
    """

    def __init__(self, result: Result, again: MakeScenario | None, most: int) -> None:
        self._base = result
        self._again = again
        self._left = count_affordable_steps(result.scenario, most, ops=result.simulated_ops)
        self._known: dict[tuple[tuple[str, str], ...], tuple[Values, Result] | None] = {}

    def simulate(self, values: Values) -> tuple[Values, Result] | None:
        """Simulate a scenario change; return all values that differ from the scenario, and the result.

        None if a rule forbids it, it does not fit, or no tries are left.
        """
        base = self._base.scenario
        changed = try_changes(base, values)
        if changed is None:
            return None

        def current_value(path: str) -> object:
            section, key = path.split(".")
            return getattr(getattr(base, section), key)

        full = {path: value for path, value in values.items() if path != "parallel.dp" and value != current_value(path)}
        if changed.dp != base.dp:
            full["parallel.dp"] = changed.dp
        key = tuple(sorted((path, str(value)) for path, value in full.items()))
        if key not in self._known:
            if not self._left:
                return None
            self._known[key] = self._simulate_uncached(full, changed)
        return self._known[key]

    def _simulate_uncached(self, whole: Values, changed: Scenario) -> tuple[Values, Result] | None:
        try:
            if self._again is not None:
                changed = self._again(whole)
            self._left -= 1
            result = simulate_scenario(changed)
            return (whole, result) if result.fits else None
        except InputError:
            return None


def format_changes(values: Values) -> Iterator[str]:
    """Yield each value of a change as ``path=value``, for the command line."""
    for path, value in values.items():
        if isinstance(value, tuple | list):
            text = f"[{', '.join(map(str, value))}]"
        elif isinstance(value, Mapping):
            text = json.dumps(value)  # which is YAML
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"{path}={text}"


# --- candidates -------------------------------------------------------------------------------------------------------


def list_exposure_remedies(result: Result) -> tuple[Values, ...]:
    """Return changes that may hide exposed communication, axis by axis in turn, the most exposed axis first."""
    exposed = {axis: result.times.breakdown[f"exposed_{axis}"] / result.step_time for axis in _AXIS_REMEDIES}
    axes = sorted((axis for axis in exposed if exposed[axis] > _WORTH_TRYING), key=lambda axis: -exposed[axis])
    lists = [list(_AXIS_REMEDIES[axis](result.scenario)) for axis in axes]
    longest = max(map(len, lists), default=0)
    return tuple(values[place] for place in range(longest) for values in lists if place < len(values))


def list_bubble_remedies(result: Result, *, uneven_stages: bool) -> tuple[Values, ...]:
    """Return changes that may shrink the pipeline bubble; for ``uneven_stages`` stages, balanced stages come first.

    Then more chunks and smaller microbatches. Fewer stages and a schedule that splits the backward come last.
    """
    scenario = result.scenario
    cut = [scenario.pipeline.stage_layer_changes("auto")] if uneven_stages else []
    smaller = [{"training.micro_batch": size} for size in divisors(scenario.training.micro_batch)[-2:-1]]
    split = [{"pipeline.schedule": "zb-h1"}] if scenario.pipeline.schedule == "1f1b" else []
    return (*cut, *_list_interleaved_schedules(scenario)[-1:], *smaller, *_list_fewer_stages(scenario), *split)


def list_sharding_remedies(scenario: Scenario) -> tuple[Values, ...]:
    """Return changes that stop gradient reductions or parameter gathers in every microbatch."""
    if scenario.parallel.zero < 2:
        return ()
    found: list[Values] = [{"parallel.zero": 1}]
    if scenario.fsdp.sync_every_microbatch:
        found.append({"fsdp.sync_every_microbatch": False})
    if scenario.parallel.zero == 3:
        found += [{"parallel.zero": 2, "fsdp.sync_every_microbatch": False}]
        found += [{"fsdp.reshard_after_forward": False}] if scenario.fsdp.reshard_after_forward else []
    return tuple(found)


def list_memory_remedies(scenario: Scenario) -> tuple[Values, ...]:
    """Return changes that save memory on a nearly full GPU, the cheapest in time first."""
    parallel, training = scenario.parallel, scenario.training
    found: list[Values] = []
    if parallel.tp > 1 and not parallel.sequence_parallel:
        found.append({"parallel.sequence_parallel": True})
    if not parallel.zero and scenario.dp * parallel.cp > 1:
        found.append({"parallel.zero": 1})
    if training.recompute == "none" and training.attention == "unfused":
        found.append({"training.recompute": "selective"})
    found += [{"training.micro_batch": size} for size in divisors(training.micro_batch)[-2:-1]]
    if training.recompute != "full":
        found += [{"training.recompute": "full", "training.recompute_every": every} for every in (4, 1)]
    return tuple(found)


def list_tp_domain_remedies(scenario: Scenario, domain: int) -> tuple[Values, ...]:
    """Return changes that keep tp within an NVLink domain of ``domain`` GPUs, with more replicas or stages."""
    tp, pp = scenario.parallel.tp, scenario.parallel.pp
    sizes = [size for size in reversed(divisors(tp)) if size <= domain][:2]
    return tuple(
        each for size in sizes for each in (_tp_change(size), {**_tp_change(size), "parallel.pp": pp * (tp // size)})
    )


def list_expert_remedies(scenario: Scenario) -> tuple[Values, ...]:
    """Return changes that shard the experts over ep ranks; the largest valid ep within a node comes first."""
    moe, plan, hosts = scenario.model.moe, scenario.parallel, scenario.cluster.built.host_of
    ranks = math.gcd(moe.experts if moe else 1, scenario.dp * plan.tp)
    sizes = [size for size in reversed(divisors(ranks)) if 1 < size <= hosts.count(hosts[0])]
    whole = {"parallel.etp": 1} if plan.tp > 1 else {}
    return tuple({"parallel.ep": size, **whole} for size in sizes)


def _tp_change(tp: int) -> Values:
    return {"parallel.tp": tp, **({"parallel.sequence_parallel": False, "overlap.tensor": False} if tp == 1 else {})}


def _list_interleaved_schedules(scenario: Scenario) -> list[Values]:
    pp, now = scenario.parallel.pp, (scenario.pipeline.schedule, scenario.pipeline.chunks)
    if scenario.microbatches % pp or pp == 1:
        return []
    return [
        {"pipeline.schedule": "interleaved", "pipeline.chunks": count}
        for count in (2, 3, 4)
        if scenario.model.layers % (pp * count) == 0 and now != ("interleaved", count)
    ]


def _list_fewer_stages(scenario: Scenario) -> list[Values]:
    plain = {"pipeline.schedule": "1f1b", "pipeline.chunks": 1} if scenario.pipeline.chunks > 1 else {}
    sizes = divisors(scenario.parallel.pp)[-2:-1]
    return [{"parallel.pp": size, **(plain if size == 1 else {})} for size in sizes]


def _dp_remedies(scenario: Scenario) -> Iterator[Values]:
    zero, overlap = scenario.parallel.zero, scenario.overlap
    yield from list_sharding_remedies(scenario)[:2]
    hidden: dict[str, Any] = {} if overlap.grad_reduce else {"overlap.grad_reduce": True}
    if zero and not overlap.param_gather:
        hidden["overlap.param_gather"] = True
    if zero == 3 and not scenario.fsdp.prefetch:
        hidden |= {"overlap.param_gather": True, "fsdp.prefetch": 1}
    if hidden:
        yield hidden
    if not zero:
        yield {"parallel.zero": 1, "overlap.grad_reduce": True, "overlap.param_gather": True}
    yield from list_sharding_remedies(scenario)[2:]
    if zero == 3 and not scenario.fsdp.shard_group:
        hosts = scenario.cluster.built.host_of
        machine = sum(hosts[rank] == hosts[0] for rank in range(scenario.gpus))
        near = machine // (scenario.parallel.tp * scenario.parallel.cp)  # consecutive dp ranks in one node
        if near > 1:
            yield {"fsdp.shard_group": near}
    if zero > 1 and scenario.fsdp.sync_every_microbatch:
        yield {"training.micro_batch": 2 * scenario.training.micro_batch}


def _tp_remedies(scenario: Scenario) -> Iterator[Values]:
    parallel = scenario.parallel
    hidden: dict[str, Any] = {} if scenario.overlap.tensor else {"overlap.tensor": True}
    whole = hidden if parallel.sequence_parallel else {**hidden, "parallel.sequence_parallel": True}
    yield from (values for values in (whole, hidden) if values)
    if parallel.tp % 2 == 0:
        yield _tp_change(parallel.tp // 2)
        yield {**_tp_change(parallel.tp // 2), "parallel.pp": 2 * parallel.pp}


def _cp_remedies(scenario: Scenario) -> Iterator[Values]:
    if scenario.parallel.cp % 2 == 0:
        yield {"parallel.cp": scenario.parallel.cp // 2}


def _ep_remedies(scenario: Scenario) -> Iterator[Values]:
    if not scenario.overlap.pairs:
        yield {"overlap.pairs": True}
    if not scenario.overlap.experts:
        yield {"overlap.experts": True}


def _pp_remedies(scenario: Scenario) -> Iterator[Values]:
    if not scenario.overlap.pipeline:
        yield {"overlap.pipeline": True}
    if scenario.pipeline.chunks > 1:
        yield {"pipeline.schedule": "1f1b", "pipeline.chunks": 1}
    yield from _list_fewer_stages(scenario)


_AXIS_REMEDIES: Mapping[str, Callable[[Scenario], Iterator[Values]]] = {
    "tp": _tp_remedies, "cp": _cp_remedies, "ep": _ep_remedies, "pp": _pp_remedies, "dp": _dp_remedies,
}  # fmt: skip
