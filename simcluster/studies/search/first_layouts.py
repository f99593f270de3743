"""Choice of the layouts that a search simulates first: typical layouts with a low bound of the step time.

As Megatron-LM's papers have it (arXiv:2104.04473, section 3.5: tp within a node, then pp, small microbatches;
arXiv:2205.05198: sequence parallelism with tp): a distributed optimizer, 1F1B or interleaved with two chunks, which are
fastest to simulate; or, as FSDP has it (arXiv:2304.11277), sharded parameters instead of stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from simcluster.scenario.scenario import Scenario
from simcluster.studies.search.frontier import BoundCache
from simcluster.studies.search.layout import is_same_program, layout_of_scenario

_TIGHTENED_LAYOUTS = 6
"""How many of the layouts that fit get tighter bounds, by their outlines."""
_LARGEST_MICRO_BATCH = 2
_OUTLINED_LAYOUTS = 128
"""How many layouts are outlined at a time: of thousands, on ten thousand GPUs, that takes minutes."""


def choose_first_layouts(known: BoundCache, capacity: float, poll: Callable[[], None]) -> list[int]:
    """Return the one or two typical layouts with the lowest bounds that fit in ``capacity`` bytes per GPU.

    One has a distributed optimizer; another shards the parameters instead of stages, if its bound is lower. ``poll``
    is called between outlines.
    """
    staged: list[int] = []
    sharded: list[int] = []
    for number in _iterate_usual_layouts(known):
        if known.floors[number] <= capacity:
            (sharded if known.layouts[number].zero == 3 else staged).append(number)
    first, other = (_lowest_bound_layout(known, capacity, each, poll) for each in (staged, sharded))
    if first is not None and other is not None and known.bounds[other][0] >= known.bounds[first][0]:
        other = None
    return [number for number in (first, other) if number is not None]


def _iterate_usual_layouts(known: BoundCache) -> Iterator[int]:
    """Yield the numbers of typical layouts (small micro batch, 1F1B or interleaved); skip repeats of a program."""
    machines: dict[int, int] = {}
    seen: set[object] = set()
    for number, layout in enumerate(known.layouts):
        if layout.micro_batch > _LARGEST_MICRO_BATCH or layout.sequence_parallel != (layout.tp > 1):
            continue
        if layout.dp > 1 and layout.zero != (3 if layout.pp == 1 else 1) and (layout.pp, layout.zero) != (1, 1):
            continue
        if (layout.schedule, layout.chunks) not in (("1f1b", 1), ("interleaved", 2)):
            continue
        if layout.gpus not in machines:
            hosts = known.evaluator_of(layout).bounds.base.cluster.built.host_of
            machines[layout.gpus] = min(Counter(hosts[: layout.gpus]).values())
        if layout.tp <= machines[layout.gpus] and layout.without_rank_order not in seen:
            seen.add(layout.without_rank_order)
            yield number


def _lowest_bound_layout(known: BoundCache, limit: float, numbers: list[int], poll: Callable[[], None]) -> int | None:
    """Return the layout with the lowest bound among the most promising layouts that fit in memory.

    Those that split the model least come first, as Megatron-LM's guide has it ("the least that fits").
    """
    layouts = known.layouts

    def outline_bound(number: int) -> tuple[float, int]:
        poll()
        return known.first_bound(number)[0], number

    numbers = sorted(numbers, key=lambda number: (layouts[number].tp * layouts[number].pp * layouts[number].cp, number))
    for begin in range(0, len(numbers), _OUTLINED_LAYOUTS):
        some = sorted(numbers[begin : begin + _OUTLINED_LAYOUTS], key=outline_bound)
        fitting = [*islice((number for number in some if known.is_legal_and_fits(number, limit)), _TIGHTENED_LAYOUTS)]
        for number in fitting:
            while known.bounds[number][1] < 2:
                known.tighten_bound(number)
        if fitting:
            return min(fitting, key=lambda number: (known.bounds[number][0], number))
    return None


def find_own_layout(base: Scenario, known: BoundCache, capacity: float) -> tuple[int | None, bool]:
    """Return the index of the scenario's own layout, or of the nearest that fits, and whether the own layout fits.

    The nearest has the same values except for the recomputation mode; None if no such layout fits.
    """
    own = layout_of_scenario(base)
    if own is None:
        return None, False
    layouts = known.layouts
    near = [number for number, one in enumerate(layouts) if is_same_program(own, one._replace(recompute=own.recompute))]
    near.sort(key=lambda number: not is_same_program(own, layouts[number]))
    found = next((number for number in near if known.is_legal_and_fits(number, capacity)), None)
    return found, found is not None and is_same_program(own, layouts[found])
