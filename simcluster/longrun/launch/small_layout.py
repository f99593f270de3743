"""How a job is cut down to one machine so that what a rank computes stays: its layout, its model, its batch.  Pure.

Every axis that the job has stays above 1 where the machine has room, first tp, then pp, dp, cp; heads, MLP and
vocabulary shrink with tp, experts with ep, and the sequence with cp, so that the matrices of a rank keep their shapes;
layers shrink with pp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from simcluster.documents.suggestions import divisors
from simcluster.model.shards import padded_vocab
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import Parallel

_AXES = ("tp", "pp", "dp", "cp")


@dataclass(frozen=True, slots=True)
class SmallLayout:
    """Sizes of the axes on one machine."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int

    @property
    def gpus(self) -> int:
        """Of the job."""
        return self.tp * self.pp * self.dp * self.cp

    def split(self, parallel: Parallel) -> int:
        """Ranks that split an expert: as many as in the job, or those of tp where there are none or no whole groups."""
        ranks, etp = self.tp * self.dp * self.cp, parallel.etp
        return etp if etp and self.ep > 1 and ranks % (etp * self.ep) == 0 else self.tp


def layout_on(scenario: Scenario, gpus: int) -> SmallLayout:
    """The layout on so many GPUs at most: as many axes above 1 as fit, as many GPUs, then tp as large as it can be."""
    parallel = scenario.parallel
    sizes = {"tp": parallel.tp, "pp": parallel.pp, "dp": scenario.dp, "cp": parallel.cp}
    tried = product(*(divisors(sizes[axis]) for axis in _AXES))
    tp, pp, dp, cp = max((each for each in tried if _product(each) <= gpus), key=_worth)
    ranks, etp = dp * cp * tp, parallel.etp or tp
    shared = ranks // (etp if ranks % etp == 0 else tp)  # else an expert is split over tp
    ep = max(each for each in divisors(parallel.ep) if shared % each == 0)
    return SmallLayout(tp, pp, dp, cp, ep)


def _product(sizes: tuple[int, ...]) -> int:
    tp, pp, dp, cp = sizes
    return tp * pp * dp * cp


def _worth(sizes: tuple[int, ...]) -> tuple[object, ...]:
    """What a layout is preferred by: axes kept, those first in order first, GPUs used, tp, dp, cp."""
    kept = tuple(size > 1 for size in sizes)
    tp, _, dp, cp = sizes
    return sum(kept), kept, _product(sizes), tp, dp, cp


def model_changes(scenario: Scenario, small: SmallLayout) -> dict[str, Any]:
    """Fields of the model that shrink with tp, cp and ep (layers are apart)."""
    model, parallel = scenario.model, scenario.parallel
    tp, found = parallel.tp, dict[str, Any]()

    def share(width: int) -> int:
        return max(1, width * small.tp // tp)

    if small.tp < tp:
        found |= {"heads": share(model.heads), "kv_heads": share(model.kv_heads)}
        if model.ffn_hidden_size:
            found["ffn_hidden_size"] = share(model.ffn_hidden_size)
        found["vocab_size"] = share(padded_vocab(model, tp))
    if small.cp < parallel.cp:
        found["sequence_length"] = model.sequence_length * small.cp // parallel.cp
    if model.moe is not None:
        found |= {f"moe.{name}": value for name, value in _experts(scenario, small)}
    return {name: value for name, value in found.items() if value != _now(scenario, name)}


def _experts(scenario: Scenario, small: SmallLayout) -> Iterator[tuple[str, int]]:
    """As many experts a rank, and as wide a part of each."""
    moe, parallel = scenario.model.moe, scenario.parallel
    assert moe is not None
    if small.ep < parallel.ep:
        fewest = -(-moe.top_k // small.ep) * small.ep
        yield "experts", max(fewest, moe.experts * small.ep // parallel.ep)
    split, etp = small.split(parallel), parallel.etp or parallel.tp
    if split < etp:
        yield "expert_ffn_hidden_size", max(1, moe.expert_ffn_hidden_size * split // etp)
    if small.tp < parallel.tp and moe.shared_width:
        yield "shared_ffn_hidden_size", moe.shared_width * small.tp // parallel.tp


def _now(scenario: Scenario, name: str) -> Any:
    found: Any = scenario.model
    for part in name.split("."):
        found = getattr(found, part)
    return found


def layers_a_slice(scenario: Scenario) -> int:
    """Of the job: a stage has that many for each of its chunks, on average."""
    parallel, pipeline = scenario.parallel, scenario.pipeline
    return max(1, round(scenario.model.layers / (parallel.pp * pipeline.chunks)))


def microbatches_of(scenario: Scenario, small: SmallLayout) -> int:
    """As many for each stage as the job has, in whole rounds of the stages; of a job without stages as many."""
    count = -(-scenario.microbatches * small.pp // scenario.parallel.pp)
    return -(-count // small.pp) * small.pp
