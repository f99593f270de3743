"""A schedule, a collective, a topology and a metric, each added from README's words alone: one file, whose last line
registers it.  Each is then played through the ordinary door, and obeys the tests of its kind."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_algorithms
import test_schedules
import test_topology
from conftest import Tiny, counts_of

import simcluster
from simcluster.cli import main
from simcluster.collectives import ALGORITHMS
from simcluster.results.numbers import METRICS
from simcluster.scenario.scenario import Base, Variant
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.step.simulate import simulate
from simcluster.studies.bench.collective import collective_times
from simcluster.studies.search.plan import plan
from simcluster.studies.sweep.quick_rows import quickly
from simcluster.topology import TOPOLOGIES, parse_topology

SCHEDULE = '''
"""Eager 1F1B: 1F1B with twice the forwards ahead, which hides messages (Zhuang et al., arXiv:2211.05322)."""
from simcluster.schedules import SCHEDULES, ScheduleEntry, Schedule
from simcluster.schedules.actions import Action, loop_route
from simcluster.schedules.check import require_counts, require_one_chunk


def eager_1f1b(num_stages, num_microbatches, num_chunks=1):
    require_counts("eager-1f1b", num_stages, num_microbatches, num_chunks)
    require_one_chunk("eager-1f1b", num_chunks)
    rows = []
    for stage in range(num_stages):
        ahead = min(2 * (num_stages - 1 - stage), num_microbatches)
        order = [Action("F", m) for m in range(ahead)]
        for m in range(num_microbatches):
            order += [Action("F", m + ahead)] * (m + ahead < num_microbatches) + [Action("B", m)]
        rows.append(tuple(order))
    route = loop_route(num_stages, 1)
    return Schedule("eager-1f1b", tuple(rows), num_microbatches, 1, (route,), (0,) * num_microbatches)


SCHEDULES["eager-1f1b"] = ScheduleEntry(eager_1f1b, route=loop_route, splits_backward=False)
'''

COLLECTIVE = '''
"""Recursive doubling: in round k everybody exchanges all that it has with the rank 2^k places on."""
from simcluster.collectives import ALGORITHMS, CollectiveEntry, Hop, Phase


def recursive_doubling(group):
    places = group.places
    return tuple(
        Phase(
            rounds=1, chunks=1, reduces=True,
            hops=tuple(Hop(places[i], places[i ^ (1 << k)], 1.0) for i in range(len(places))),
        )
        for k in range((len(places) - 1).bit_length())
    )


def requires(group):
    ranks = group.num_ranks
    return f"recursive_doubling is for powers of two, not {ranks} ranks: use ring" if ranks & (ranks - 1) else ""


def seconds(ranks, latency, transfer):
    return (ranks - 1).bit_length() * (latency + transfer)


ALGORITHMS["all_reduce"]["recursive_doubling"] = CollectiveEntry(recursive_doubling, seconds, requires)
'''

TOPOLOGY = '''
"""A two-dimensional torus of routers with a GPU each; or of GPUs alone, which forward nothing for others."""
from typing import Literal

import networkx as nx

from simcluster.topology import TOPOLOGIES, RateSpec, TopologySpec
from simcluster.topology.cluster import make_cluster
from simcluster.base.units import Seconds


class TorusSpec(TopologySpec):
    EXAMPLE = {"side": 3, "link": {"line_rate": "50 GB/s"}, "latency": "1 us"}

    kind: Literal["torus"]
    name: str = "torus"
    side: int
    routers: bool = True
    link: RateSpec
    latency: Seconds

    def build(self):
        graph, edge = nx.DiGraph(), self.link.edge("network", self.latency)
        spots = [(x, y) for x in range(self.side) for y in range(self.side)]
        for number, (x, y) in enumerate(spots):
            graph.add_node(f"gpu{x}.{y}", kind="gpu", host=number, local=0)
            if self.routers:
                graph.add_node(f"router{x}.{y}", kind="switch", tier="leaf", network="compute")
                graph.add_edge(f"gpu{x}.{y}", f"router{x}.{y}", **edge)
                graph.add_edge(f"router{x}.{y}", f"gpu{x}.{y}", **edge)
        end = "router" if self.routers else "gpu"
        for x, y in spots:
            for to in [((x + 1) % self.side, y), (x, (y + 1) % self.side)]:
                graph.add_edge(f"{end}{x}.{y}", f"{end}{to[0]}.{to[1]}", **edge)
                graph.add_edge(f"{end}{to[0]}.{to[1]}", f"{end}{x}.{y}", **edge)
        return make_cluster(self.name, self.device, graph, self.routing, self.nccl)


TOPOLOGIES["torus"] = TorusSpec
'''

METRIC = '''
"""By how much the busiest kind of time is above the mean of all kinds."""
from simcluster.results.numbers import METRICS, played


def dominance(step):
    parts = list(step.times.breakdown.values())
    return max(parts) * len(parts) / sum(parts)


METRICS["dominance_factor"] = played("factor", dominance, "dominance")
'''

FEW: dict[str, Any] = {
    "parallel.tp": [2], "parallel.pp": [2], "parallel.zero": [0], "parallel.sequence_parallel": [False],
    "training.micro_batch": [1], "training.recompute": ["none"],
}  # fmt: skip

Added = Callable[[str], None]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Added]:
    """Writes a file and imports it; the lists are as before afterwards."""
    lists: list[dict[str, Any]] = [SCHEDULES, ALGORITHMS["all_reduce"], TOPOLOGIES, METRICS]
    before = [dict(each) for each in lists]

    def add(text: str) -> None:
        name = f"stranger_{request.node.name}"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module(name)
        changed = [each for each, old in zip(lists, before, strict=True) if each != old]
        assert len(changed) == 1
        registers = [
            line
            for line in text.splitlines()
            if line.startswith(("SCHEDULES[", "ALGORITHMS[", "TOPOLOGIES[", "METRICS["))
        ]
        assert registers == text.splitlines()[-1:], "one file, and one line that registers"

    yield add
    for each, old in zip(lists, before, strict=True):
        each.clear()
        each.update(old)


def test_a_schedule(added: Added, tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    added(SCHEDULE)
    assert main(["schedule", "eager-1f1b", "--stages", "4", "--microbatches", "8"]) == 0
    assert "r0 F0 F1 F2 F3 F4 F5 F6 B0 F7 B1" in capsys.readouterr().out
    pipeline = {"schedule": "eager-1f1b"}
    scenario = tiny(cluster={"topology": "flat", "gpus": 8}, parallel={"pp": 4, "dp": 2}, pipeline=pipeline,
                    training={"global_batch": 16})  # fmt: skip
    assert simulate(scenario).step_time == simulate(scenario, engine="reference").step_time
    quick = quickly(Variant(Base("gpt3_175b_64xa100"), (("pipeline.schedule", "eager-1f1b"),)))
    assert quick["how"] == "quick"
    full = simulate(simcluster.load("gpt3_175b_64xa100", {"pipeline.schedule": "eager-1f1b"}))
    assert quick["step_time_s"] == full.step_time
    vary = {**FEW, "pipeline.schedule": ["eager-1f1b"]}
    found = plan(simcluster.load("tiny_3d", {"training.global_batch": 8}), 8, top=1, vary=vary)
    assert found.best[0].layout.schedule == "eager-1f1b"
    for shape in test_schedules.SHAPES:
        if shape[2] == 1:
            made = make_schedule("eager-1f1b", *shape)
            test_schedules.test_is_sound_and_reproducible.__wrapped__(made)
            test_schedules.test_every_microbatch_visits_every_virtual_stage_once.__wrapped__(made)
            test_schedules.test_in_flight_peak_is_that_of_the_timeline.__wrapped__(made)
            test_schedules.test_what_its_entry_says_of_it_is_so.__wrapped__(made)
    assert counts_of("eager-1f1b", 4, 5) == (1, 5)


def test_a_collective(added: Added, tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    added(COLLECTIVE)
    asked = ["collective", "all_reduce", "--size", "1GB", "--cluster", "flat", "--algorithm", "recursive_doubling"]
    assert main([*asked, "--gpus", "8"]) == 0
    assert "all_reduce, algorithm recursive_doubling, detail flow" in capsys.readouterr().out
    assert main([*asked, "--gpus", "8", "--size", "1MiB:2MiB"]) == 0
    assert "recursive_doubling" in capsys.readouterr().out.splitlines()[-2].split()
    assert main([*asked, "--gpus", "6"]) == 2
    assert "powers of two, not 6 ranks: use ring" in capsys.readouterr().err
    scenario = tiny(
        cluster={"topology": "flat", "gpus": 4}, parallel={"dp": 4},
        collectives={"nccl": "none", "all_reduce": "recursive_doubling"},
    )  # fmt: skip
    found = simulate(scenario)
    assert found.step_time == simulate(scenario, engine="reference").step_time
    ring = {"nccl": "none", "all_reduce": "ring"}
    assert found.step_time != simulate(tiny(cluster={"topology": "flat", "gpus": 4}, parallel={"dp": 4},
                                            collectives=ring)).step_time  # fmt: skip
    test_algorithms.test_all_reduce_leaves_every_contribution_once_everywhere("recursive_doubling")
    test_algorithms.test_bytes_are_at_least_what_the_collective_needs("all_reduce", "recursive_doubling")
    test_algorithms.test_time_on_the_uniform_network("all_reduce", "recursive_doubling")
    test_algorithms.test_every_algorithm_serves_groups_of_some_sizes("all_reduce", "recursive_doubling")
    test_algorithms.test_flow_and_steps_agree_on_the_uniform_network("all_reduce", "recursive_doubling")


def test_a_topology(added: Added, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added(TOPOLOGY)
    document = {"kind": "torus", "device": "h100", "side": 4, "link": {"line_rate": "50 GB/s"}, "latency": "1 us"}
    torus, direct = tmp_path / "torus.yaml", tmp_path / "direct.yaml"
    torus.write_text(json.dumps(document))
    direct.write_text(json.dumps({**document, "routers": False}))
    assert main(["topology", str(torus)]) == 0
    assert "16 GPUs (h100) in 16 machines" in capsys.readouterr().out
    assert main(["topology", str(direct)]) == 2
    assert "cannot reach GPU" in capsys.readouterr().err
    torus.write_text(json.dumps({**document, "sides": 4}))
    assert main(["topology", str(torus)]) == 2
    assert "unknown key 'sides'; did you mean 'side'?" in capsys.readouterr().err
    assert collective_times(parse_topology(document).build(), range(16), "all_reduce", 1e9).duration > 0
    scenario = tiny(cluster={"topology": document}, gpus=16, parallel={"tp": 4, "dp": 4})
    assert simulate(scenario).step_time == simulate(scenario, engine="reference").step_time
    test_topology.test_the_example_is_connected_both_ways("torus")
    test_topology.test_routes_of_the_example_are_paths_and_many_at_once_are_one_by_one("torus")
    test_topology.test_the_example_is_the_same_from_its_document("torus")


def test_a_metric(added: Added, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    added(METRIC)
    saved, page, rows = tmp_path / "saved.json", tmp_path / "page.html", tmp_path / "rows.csv"
    assert main(["run", "tiny_dp", "--json", str(saved)]) == 0
    assert json.loads(saved.read_text())["dominance_factor"] > 1
    capsys.readouterr()
    assert main(["compare", "tiny_dp"]) == 0
    assert "dominance" in capsys.readouterr().out
    study = tmp_path / "study.yaml"
    study.write_text("scenario: tiny_dp\nvary: {training.micro_batch: [1, 2]}\n")
    assert main(["sweep", str(study), "-o", str(rows), "--executor", "1"]) == 0
    assert "dominance_factor" in rows.read_text().splitlines()[0]
    assert "dominance" in capsys.readouterr().out
    words = [f"{path}={str(values[0]).lower()}" for path, values in FEW.items()]
    assert main(["plan", "tiny_3d", "--gpus", "8", "--top", "1", "--set", "training.global_batch=8", "--vary",
                 "pipeline.schedule=1f1b", *[word for each in words for word in ("--vary", each)]]) == 0  # fmt: skip
    assert "dominance" in capsys.readouterr().out
    assert main(["report", "tiny_dp", "-o", str(page)]) == 0
    assert "dominance" in page.read_text()
