"""Every collective algorithm: right data everywhere or a clear refusal, no byte too few, the time of its closed form.

What every algorithm must do runs on every entry of ALGORITHMS, in groups on one machine and on several: one that is
added there is tested here by what its entry says of it.
"""

from __future__ import annotations

import importlib
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
from conftest import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.clock import TICK, round_to_tick
from simcluster.base.errors import InputError
from simcluster.collectives import ALGORITHMS, SWITCH, Group, Hop, Phase, all_to_all, chain, tree
from simcluster.collectives.description import FunctionSequence
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.collective import BUS_FACTOR, collective_times, concurrent_collective_times
from simcluster.topology import Cluster, parse_topology
from simcluster.traffic.collective_methods import MethodChooser
from simcluster.traffic.traffic import LinkPattern, link_patterns, make_group

ENTRIES = [(kind, name) for kind, algorithms in ALGORITHMS.items() for name in algorithms]
RANKS = [2, 3, 4, 6, 7, 8, 16, 24]
GIB = 2.0**30


def named(kind: str) -> list[str]:
    return list(ALGORITHMS[kind])


def machines_of(
    *sizes: int, nics_per_rank: float = 1.0, shared: int = 0, nvswitch: bool = True, mixed: bool = False
) -> Group:
    """A group with so many ranks on each machine, machine by machine or dealt out in turn (``mixed``).

    ``shared`` NICs, if not 0, are near all ranks of a machine, which take them in turn.
    """

    def near(host: int, local: int) -> tuple[str, ...]:
        each = shared or max(1, int(nics_per_rank))
        first = 0 if shared else int(local * nics_per_rank)
        return tuple(f"nic{host}.{first + (local + turn) % each}" for turn in range(each))

    spots = [(host, local) for host, size in enumerate(sizes) for local in range(size)]
    if mixed:
        spots.sort(key=lambda spot: (spot[1], spot[0]))
    return Group(
        hosts=tuple(host for host, _ in spots),
        nics=tuple(near(host, local) for host, local in spots),
        nvswitches=tuple(f"nvswitch{host}" if nvswitch else "" for host, _ in spots),
    )


