"""Extensions as a stranger adds them, from docs/extending.md alone: one file, whose last lines register what it adds.

A schedule, a collective, a topology, a metric, an optimizer, a layer kind, a communicator (faults and ops have files of
their own).  Each is simulated through the public functions, and passes the tests of its kind.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_algorithms
import test_communicators
import test_layer_kinds
import test_optimizers
import test_schedules
import test_topology
from conftest import Tiny, counts_of

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.collectives import ALGORITHMS
from simcluster.model.kernel_choices import CONTEXT_METHODS
from simcluster.model.layers import LAYER_KINDS
from simcluster.planning.optimizer_registry import OPTIMIZERS
from simcluster.planning.rank_grid import COMMUNICATORS, ParallelPlan
from simcluster.results.step_metrics import METRICS
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.step.simulate import simulate
from simcluster.studies.bench.collective import collective_times
from simcluster.studies.search.plan import plan
from simcluster.studies.sweep.quick_rows import simulate_quickly
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
    places = group.positions_in_node_order
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
        graph, edge = nx.DiGraph(), self.link.edge_attributes("network", self.latency)
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
from simcluster.base.errors import InputError
from simcluster.model.kernel_choices import CONTEXT_METHODS
from simcluster.model.layers import LAYER_KINDS
from simcluster.planning.optimizer_registry import OPTIMIZERS
from simcluster.planning.rank_grid import COMMUNICATORS, ParallelPlan
from simcluster.results.step_metrics import METRICS, simulated_metric


def dominance(step):
    parts = list(step.times.breakdown.values())
    return max(parts) * len(parts) / sum(parts)


METRICS["dominance_factor"] = simulated_metric("factor", dominance, "dominance")
'''

OPTIMIZER = '''
"""Adafactor: of a matrix the sums of squares by row and by column, and no first moment (arXiv:1804.04235)."""
from simcluster.planning.optimizer import Optimizer, UpdateWork
from simcluster.planning.optimizer_registry import OPTIMIZERS

FP32 = 4.0


class Adafactor(Optimizer):
    def saved_bytes_of_matrix(self, matrix):
        return 2 * self.job.recipe.moment_bytes * matrix.elements - FP32 * (matrix.rows + matrix.columns)

    def update_work(self, layers):
        recipe, seconds, calls = self.job.recipe, 0.0, []
        for held in self.held_matrices(layers):
            elements = sum(each.count * each.elements for each in held)
            squares, update = recipe.gradient, recipe.gradient + 2 * FP32 + recipe.weight
            seconds += self.job.pass_seconds(elements * squares) + self.job.pass_seconds(elements * update)
            seconds -= self.job.adam_seconds(elements)
            sums = {"rows": "columns", "columns": "rows"}  # what tp ranks have in parts, if they split a matrix
            size = FP32 * sum(each.count * getattr(each, sums[each.split]) for each in held if each.split in sums)
            calls += [("tp", size)] if size and self.job.plan.tp > 1 else []
        return UpdateWork(seconds, "factored", tuple(calls), "all_reduce", "second_moments")


OPTIMIZERS["adafactor"] = f"{__name__}:Adafactor"
'''

LAYER = '''
"""Mamba-2 (arXiv:2405.21060): a convolution and a scan in chunks; key-value heads are the groups of B and C."""
from dataclasses import replace

from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.kernels import Section
from simcluster.model.layer_block import layer_block
from simcluster.model.layer_kind import Flops, LayerKind, WeightMatrix
from simcluster.model.layer_sections import forward_backward_section, linear_section, matmul_kernel
from simcluster.model.rank_shape import local_sizes
from simcluster.model.layers import LAYER_KINDS
from simcluster.model.shard_widths import shard_widths

STATE, CHUNK, WINDOW = 128, 256, 4


class Mamba2(LayerKind):
    name = "statespace"
    MIXES = True

    def widths(self, model, tp):
        """What is mixed, what the convolution goes over, what the first matmul_kernel makes."""
        shard = shard_widths(model, tp)
        inner = shard.heads * model.head_dim
        convolved = inner + 2 * shard.kv_heads * STATE
        return inner, convolved, inner + convolved + shard.heads

    def matrices(self, model, tp=1, ep=1, etp=1):
        inner, _, made = self.widths(model, tp)
        yield WeightMatrix(made, model.hidden_size, "rows")
        yield WeightMatrix(model.hidden_size, inner, "columns")

    def count_vector_parameters(self, model, tp=1):
        inner, convolved, _ = self.widths(model, tp)
        return (WINDOW + 1) * convolved + 3 * shard_widths(model, tp).heads + inner

    def scan(self, tokens, heads, width, e):
        """Scores in a chunk and what they give, the chunks' states, what those give."""
        batch = tokens // CHUNK * heads
        sizes = {"scores": (CHUNK, CHUNK, STATE), "inside": (CHUNK, width, CHUNK),
                 "states": (STATE, width, CHUNK), "across": (CHUNK, width, STATE)}
        forward = tuple(matmul_kernel(f"scan_{name}", *size, e, batch) for name, size in sizes.items())
        back = tuple(replace(each, name=f"{each.name}_grad", flops=2 * each.flops, bytes=2 * each.bytes)
                     for each in reversed(forward))
        return Section(forward, input_grad=back)

    def block(self, model, shape):
        local, e = local_sizes(model, shape), shape.element_bytes
        inner, convolved, made = self.widths(model, shape.tp)
        moved = 2 * e * local.tokens * convolved
        body = (
            linear_section("mamba_in", shape, local.tokens, local.hidden, made, bias=False),
            forward_backward_section("mamba_convolution", moved, 2 * moved),
            self.scan(local.tokens, local.heads, model.head_dim, e),
            forward_backward_section("mamba_gate_norm", 3 * e * local.tokens * inner, 5 * e * local.tokens * inner),
            linear_section("mamba_out", shape, local.tokens, inner, local.hidden, bias=False),
        )
        return layer_block(self.name, model, shape, local, body)

    def core_flops(self, model, tokens, backward):
        forward = sum(kernel.flops for kernel in self.scan(tokens, model.heads, model.head_dim, 2.0).forward)
        return Flops(forward, 2 * forward, 0.0)

    def backward_tensors(self, model, shape):
        local, e, name = local_sizes(model, shape), shape.element_bytes, self.name
        inner, convolved, made = self.widths(model, shape.tp)
        each = e * local.tokens
        return [
            SavedTensor(name, "mamba_norm_input", e * local.edge_tokens * local.hidden, "input"),
            *matmul_input_tensors(name, "mamba_input", model, shape),
            SavedTensor(name, "mamba_projected", each * made),
            SavedTensor(name, "mamba_convolved", each * convolved),
            SavedTensor(name, "mamba_scanned", each * inner),
            SavedTensor(name, "mamba_out_input", each * inner, read="W", in_fp8="cast"),
            *dropout_mask_tensors(name, "mamba_dropout_mask", model, shape),
            SavedTensor(name, "mamba_output_grad", each * local.hidden, made="I", read="W", in_fp8="cast"),
            SavedTensor(name, "mamba_projected_grad", each * made, made="I", read="W", in_fp8="cast"),
        ]