@cache
def groups(ranks: int) -> dict[str, Group]:
    """A group of this size in every way that machines give."""
    found = {
        "one machine": machines_of(ranks),
        "one machine without NVSwitch": machines_of(ranks, nvswitch=False),
        "a machine each": machines_of(*[1] * ranks),
        "a machine each, two NICs a rank": machines_of(*[1] * ranks, nics_per_rank=2),
        "unequal machines": machines_of(ranks - 1, 1),
    }
    for each in (8, 4, 2):
        if ranks % each == 0 and ranks > each:
            machines = [each] * (ranks // each)
            found[f"machines of {each}"] = machines_of(*machines)
            found[f"machines of {each}, a NIC for two"] = machines_of(*machines, nics_per_rank=0.5)
            found[f"machines of {each}, two NICs a rank"] = machines_of(*machines, nics_per_rank=2)
            found[f"machines of {each}, two NICs for all"] = machines_of(*machines, shared=2)
            found[f"machines of {each}, three NICs for all, dealt out"] = machines_of(*machines, shared=3, mixed=True)
            found[f"machines of {each}, ranks dealt out"] = machines_of(*machines, mixed=True)
    return found


def phases_of(kind: str, name: str, group: Group) -> Sequence[Phase] | None:
    """The description; None where the algorithm refuses the group."""
    entry = ALGORITHMS[kind][name]
    refusal = entry.requires(group)
    if not refusal:
        return entry(group)
    assert name in refusal
    assert " use " in refusal, f"what would work? {refusal}"
    with pytest.raises(InputError) as raised:
        entry(group)
    assert str(raised.value) == refusal
    return None


# --- NICs -------------------------------------------------------------------------------------------------------------


@for_each("ranks", RANKS)
def test_every_nic_of_a_machine_has_a_ring_of_its_own(ranks: int) -> None:
    """Where machines have equally many ranks: ring r sends and receives by NIC r, and no two by the same one."""
    for name, group in groups(ranks).items():
        if len(group.positions_by_node) == 1 or name == "unequal machines":
            assert len(group.rings) == 1
            continue
        for positions in group.positions_by_node:
            sends, receives, have = [], [], dict.fromkeys(nic for p in positions for nic in group.nics[p])
            for channel, ring in enumerate(group.rings):
                assert sorted(ring.order) == list(range(ranks))
                for place, source in enumerate(ring.order):
                    target = ring.order[(place + 1) % ranks]
                    leaver = source if ring.relays[place] < 0 else ring.relays[place]
                    by = [group.nics[p][channel % len(group.nics[p])] for p in (leaver, target)]
                    if group.hosts[source] != group.hosts[target]:
                        sends += by[:1] if source in positions else []
                        receives += by[1:] if target in positions else []
            assert sorted(sends) == sorted(receives) == sorted(have), name


def boxes(nics: int, rate: str, **changes: Any) -> Cluster:
    """Two machines of 8 GPUs behind NVSwitch (370 GB/s) with this many NICs."""
    machine = {
        "gpus": 8,
        "nvlink": {"line_rate": "370 GB/s", "latency": "1 us"},
        "pcie": {"line_rate": "64 GB/s", "latency": "1 us"},
        "gpus_per_pcie_switch": max(1, 8 // nics),
        "nics": [{"count": nics, "link": {"line_rate": rate, "latency": "1 us"}}],
        **changes,
    }
    document = {"kind": "machines", "device": "h100", "nodes": 2, "machine": machine}
    return parse_topology({**document, "fabric": {"kind": "fat_tree", "nodes_per_unit": 1}}).build()


@pytest.mark.parametrize(
    ("nics", "rate", "busbw"),
    [
        (16, "22.5 GB/s", 16 * 22.5e9),  # two NICs a GPU: AWS p5en without its striping
        (16, "11.85 GB/s", 16 * 11.85e9),  # OCI BM.GPU.B4.8 without its striping: 189.6 GB/s
        (8, "45 GB/s", 8 * 45e9),
        (8, "60 GB/s", 370e9),  # 480 GB/s of NICs: all 8 hops of a ring cross NVLink, the last one to the NIC's GPU
        (4, "45 GB/s", 4 * 45e9),  # one NIC for two GPUs
        (4, "120 GB/s", 4 * 64e9),  # as fast as PCIe
        (2, "45 GB/s", 2 * 45e9),
        (1, "45 GB/s", 45e9),
    ],
)
def test_a_full_all_reduce_reaches_the_sum_of_the_nics(nics: int, rate: str, busbw: float) -> None:
    """16 GPUs on 2 machines: busbw is the sum of a machine's NICs, unless NVLink or PCIe is slower."""
    cluster = boxes(nics, rate)
    found = collective_times(cluster, range(16), "all_reduce", 2.0**40, algorithm="ring")
    assert found.busbw == pytest.approx(busbw, rel=1e-4)
    used = link_bytes(cluster, range(16), "all_reduce", "ring", 1.0)
    out = [size for (a, b), size in used.items() if ".nic" in a and "leaf" in b]
    assert out == pytest.approx([2 * 15 / 16 / nics] * 2 * nics)


def test_pcie_boxes_reach_the_sum_of_their_nics() -> None:
    """8 GPUs under 2 PCIe switches share 2 NICs of 11.85 GB/s.

    Every ring crosses each switch's 26.24 GB/s to the host bridge once, so two rings need 2 x 11.85 of them.
    """
    found = collective_times(load_cluster("pcie_ethernet"), range(16), "all_reduce", 2.0**40, algorithm="ring")
    assert found.busbw == pytest.approx(2 * 0.948 * 12.5e9, rel=1e-4)


# --- what ends up where -----------------------------------------------------------------------------------------------

# (channel, chunk) -> whose contributions are there, how often: a number with a digit for every rank, to the base 256
Chunks = dict[tuple[int, int], int]


def of(position: int) -> int:
    """One contribution of this rank."""
    return 1 << 8 * position


def complete(ranks: int) -> int:
    """One contribution of everybody."""
    return sum(map(of, range(ranks)))


def execute(phases: Sequence[Phase], start: list[Chunks], empty: Container[int] = ()) -> list[Chunks]:
    """What every position holds at the end; chunks that are ``empty`` do not matter.

    In a round everybody sends what it held before; in a pipeline what has come by the hops listed before.
    """
    state = {position: dict(chunks) for position, chunks in enumerate(start)}
    state[SWITCH] = {}
    for phase in phases:
        assert phase.rounds == 1 or not phase.pipelined
        if phase.reduces and any(hop.target == SWITCH for hop in phase.hops):
            state[SWITCH] = {}  # another switch, or another sum
        for number in range(phase.rounds):
            waiting = []
            for hop in phase.hops:
                assert hop.source != hop.target
                assert phase.pipelined or SWITCH not in (hop.source, hop.target)
                for chunk in chunks_in_round(hop, number, phase.chunks):
                    place = (hop.channel, chunk)
                    if chunk not in empty:
                        assert place in state[hop.source], f"round {number}: {hop.source} does not have {place}"
                        waiting.append((hop.target, place, state[hop.source][place]))
                if phase.pipelined:
                    deliver(state, waiting, reduces=phase.reduces)
            deliver(state, waiting, reduces=phase.reduces)
    return [state[position] for position in range(len(start))]


def chunks_in_round(hop: Hop, number: int, cycle: int) -> list[int]:
    """Return the chunk numbers that a hop carries in round ``number``; chunk numbers wrap after ``cycle``."""
    first, place = hop.chunk - hop.chunk % cycle, hop.chunk % cycle
    start = first + (place - number * hop.count) % cycle
    return [start + turn * hop.stride for turn in range(hop.count)]


def deliver(state: dict[int, Chunks], waiting: list[tuple[int, tuple[int, int], int]], *, reduces: bool) -> None:
    for target, place, held in waiting:
        state[target][place] = state[target][place] + held if reduces and place in state[target] else held
    waiting.clear()


def all_chunks(phases: Sequence[Phase]) -> list[tuple[int, int]]:
    """What the data are cut into."""
    found = {
        (hop.channel, chunk): None
        for phase in phases
        for hop in phase.hops
        for number in range(phase.rounds)
        for chunk in chunks_in_round(hop, number, phase.chunks)
    }
    return sorted(found)


def own_data(phases: Sequence[Phase], ranks: int) -> list[Chunks]:
    """Every position with its own contribution to every chunk."""
    chunks = all_chunks(phases)
    return [dict.fromkeys(chunks, of(position)) for position in range(ranks)]


@cache
def in_all_groups(kind: str, name: str, ranks: int) -> list[tuple[Group, Sequence[Phase]]]:
    """The groups of this size that the algorithm serves."""
    found = [(group, phases_of(kind, name, group)) for group in groups(ranks).values()]
    return [(group, phases) for group, phases in found if phases is not None]


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_algorithm_serves_groups_of_some_sizes(kind: str, name: str) -> None:
    sizes = [2] if kind == "send" else [ranks for ranks in RANKS if in_all_groups(kind, name, ranks)]
    assert len(sizes) >= (4 if kind != "send" else 1), f"{name} refuses nearly everything: {sizes}"


@pytest.mark.parametrize("name", named("all_reduce"))
@for_each("ranks", RANKS)
def test_all_reduce_leaves_every_contribution_once_everywhere(name: str, ranks: int) -> None:
    for _, phases in in_all_groups("all_reduce", name, ranks):
        start = own_data(phases, ranks)
        assert execute(phases, start) == [dict.fromkeys(start[0], complete(ranks))] * ranks


def scattered(phases: Sequence[Phase], ranks: int) -> list[Chunks]:
    """What each position has in full after a reduce-scatter."""
    end = execute(phases, own_data(phases, ranks))
    return [{place: held for place, held in chunks.items() if held == complete(ranks)} for chunks in end]


@pytest.mark.parametrize("name", named("reduce_scatter"))
@for_each("ranks", RANKS)
def test_reduce_scatter_leaves_every_chunk_in_full_at_one_position(name: str, ranks: int) -> None:
    for _, phases in in_all_groups("reduce_scatter", name, ranks):
        owned = scattered(phases, ranks)
        everything = all_chunks(phases)
        assert sorted(place for chunks in owned for place in chunks) == everything
        assert {len(chunks) for chunks in owned} == {len(everything) // ranks}


@pytest.mark.parametrize("name", named("all_gather"))
@for_each("ranks", RANKS)
def test_all_gather_spreads_what_reduce_scatter_leaves(name: str, ranks: int) -> None:
    for group, phases in in_all_groups("all_gather", name, ranks):
        owned = scattered(ALGORITHMS["reduce_scatter"][name](group), ranks)
        marked: list[Chunks] = [dict.fromkeys(chunks, of(position)) for position, chunks in enumerate(owned)]
        everything = {place: held for chunks in marked for place, held in chunks.items()}
        assert execute(phases, marked) == [everything] * ranks


def broadcast_in(group: Group, pieces: int) -> Sequence[Phase]:
    """Broadcast along chains in pieces, round by round: N-2+c rounds of S/c."""
    return _rounds(chain._chain_hops(group, leaves_root=True), group.num_ranks, pieces, reduces=False)


def reduce_in(group: Group, pieces: int) -> Sequence[Phase]:
    """Reduce along chains in pieces, round by round."""
    return _rounds(chain._chain_hops(group, leaves_root=False), group.num_ranks, pieces, reduces=True)


def _rounds(chains: Sequence[Sequence[Hop]], num_ranks: int, pieces: int, *, reduces: bool) -> Sequence[Phase]:
    def make(number: int) -> Phase:
        hops = tuple(
            Hop(hop.source, hop.target, hop.share / pieces, hop.relay, hop.channel, chunk=number - place)
            for chain in chains
            for place, hop in enumerate(chain)
            if 0 <= number - place < pieces
        )
        return Phase(rounds=1, hops=hops, chunks=pieces, reduces=reduces)

    return FunctionSequence(num_ranks - 2 + pieces if num_ranks > 1 else 0, make)


IN_PIECES: dict[str, list[tuple[str, Callable[[Group], Sequence[Phase]]]]] = {
    kind: [(f"{pieces} pieces", partial(function, pieces=pieces)) for pieces in (1, 5)]
    for kind, function in (("broadcast", broadcast_in), ("reduce", reduce_in))
}


@for_each("ranks", RANKS)
def test_broadcast_gives_everybody_the_data_of_the_first(ranks: int) -> None:
    described = [phases for name in named("broadcast") for _, phases in in_all_groups("broadcast", name, ranks)]
    described += [function(group) for _, function in IN_PIECES["broadcast"] for group in groups(ranks).values()]
    for phases in described:
        root: Chunks = dict.fromkeys(all_chunks(phases), of(0))
        assert execute(phases, [root] + [{}] * (ranks - 1)) == [root] * ranks


@for_each("ranks", RANKS)
def test_reduce_gives_the_first_the_contribution_of_everybody_once(ranks: int) -> None:
    described = [phases for name in named("reduce") for _, phases in in_all_groups("reduce", name, ranks)]
    described += [function(group) for _, function in IN_PIECES["reduce"] for group in groups(ranks).values()]
    for phases in described:
        start = own_data(phases, ranks)
        assert execute(phases, start)[0] == dict.fromkeys(start[0], complete(ranks))


def messages(group: Group, sent: Callable[[int, int], bool]) -> tuple[list[Chunks], list[Chunks]]:
    """What everybody has before an all-to-all, and what must have come to everybody after it, but for its own."""
    ranks, places = group.num_ranks, group.positions_in_node_order
    start: list[Chunks] = [{} for _ in range(ranks)]
    wanted: list[Chunks] = [{} for _ in range(ranks)]
    for i in range(ranks):
        for j in range(ranks):
            held = places[i] * ranks + places[j]  # a name
            start[places[i]][0, i * ranks + j] = held
            if i != j and sent(places[i], places[j]):
                wanted[places[j]][0, i * ranks + j] = held
    return start, wanted


def check_delivered(phases: Sequence[Phase], group: Group, sent: Callable[[int, int], bool]) -> None:
    start, wanted = messages(group, sent)
    pairs = ((i, j) for i in group.positions_in_node_order for j in group.positions_in_node_order)
    empty = [chunk for chunk, (i, j) in enumerate(pairs) if not sent(i, j)]
    end = execute(phases, start, empty)
    for position, chunks in enumerate(wanted):
        assert {place: end[position].get(place) for place in chunks} == chunks


@pytest.mark.parametrize("name", named("all_to_all"))
@for_each("ranks", RANKS)
def test_all_to_all_brings_every_message_to_its_receiver(name: str, ranks: int) -> None:
    for group, phases in in_all_groups("all_to_all", name, ranks):
        check_delivered(phases, group, lambda i, j: True)


matrices = st.integers(2, 8).flatmap(
    lambda ranks: st.lists(
        st.lists(st.integers(0, 5).map(float), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks
    ).filter(lambda rows: any(map(any, rows)))
)


@settings(max_examples=40)
@given(parts=matrices)
def test_uneven_all_to_all_brings_every_message_and_sends_no_empty_one(parts: list[list[float]]) -> None:
    for group in groups(len(parts)).values():
        for function in (all_to_all.direct_phases, all_to_all.pairwise_phases, all_to_all.hierarchical_phases):
            if (
                function is all_to_all.hierarchical_phases
                and len({len(positions) for positions in group.positions_by_node}) > 1
            ):
                continue
            phases = function(group, parts)
            assert all(hop.share > 0 for phase in phases for hop in phase.hops)
            check_delivered(phases, group, lambda i, j: parts[i][j] > 0)


def test_send_recv_hands_everything_to_the_next() -> None:
    for ranks in (2, 3, 8):
        phases = ALGORITHMS["send_recv"]["direct"](machines_of(ranks))
        ended = execute(phases, [{(0, i): of(i)} for i in range(ranks)])
        assert ended == [{(0, i): of(i), (0, (i - 1) % ranks): of((i - 1) % ranks)} for i in range(ranks)]


def test_send_moves_the_data_of_the_first_to_the_second() -> None:
    phases = ALGORITHMS["send"]["direct"](machines_of(2))
    assert execute(phases, [{(0, 0): of(0)}, {}])[1] == {(0, 0): of(0)}


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_one_rank_has_nothing_to_send(kind: str, name: str) -> None:
    if kind == "send":
        return
    cluster = flat(2)
    assert link_patterns(cluster, [0], ALGORITHMS[kind][name](make_group(cluster, [0]))) == ()


# --- how many bytes ---------------------------------------------------------------------------------------------------


def least(kind: str, ranks: int, position: int) -> tuple[float, float]:
    """Parts of the size that a rank must send and receive, even if the switches add up and copy."""
    others = (ranks - 1) / ranks
    return {
        "all_reduce": (1.0, 1.0),
        "reduce_scatter": (others, 1 / ranks),
        "all_gather": (1 / ranks, others),
        "broadcast": (0.0, 1.0 if position else 0.0),
        "reduce": (1.0 if position else 0.0, 0.0),
        "all_to_all": (others, others),
        "send_recv": (1.0, 1.0),
        "send": (0.0, 1.0) if position else (1.0, 0.0),
    }[kind]


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
@for_each("ranks", RANKS)
def test_bytes_are_at_least_what_the_collective_needs(kind: str, name: str, ranks: int) -> None:
    """Each rank's need, and without help of the switches what all ranks together send (Patarasuk & Yuan 2009)."""
    if kind == "send":
        ranks = 2
    for _, phases in in_all_groups(kind, name, ranks):
        sent, received = [0.0] * (ranks + 1), [0.0] * (ranks + 1)  # the last one is SWITCH
        for phase in phases:
            for hop in phase.hops:
                sent[hop.source] += phase.rounds * hop.share
                received[hop.target] += phase.rounds * hop.share
        for position in range(ranks):
            need = least(kind, ranks, position)
            assert sent[position] >= need[0] * (1 - 1e-9)
            assert received[position] >= need[1] * (1 - 1e-9)
        if not sent[SWITCH]:
            together = {"all_reduce": 2.0, "broadcast": 1.0, "reduce": 1.0, "all_to_all": 0.0, "send": 0.0}.get(
                kind, 1.0
            )
            assert sum(sent) == pytest.approx(sum(received), rel=1e-9)
            assert sum(sent) >= together * (ranks - 1) * (1 - 1e-9)
        if ALGORITHMS[kind][name].fewest_bytes:  # by the bus factor
            needed = pytest.approx([BUS_FACTOR[kind](ranks)] * ranks, rel=1e-9)
            assert sent[:-1] == needed
            assert received[:-1] == needed


# --- closed forms on the uniform network ------------------------------------------------------------------------------


@cache
def flat(gpus: int, rate: str = "50 GB/s", latency: str = "5 us") -> Cluster:
    return parse_topology(
        {"kind": "flat", "device": "h100", "gpus": gpus, "link": {"line_rate": rate}, "path_latency": latency}
    ).build()


@cache
def dgx(nodes: int, gpus: int = 8, *, nvlink: str = "360 GB/s", per_unit: int = 64, **latency: str) -> Cluster:
    """Machines with 3 us from GPU to GPU over NVLink and 10 us by the network."""

    def link(name: str, rate: str, usual: str) -> dict[str, object]:
        return {"line_rate": rate, "latency": latency.get(name, usual)}

    return parse_topology(
        {
            "kind": "dgx",
            "device": "h100",
            "nodes": nodes,
            "gpus_per_node": gpus,
            "nvlink": link("nvlink", nvlink, "1.5 us"),
            "pcie": link("pcie", "64 GB/s", "1 us"),
            "nic": link("nic", "50 GB/s", "4 us"),
            "fabric": {"nodes_per_unit": per_unit},
        }
    ).build()


def alone(cluster: Cluster, parts: Sequence[LinkPattern], size: float) -> float:
    """Seconds of activities one after the other."""
    capacity = cluster.capacity.tolist()
    return sum([part.make_traffic(size).solo_seconds(capacity) for part in parts])


def depth(ranks: int) -> int:
    return (ranks - 1).bit_length()


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
@for_each("ranks", RANKS)
def test_time_on_the_uniform_network(kind: str, name: str, ranks: int) -> None:
    """A machine each, 50 GB/s, 5 us: equal to the closed form to 1e-9; without one, no faster than its bytes allow."""
    gpus = range(2) if kind == "send" else range(ranks)
    cluster, entry = flat(ranks), ALGORITHMS[kind][name]
    if entry.requires(make_group(cluster, gpus)):
        with pytest.raises(InputError, match=name):
            collective_times(cluster, gpus, kind, GIB, algorithm=name)
        return
    for size in (1.0, 2.0**20, GIB):
        found = collective_times(cluster, gpus, kind, size, algorithm=name)
        if entry.closed_form:
            expected = entry.closed_form(ranks, 5e-6, size / 50e9)
            assert found.duration == pytest.approx(expected, rel=1e-9, abs=1e3 * TICK)
            assert set(found.finishes) == {found.duration}
        needed = max(max(least(kind, len(gpus), position)) for position in range(len(gpus)))
        assert found.duration >= 5e-6 + needed * size / 50e9 - 1e3 * TICK


@for_each("ranks", [*RANKS, 64, 1000])
def test_a_double_tree_is_not_faster_than_its_lower_bound(ranks: int) -> None:
    """2 S (N-1)/N / B + 2 ceil(log2 N) alpha; at most 2 S / B, for nobody has more than four neighbours."""
    found = collective_times(flat(ranks), range(ranks), "all_reduce", GIB, algorithm="tree")
    latency, transfer = 2 * depth(ranks) * 5e-6, GIB / 50e9
    assert 2 * (ranks - 1) / ranks * transfer + latency <= found.duration * (1 + 1e-9)
    assert found.duration <= (2 * transfer + latency) * (1 + 1e-9)


def chain_seconds(ranks: int, pieces: int, size: float, latency: float) -> float:
    return (ranks - 2 + pieces) * (latency + size / pieces / 50e9)


@pytest.mark.parametrize("pieces", [1, 2, 8, 34, 100])
@pytest.mark.parametrize(("kind", "function"), [("broadcast", broadcast_in), ("reduce", reduce_in)])
def test_a_chain_in_pieces(kind: str, function: Callable[[Group, int], Sequence[Phase]], pieces: int) -> None:
    """(N-2+c)(alpha + S/(c B)); N = 8, 100 MB, 10 us: 2.7529 ms with 34 pieces.  In the limit of small pieces, many
    of them under way, the pipeline."""
    for ranks in (2, 3, 8, 24):
        cluster = flat(ranks, latency="10 us")
        found = link_patterns(cluster, range(ranks), function(make_group(cluster, range(ranks)), pieces))
        seconds = alone(cluster, found, 100e6)
        assert seconds == pytest.approx(chain_seconds(ranks, pieces, 100e6, 10e-6), rel=1e-9)
        assert collective_times(cluster, range(ranks), kind, 100e6, algorithm="chain").duration <= seconds + TICK
    if pieces == 34:
        assert f"{chain_seconds(8, 34, 100e6, 10e-6) * 1e3:.4f}" == "2.7529"


def test_a_chain_without_latency_is_what_pieces_tend_to() -> None:
    cluster = flat(8, latency="0 s")
    pipeline = collective_times(cluster, range(8), "broadcast", 100e6).duration
    ratios = [chain_seconds(8, pieces, 100e6, 0.0) / pipeline for pieces in (10, 1000, 100_000)]
    assert ratios == [pytest.approx(1 + 6 / pieces, rel=1e-9) for pieces in (10, 1000, 100_000)]


def test_the_numbers_of_the_modelling_reference() -> None:
    """MODELLING.md D.1: all-to-all of 64 MB by 64 at 50 GB/s and 5 us; ring of 1 GB by 8 with 10 us."""
    pairwise = collective_times(flat(64), range(64), "all_to_all", 64e6, algorithm="pairwise")
    assert pairwise.duration == pytest.approx(1.575e-3, rel=1e-9)
    halving = collective_times(flat(8, latency="10 us"), range(8), "all_reduce", 1e9, algorithm="halving_doubling")
    assert halving.duration == pytest.approx(6 * 10e-6 + 2 * 7 / 8 * 1e9 / 50e9, rel=1e-9)


# --- trees ------------------------------------------------------------------------------------------------------------


def test_the_shape_of_the_double_tree() -> None:
    """MODELLING.md D.1: 0 -> 4; 4 -> 2, 6; 2 -> 1, 3; 6 -> 5, 7 for 8 ranks, and its mirror image."""
    first, second = tree.double_tree_parents(8)
    assert first == (-1, 2, 4, 2, 0, 6, 4, 6)
    assert second == (1, 3, 1, 7, 5, 3, 5, -1)


@for_each("size", range(1, 65))
def test_double_trees_span_all_and_use_every_port(size: int) -> None:
    """For an even number every node is a leaf in one of the trees; the depth is ceil(log2 N) (13: 4)."""
    trees = tree.double_tree_parents(size)
    for parents in trees:
        assert parents.count(-1) == 1
        heights = []
        for node in range(size):
            height, above = 0, parents[node]
            while above >= 0:
                height, above = height + 1, parents[above]
                assert height <= size
            heights.append(height)
        assert max(heights) == depth(size)
    if size > 1:
        busiest = tree.tree_seconds(size, 0.0, 1.0)
        inner = [{parent for parent in parents if parent >= 0} for parents in trees]
        both = inner[0] & inner[1]
        assert both == (set() if size % 2 == 0 else both & {0})
        assert busiest <= 2


def test_a_tree_over_machines_is_a_chain_inside_them() -> None:
    """On each of the 8 rails of 4 machines two trees over the NICs' owners; 2 (7 x NVLink + 2 x network) latency."""
    cluster = dgx(4)
    found = collective_times(cluster, range(32), "all_reduce", 1.0, algorithm="tree")
    assert found.duration == pytest.approx(2 * (7 * 3e-6 + 2 * 10e-6), rel=1e-3)
    carried = link_bytes(cluster, range(32), "all_reduce", "tree", 8.0)
    nic_out = [size for (a, b), size in carried.items() if ".nic" in a and "leaf" in b]
    assert max(nic_out) == pytest.approx(2.0)  # twice the data of the rail: half of them to each of 4 neighbours
    assert sum(nic_out) == pytest.approx(8 * 2 * 3)  # every edge of every tree both ways
    assert all(a.rpartition("nic")[2] == b.rpartition("leaf")[2] for a, b in carried if ".nic" in a and "leaf" in b)


# --- two levels, and reduction in the network -------------------------------------------------------------------------


def link_bytes(
    cluster: Cluster, gpus: Sequence[int], kind: str, algorithm: str, size: float
) -> dict[tuple[str, str], float]:
    """Bytes on every directed link that the collective uses."""
    carried: dict[tuple[str, str], float] = {}
    for pattern in link_patterns(cluster, gpus, ALGORITHMS[kind][algorithm](make_group(cluster, gpus))):
        for link, flows in pattern.usage:
            key = cluster.links[link]
            carried[key] = carried.get(key, 0.0) + flows * pattern.share * size * pattern.rounds
    return carried


def two_level(g: int, m: int, size: float) -> float:
    return (g - 1) * (3e-6 + size / g / 360e9) + (m - 1) * (10e-6 + size / g / m / 50e9)


@pytest.mark.parametrize(("machines", "each"), [(16, 8), (2, 8), (3, 4), (4, 2), (1, 8), (8, 1)])
def test_two_levels(machines: int, each: int) -> None:
    """MODELLING.md D.2: 9.891 ms for 16 machines of 8 and 1 GB; per NIC 2 (m-1)/m S/g instead of 2 (N-1)/N S/g."""
    cluster, gpus = dgx(machines, each), range(machines * each)
    seconds = {
        (kind, detail): collective_times(cluster, gpus, kind, 1e9, algorithm="hierarchical", detail=detail).duration
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
        for detail in ("flow", "steps")
        if len(gpus) < 100 or detail == "flow"
    }
    half = two_level(each, machines, 1e9)
    for (kind, _), found in seconds.items():
        assert found == pytest.approx(2 * half if kind == "all_reduce" else half, rel=1e-9)
    if machines == 16:
        assert f"{seconds['all_reduce', 'flow'] * 1e3:.3f}" == "9.891"
    carried = link_bytes(cluster, gpus, "all_reduce", "hierarchical", 1e9)
    nic_out = [size for (a, b), size in carried.items() if ".nic" in a and "leaf" in b]
    expected = 2 * (machines - 1) / machines * 1e9 / each
    assert nic_out == pytest.approx([expected] * len(gpus) if machines > 1 else [])


@pytest.mark.parametrize(("machines", "each"), [(1, 8), (1, 5), (8, 1), (5, 1)])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
def test_two_levels_of_which_one_is_trivial_are_the_ring(kind: str, machines: int, each: int) -> None:
    """H.13: the same hops, hence the same time to the bit."""
    cluster, gpus = dgx(machines, each), range(machines * each)
    ring, hierarchical = (
        [(phase.rounds, list(phase.hops)) for phase in ALGORITHMS[kind][name](make_group(cluster, gpus)) if phase.hops]
        for name in ("ring", "hierarchical")
    )
    assert ring == hierarchical
    times = [collective_times(cluster, gpus, kind, GIB, algorithm=name).duration for name in ("ring", "hierarchical")]
    assert times[0] == times[1]


@pytest.mark.parametrize(("machines", "each"), [(2, 8), (3, 4), (4, 2), (1, 8), (8, 1)])
def test_all_to_all_in_two_levels(machines: int, each: int) -> None:
    """D.2: S (m-1)/m through every NIC, S (g-1)/g over every NVLink."""
    cluster, gpus = dgx(machines, each), range(machines * each)
    found = collective_times(cluster, gpus, "all_to_all", 1e9, algorithm="hierarchical").duration
    inside, over = (each - 1) * (3e-6 + 1e9 / each / 360e9), (machines - 1) * (10e-6 + 1e9 / machines / 50e9)
    assert found == pytest.approx(inside + over, rel=1e-9)
    carried = link_bytes(cluster, gpus, "all_to_all", "hierarchical", 1e9)
    nic_out = [size for (a, b), size in carried.items() if ".nic" in a and "leaf" in b]
    nvlink = [size for (a, b), size in carried.items() if "nvswitch" in b]
    assert nic_out == pytest.approx([1e9 * (machines - 1) / machines] * len(gpus) if machines > 1 else [])
    assert nvlink == pytest.approx([1e9 * (each - 1) / each] * len(gpus) if each > 1 else [])
    assert not any("spine" in a for a, _ in carried)  # every message stays on its rail


@pytest.mark.parametrize("each", range(2, 9))
def test_nvls_moves_the_size_and_an_nth_of_it_each_way(each: int) -> None:
    """MODELLING.md C.4: S (1 + 1/n) per GPU and direction; of the halves S in one direction and S/n in the other."""
    cluster = dgx(1, each)
    for kind, up, down in (("all_reduce", 1 + 1 / each, 1 + 1 / each), ("reduce_scatter", 1, 1 / each), ("all_gather", 1 / each, 1)):  # fmt: skip  # noqa: E501
        carried = link_bytes(cluster, range(each), kind, "nvls", 1.0)
        assert [size for (_, b), size in carried.items() if "nvswitch" in b] == pytest.approx([up] * each)
        assert [size for (a, _), size in carried.items() if "nvswitch" in a] == pytest.approx([down] * each)
        seconds = collective_times(cluster, range(each), kind, 1e9, algorithm="nvls").duration
        ways = 4 if kind == "all_reduce" else 2
        assert seconds == pytest.approx(ways * 1.5e-6 + max(up, down) * 1e9 / (360e9 * 309 / 370.8), rel=1e-9)


@pytest.mark.parametrize(("each", "algbw"), [(5, 258), (6, 265), (7, 270), (8, 273)])
def test_nvls_as_measured(each: int, algbw: float) -> None:
    """NVIDIA/nccl issue 1455, H100, GB/s: multimem operations reach 309 GB/s of NVLink's 370.8; within 2 %."""
    found = collective_times(dgx(1, each, nvlink="370.8 GB/s"), range(each), "all_reduce", 8 * GIB, algorithm="nvls")
    assert found.algbw / 1e9 == pytest.approx(algbw, rel=0.02)


@pytest.mark.parametrize(("machines", "each"), [(16, 8), (8, 4), (8, 1), (2, 2)])
def test_sharp_sends_and_receives_the_size_once(machines: int, each: int) -> None:
    """C.4: independent of the number of machines; units of 4 machines, so that rails meet above their leaves."""
    cluster, gpus = dgx(machines, each, per_unit=4), range(machines * each)
    found = collective_times(cluster, gpus, "all_reduce", 1e9, algorithm="sharp").duration
    spine = 2 * 0.6e-6 if machines > 4 else 0.0
    inside = 2 * (each - 1) * (3e-6 + 1e9 / each / 360e9)
    assert found == pytest.approx(inside + 10e-6 + spine + 1e9 / each / 50e9, rel=1e-9)
    carried = link_bytes(cluster, gpus, "all_reduce", "sharp", 1.0)
    for a, b in carried:
        if "leaf" in a or "leaf" in b:
            assert carried[a, b] == carried[b, a] == pytest.approx(1 / each)  # once, however many machines are below
    above = [pair for pair in carried if "spine" in pair[0]]
    assert len(above) == (each * machines // 4 if machines > 4 else 0)
    assert len({a for a, _ in above}) == (min(each, len({n for n in cluster.graph if "spine" in n})) if above else 0)


def test_a_switch_tree_has_one_root_and_the_rails_have_different_ones() -> None:
    cluster = dgx(8, 4, per_unit=4)
    roots = []
    for rail in range(4):
        ways = cluster.routes_to_common_switch(range(rail, 32, 4), rail)
        ups = [[cluster.links[link] for link, _ in up] for up, _ in ways]
        downs = [[cluster.links[link] for link, _ in down] for _, down in ways]
        assert downs == [[(b, a) for a, b in reversed(up)] for up in ups]
        (root,) = {up[-1][1] for up in ups}
        roots.append(root)
        onwards: dict[str, str] = {}
        assert all(onwards.setdefault(a, b) == b for up in ups for a, b in up)  # a tree
    assert len(set(roots)) == 4
    assert {cluster.graph.nodes[root]["kind"] for root in roots} == {"switch"}


# --- uneven sizes -----------------------------------------------------------------------------------------------------


@given(parts=matrices)
def test_all_to_all_of_uneven_sizes_reaches_the_bound_of_its_busiest_port(parts: list[list[float]]) -> None:
    """max over the ranks of what they send and what they receive, over B; the pairwise rounds cannot beat it."""
    ranks = len(parts)
    cluster = flat(ranks, latency="0 s")
    group = make_group(cluster, range(ranks))
    largest = max(map(sum, parts))
    sends = [sum(row) - row[i] for i, row in enumerate(parts)]
    receives = [sum(row[j] for row in parts) - parts[j][j] for j in range(ranks)]
    bound = max(*sends, *receives) / largest * 1e9 / 50e9
    direct, pairwise = (
        alone(cluster, link_patterns(cluster, range(ranks), phases), 1e9)
        for phases in (all_to_all.direct_phases(group, parts), all_to_all.pairwise_phases(group, parts))
    )
    assert direct == pytest.approx(bound, rel=1e-9)
    assert pairwise >= direct * (1 - 1e-9)


@given(parts=matrices, data=st.data())
def test_a_matrix_of_sizes_is_played_and_reaches_the_bound(parts: list[list[float]], data: st.DataObject) -> None:
    """MODELLING.md D.1: max_i max(sum_j s_ij, sum_j s_ji) / B and one latency, in flow; the same bytes in steps."""
    ranks = len(parts)
    bound = all_to_all.busiest_port_bytes(parts)
    if bound:
        flow = collective_times(flat(ranks), range(ranks), "all_to_all", parts)
        assert flow.duration == pytest.approx(5e-6 + bound / 50e9, rel=1e-9)
        assert flow.size == max(map(sum, parts))
        name = data.draw(st.sampled_from(["direct", "pairwise"]))
        steps = collective_times(flat(ranks), range(ranks), "all_to_all", parts, algorithm=name, detail="steps")
        assert steps.duration >= flow.duration - ranks * TICK / 2  # all end on the nearest tick


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [
        ("all_to_all", [[0.0, 1.0], [1.0, 0.0]], ["3 x 3"]),
        ("all_to_all", [[0.0] * 3] * 3, ["empty"]),
        ("all_to_all", [[0.0, -1.0, 0.0]] * 3, ["-1.0"]),
        ("all_reduce", [[1.0] * 3] * 3, ["only all_to_all takes a matrix", "give all_reduce a number of bytes"]),
    ],
)
def test_a_matrix_that_does_not_fit(kind: str, size: list[list[float]], words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        collective_times(flat(3), range(3), kind, size)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize("name", ["chain", "binomial"])
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_any_rank_can_be_the_root(kind: str, name: str) -> None:
    """A rotation of the group, with arrivals and finishes in the group's own order."""
    cluster, size = flat(6), 1e8
    detail: Any = "flow" if name == "chain" else "steps"
    play = partial(collective_times, cluster, kind=kind, size=size, algorithm=name, detail=detail)
    arrivals = [0.0, 0.0, 0.0, 0.0, 0.3, 0.0]
    turned = play(range(6), root=4, arrivals=arrivals)
    plain = play([4, 5, 0, 1, 2, 3], arrivals=[0.3, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert turned.gpus == tuple(range(6))
    assert [turned.finishes[position] for position in (4, 5, 0, 1, 2, 3)] == list(plain.finishes)
    with pytest.raises(InputError, match="root is 6; a group of 6 GPUs has positions 0 to 5"):
        play(range(6), root=6)


def test_even_sizes_are_the_even_all_to_all() -> None:
    group = machines_of(4, 4)
    for function in (all_to_all.direct_phases, all_to_all.pairwise_phases, all_to_all.hierarchical_phases):
        even, given_even = ([list(phase.hops) for phase in function(group, parts)] for parts in (None, [[3.0] * 8] * 8))
        assert [[hop.chunk for hop in hops] for hops in even] == [[hop.chunk for hop in hops] for hops in given_even]
        shares = [hop.share for hops in even for hop in hops]
        assert [hop.share for hops in given_even for hop in hops] == pytest.approx(shares)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[1.0, 2.0]], ["2 ranks", "2 x 2"]),
        ([[1.0, 2.0], [1.0]], ["2 x 2"]),
        ([[1.0, -2.0], [1.0, 1.0]], ["-2.0", "at least 0"]),
        ([[1.0, math.nan], [1.0, 1.0]], ["nan"]),
        ([[0.0, 0.0], [0.0, 0.0]], ["empty"]),
    ],
)
def test_sizes_that_make_no_sense(parts: list[list[float]], words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        all_to_all.direct_phases(machines_of(2), parts)
    assert [word for word in words if word not in str(refused.value)] == []


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "group", "words"),
    [
        ("all_reduce", "halving_doubling", machines_of(6), ["power-of-two", "has 6", "use 4 or 8", "ring"]),
        ("all_reduce", "nvls", machines_of(4, 4), ["NVSwitch", "several nodes", "use algorithm ring"]),
        ("all_gather", "nvls", machines_of(8, nvswitch=False), ["have no NVSwitch"]),
        ("all_reduce", "hierarchical", machines_of(3, 2), ["same number of ranks", "3 on one and 2 on another"]),
        ("all_to_all", "hierarchical", machines_of(1, 2), ["same number of ranks"]),
        ("all_reduce", "sharp", machines_of(8), ["inside one", "use nvls or ring"]),
        ("all_reduce", "sharp", machines_of(8, 7), ["sharp", "same number of ranks"]),
    ],
)
def test_groups_that_an_algorithm_cannot_serve(kind: str, name: str, group: Group, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        ALGORITHMS[kind][name](group)
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)


def test_gpus_without_a_common_switch_do_not_reduce_in_it() -> None:
    cluster = parse_topology(
        {
            "kind": "pcie_box",
            "device": "h100",
            "nodes": 2,
            "gpus_per_node": 2,
            "pcie": {"line_rate": "64 GB/s", "latency": "1 us"},
            "nic": {"line_rate": "50 GB/s", "latency": "1 us"},
            "fabric": {"nodes_per_unit": 2},
        }
    ).build()
    phase = Phase(rounds=1, hops=(Hop(0, SWITCH, 1.0), Hop(1, SWITCH, 1.0)), chunks=1, reduces=True, pipelined=True)
    with pytest.raises(InputError, match="share no switch"):
        link_patterns(cluster, range(2), [phase])
    assert collective_times(cluster, range(4), "all_reduce", GIB, algorithm="sharp").duration > 0


# --- in steps ---------------------------------------------------------------------------------------------------------

EIGHT = machines_of(*[1] * 8)
SERVED = {
    (kind, name): ALGORITHMS[kind][name](EIGHT)
    for kind, name in ENTRIES
    if kind != "send" and not ALGORITHMS[kind][name].requires(EIGHT)
}
PIPELINED = [entry for entry, phases in SERVED.items() if any(phase.pipelined for phase in phases)]
IN_ROUNDS = [
    entry
    for entry, phases in SERVED.items()
    if entry not in PIPELINED
    and all(max(Counter(hop.source for hop in phase.hops).values(), default=1) == 1 for phase in phases)
]
"""Those that send at most one message a rank in a round."""


@pytest.mark.parametrize(("kind", "name"), IN_ROUNDS)
@for_each("ranks", [2, 4, 8, 16])
def test_flow_and_steps_agree_on_the_uniform_network(kind: str, name: str, ranks: int) -> None:
    """To the bit, for the rank that is last; from or to a root others may go before."""
    flow, steps = (
        collective_times(flat(ranks), range(ranks), kind, GIB, algorithm=name, detail=detail)
        for detail in ("flow", "steps")
    )
    assert flow.duration == steps.duration
    if kind not in ("broadcast", "reduce"):
        assert flow.finishes == steps.finishes


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_messages_at_once_agree_up_to_rounding(ranks: int) -> None:
    flow, steps = (
        collective_times(flat(ranks), range(ranks), "all_to_all", GIB, algorithm="direct", detail=detail)
        for detail in ("flow", "steps")
    )
    assert flow.duration == pytest.approx(steps.duration, rel=0, abs=100 * TICK)


@given(
    k=st.integers(1, 4),
    kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
    size=st.floats(1.0, 1e11),
    data=st.data(),
)
def test_halving_and_doubling_ends_together_whenever_the_ranks_arrive(
    k: int, kind: str, size: float, data: st.DataObject
) -> None:
    """D.6: max arrival + T0 for every rank, in both details, to the bit."""
    ranks = 1 << k
    times = st.one_of(st.integers(0, 5).map(lambda each: each * 1e-5), st.floats(0.0, 0.1)).map(round_to_tick)
    arrivals = data.draw(st.lists(times, min_size=ranks, max_size=ranks))
    play = partial(collective_times, flat(ranks), range(ranks), kind, size, algorithm="halving_doubling")
    flow, steps = (play(detail=detail, arrivals=arrivals) for detail in ("flow", "steps"))
    assert flow.finishes == steps.finishes == (max(arrivals) + play().duration,) * ranks


@pytest.mark.parametrize(("kind", "name"), IN_ROUNDS)
def test_late_ranks_never_make_steps_later_than_the_flow(kind: str, name: str) -> None:
    arrivals = [0.0, 0.01, 0.0, 0.2, 0.05, 0.0, 0.0, 0.03]
    flow, steps = (
        collective_times(flat(8), range(8), kind, GIB, algorithm=name, detail=detail, arrivals=arrivals)
        for detail in ("flow", "steps")
    )
    assert max(arrivals) < steps.duration + max(arrivals) <= flow.duration + max(arrivals)
    assert all(end >= start for start, end in zip(arrivals, steps.finishes, strict=True))


def test_a_rank_of_a_binomial_tree_goes_when_it_has_the_data() -> None:
    """8 ranks: the root sends three times, 4 receives in the first round and sends twice, 1 receives in the last."""
    step = 5e-6 + GIB / 50e9
    found = collective_times(flat(8), range(8), "broadcast", GIB, algorithm="binomial", detail="steps")
    assert [round(end / step) for end in found.finishes] == [3] * 8
    late = collective_times(
        flat(8), range(8), "broadcast", GIB, algorithm="binomial", detail="steps", arrivals=[0.0] * 7 + [1.0]
    )
    assert late.finishes[:6] == found.finishes[:6]  # only 6 sends to the last one
    assert late.finishes[6] == late.finishes[7] == pytest.approx(1.0 + step)


@pytest.mark.parametrize(("kind", "name"), PIPELINED)
def test_pipelines_are_not_played_in_steps(kind: str, name: str) -> None:
    with pytest.raises(InputError, match=r"only algorithms with rounds.*a pipeline.*use detail: flow"):
        collective_times(flat(4), range(4), kind, GIB, algorithm=name, detail="steps")


def test_algorithms_of_several_groups_share_the_links() -> None:
    """Two all-to-alls on the same GPUs take twice the bandwidth term."""
    cluster = flat(8, latency="0 s")
    (alone,) = concurrent_collective_times(cluster, [range(8)], "all_to_all", GIB)
    both = concurrent_collective_times(cluster, [range(8)] * 2, "all_to_all", GIB)
    assert [each.duration for each in both] == [pytest.approx(2 * alone.duration)] * 2


@pytest.mark.parametrize("name", ["tree", "halving_doubling", "hierarchical"])
def test_folded_and_unfolded_steps_are_equal(name: str, monkeypatch: pytest.MonkeyPatch, tiny: Any) -> None:
    """To the bit, also for algorithms in which the ranks of a group have different parts."""
    door, planned = (importlib.import_module(f"simcluster.{name}") for name in ("simulate", "step.step_plan"))
    ordinary = planned.collective_options

    def chosen(scenario: Any) -> Any:
        choices = ordinary(scenario)
        known = {kind: name for kind in choices.methods.named if name in ALGORITHMS[kind]}
        return replace(choices, methods=MethodChooser({**choices.methods.named, **known}))

    scenario = tiny(
        cluster={"topology": "dgx_h100", "nodes": 2}, parallel={"tp": 2, "pp": 2}, training={"global_batch": 32}
    )
    ring = door.simulate(scenario).to_dict()["step_time_s"]
    monkeypatch.setattr(planned, "collective_options", chosen)
    times = [door.simulate(scenario, folded=folded).to_dict()["step_time_s"] for folded in (True, False)]
    assert times[0] == times[1] != ring


# --- large groups -----------------------------------------------------------------------------------------------------


def test_an_all_to_all_of_many_ranks_holds_no_list_of_its_messages() -> None:
    group = machines_of(*[8] * 10_000)
    (phase,) = all_to_all.direct_phases(group)
    assert len(phase.hops) == 80_000 * 79_999
    assert phase.hops[-1] == Hop(79_999, 79_998, 1 / 80_000, chunk=79_999 * 80_000 + 79_998, lane=79_999)
    rounds = all_to_all.pairwise_phases(group)
    assert len(rounds) == 79_999
    assert len(all_to_all.hierarchical_phases(group)) == 7 + 9_999


@pytest.mark.benchmark
@pytest.mark.parametrize(("kind", "name"), [entry for entry in ENTRIES if entry[0] != "send"])
def test_a_description_for_1024_ranks_is_quick(kind: str, name: str) -> None:
    group = machines_of(1024) if name == "nvls" else machines_of(*[8] * 128)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        ALGORITHMS[kind][name](group)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.1