LAYER_KINDS["statespace"] = Mamba2()
'''

COMMUNICATOR = '''
"""Context parallelism of two levels: pairs of ranks trade heads, and keys are gathered over pairs."""
import numpy as np

from simcluster.model.kernel_choices import CONTEXT_METHODS, ContextParallelMethod
from simcluster.planning.rank_grid import COMMUNICATORS, Communicator

TRADERS = 2


def pairs(plan):
    return plan.groups("cp").reshape(-1, TRADERS)


def rings(plan):
    return np.moveaxis(plan.groups("cp").reshape(-1, plan.cp // TRADERS, TRADERS), 2, 1).reshape(-1, plan.cp // TRADERS)


COMMUNICATORS["cp_trade"] = Communicator("cp", pairs)
COMMUNICATORS["cp_ring"] = Communicator("cp", rings)
CONTEXT_METHODS["usp"] = ContextParallelMethod("gather", lambda heads, kv_heads, cp: TRADERS, "cp_trade", "cp_ring")
'''

FEW: dict[str, Any] = {
    "parallel.tp": [2], "parallel.pp": [2], "parallel.zero": [0], "parallel.sequence_parallel": [False],
    "training.micro_batch": [1], "training.recompute": ["none"],
}  # fmt: skip

Added = Callable[[str], None]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Added]:
    """Writes a file and imports it; the lists are as before afterwards."""
    lists: list[dict[str, Any]] = [
        SCHEDULES, ALGORITHMS["all_reduce"], TOPOLOGIES, METRICS, OPTIMIZERS, LAYER_KINDS, COMMUNICATORS,
        CONTEXT_METHODS,
    ]  # fmt: skip
    before = [dict(each) for each in lists]

    def add(text: str) -> None:
        name = f"stranger_{request.node.name}"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module(name)
        changed = [each for each, old in zip(lists, before, strict=True) if each != old]
        registers = [line for line in text.splitlines() if re.match(r"[A-Z_]+\[", line)]
        new = sum(len(each) - len(old) for each, old in zip(lists, before, strict=True))
        assert len(changed) >= 1
        assert registers == text.splitlines()[-new:], "one file, and a line that registers each thing"

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
    quick = simulate_quickly(ScenarioVariant(BaseScenario("gpt3_175b_64xa100"), (("pipeline.schedule", "eager-1f1b"),)))
    assert quick["how"] == "quick"
    full = simulate(simcluster.scenario("gpt3_175b_64xa100", {"pipeline.schedule": "eager-1f1b"}))
    assert quick["step_time_s"] == full.step_time
    vary = {**FEW, "pipeline.schedule": ["eager-1f1b"]}
    found = plan(simcluster.scenario("tiny_3d", {"training.global_batch": 8}), 8, top=1, vary=vary)
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
    assert "16 GPUs (h100) in 16 nodes" in capsys.readouterr().out
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


def test_an_optimizer(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    added(OPTIMIZER)
    job = test_optimizers.job
    adam, own = (simulate(job(name)) for name in ("adam", "adafactor"))
    assert own.step_time == simulate(job("adafactor"), engine="reference").step_time != adam.step_time
    names = {*own.timeline_of(0)["name"]}
    assert "second_moments" in names  # and its update is no longer than Adam's
    held, less = (found.facts.footprints[0].optimizer for found in (adam, own))
    matrices = 2 * 12 * 1024**2 / 2  # of two layers on one of two ranks of tp: two moments of 4 bytes less their sums
    assert held - less == pytest.approx(8.0 * matrices, rel=2e-3)
    with pytest.raises(InputError, match=r"parallel\.zero: is not modelled with training\.optimizer: adafactor; use 0"):
        job("adafactor", **{"parallel.zero": 1})
    with pytest.raises(InputError, match=r"the search for layouts does not support training\.optimizer adafactor"):
        plan(job("adafactor"), 8)
    assert main(["run", "tiny_dp", "--set", "training.optimizer=adafacto"]) == 2
    assert "did you mean 'adafactor'" in capsys.readouterr().err
    test_optimizers.test_no_engine_takes_it_for_another("adafactor")
    test_optimizers.test_it_is_adam_or_it_differs("adafactor")
    for path in test_optimizers.SPLIT:
        test_optimizers.test_it_is_modelled_with_what_splits_its_state_or_refuses_it_by_name("adafactor", path)
    for layout in (ParallelPlan(), ParallelPlan(tp=2, dp=4)):
        test_optimizers.test_its_state_is_at_most_adams_and_none_is_below_nothing("adafactor", layout)
    test_optimizers.test_the_whole_model_spares_what_its_layers_do("adafactor")
    test_optimizers.test_an_update_takes_time_and_names_what_it_sends("adafactor")
    test_optimizers.test_a_fast_path_knows_it_or_refuses_it("adafactor")


def test_a_layer_kind(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    added(LAYER)
    tests = test_layer_kinds
    model = tests.model_with("statespace")
    inner, groups = 256, 4 * 128
    own = 256 * (2 * inner + 2 * groups + 8) + inner * 256 + 5 * (inner + 2 * groups) + 3 * 8 + inner
    assert LAYER_KINDS["statespace"].count_parameters(model) == own
    words = ["--set", "model.mixer=statespace", "--set", "model.position=none", "--set", "model.bias=false"]
    assert main(["run", "tiny_dp", *words]) == 0
    assert main(["run", "tiny_dp", *words, "--set", "parallel.cp=2"]) == 2
    assert "is not modelled with layers of kind statespace; use 1" in capsys.readouterr().err
    for sections in ({}, {"training": {"recompute": "full"}}, {"training": {"optimizer": "muon"}}):
        tests.test_all_engines_simulate_it_alike("statespace", sections)
    tests.test_all_engines_simulate_it_alike("statespace", {"parallel": {"pp": 2}, "pipeline": {"schedule": "zb-h1"}})
    tests.test_the_model_has_it("statespace")
    for tp in (2, 4):
        tests.test_tensor_parallel_ranks_split_matrices_as_they_say("statespace", tp)
    tests.test_parameters_are_those_of_matrices_and_vectors("statespace")
    tests.test_kernels_of_all_ranks_do_its_flops("statespace")
    tests.test_kernels_have_names_of_their_own_and_recompute_is_a_forward("statespace")
    tests.test_it_keeps_what_backward_reads("statespace")
    tests.test_a_scenario_has_the_values_that_it_is_modelled_with("statespace")
    tests.test_a_fast_path_knows_it_or_refuses_it_by_name("statespace")
    long, short = (simulate(tests.job("statespace", model_length=length)) for length in (1024, 512))
    assert long.step_time < 2.2 * short.step_time  # linear_section in the length


def test_a_communicator(added: Added) -> None:
    added(COMMUNICATOR)
    tests = test_communicators
    for axis in ("cp_trade", "cp_ring"):
        for layout in (ParallelPlan(cp=4, tp=2), ParallelPlan(cp=4, dp=2, pp=2, order=("dp", "cp", "tp", "pp"))):
            tests.test_its_groups_share_out_the_ranks(axis, layout)
        tests.test_its_stream_has_an_entry_of_the_breakdown(axis)
        for engine in ("auto", "reference"):
            tests.test_its_exposed_time_is_booked_where_it_says(axis, engine)
    for cp in (2, 4):
        tests.test_all_engines_simulate_a_method_alike("usp", cp)
    for sizes in ((8, 8, 4), (8, 1, 4), (64, 8, 8)):
        tests.test_traders_divide_the_ranks("usp", *sizes)
    tests.test_methods_differ("usp")
    tests.test_heads_that_cannot_be_traded_are_refused("usp")
    tests.test_a_fast_path_knows_a_method_or_refuses_it("usp")
    both = [simulate(tests.job(method, 2)).step_time for method in ("usp", "all_to_all")]
    assert both[0] == both[1]  # two ranks trade all their heads
