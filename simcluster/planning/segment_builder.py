"""Builder of the ops of one segment: kernels, collectives and host work, with memory changes of each op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from simcluster.model.kernels import Kernel, split_matmul
from simcluster.planning.ops import MAIN, HostWork, MemoryChange, Op, OpWork, Segment
from simcluster.planning.rank_grid import get_communicator
from simcluster.planning.work_kinds import Collective, Compute

WorkMaker = Callable[[Sequence[Kernel]], Compute]
"""Function that converts kernels, run one after the other, to the work of a compute op."""
Timer = Callable[[Sequence[Kernel]], float]
"""Function that returns the seconds of kernels run one after the other on a GPU at full speed."""


def cache_timer(timer: Timer) -> Timer:
    """Return the kernel timer with a cache, because every layer runs the same kernels."""
    known: dict[tuple[int, ...], tuple[Sequence[Kernel], float]] = {}  # with the kernels, so that names stay theirs

    def cached_seconds(kernels: Sequence[Kernel]) -> float:
        name = tuple(map(id, kernels))
        if name not in known:
            known[name] = kernels, timer(kernels)
        return known[name][1]

    return cached_seconds


class HostLaunchTimes(NamedTuple):
    """Host times (s) to launch kernels and collectives, and GPU idle times before and after them.

    To issue one ``kernel``, another ``launch`` of the same call, one ``collective``, and what else a ``microbatch``'s
    forward takes on a stage, all overlapped with the GPU's work. The GPU is idle for ``gap`` at each kernel, for
    ``late`` at each collective over tp that it waits for, for ``loss`` after a forward with the loss, and for ``sync``
    where the host waits for counts.
    """

    kernel: float = 0.0
    collective: float = 0.0
    microbatch: float = 0.0
    gap: float = 0.0
    late: float = 0.0
    loss: float = 0.0
    sync: float = 0.0
    launch: float = 0.0


NO_HOST_COSTS = HostLaunchTimes()
"""Times of a host that never delays the GPU."""


class LaunchedKernels(NamedTuple):
    """Kernels that one op launches in order, and the op's kind, name and layer."""

    kind: str
    name: str
    layer: int
    kernels: tuple[Kernel, ...]


class SegmentBuilder:
    """Builder of the ops of a segment: kernels on the main lane, collectives on the main or on separate lanes.

    The last op cannot begin before the host has issued them all. ``pieces`` is the number of pieces of matmuls that
    overlap with collectives; in a ``ring`` every rank of the group has a piece.
    """

    def __init__(
        self, work: WorkMaker, issue: HostLaunchTimes = NO_HOST_COSTS, *, pieces: int = 1, ring: bool = False
    ) -> None:
        self._work = work
        self._issue = issue
        self._pieces = pieces
        self._ring = ring
        self._issued = 0.0  # seconds of the host since it began, or last waited for the GPU
        self._begun = 0  # the op from whose end on it issues the others
        self._ops: list[Op] = []
        self._main = -1  # the last op on the main lane
        self._beside: list[int] = []  # ops on other lanes that nobody has joined yet
        self._joining: tuple[int, ...] = ()
        self.launched: list[LaunchedKernels] = []

    def add_microbatch_start(self) -> None:
        """Add the host time to load a microbatch and build its attention masks."""
        self._issued += self._issue.microbatch

    def add_wait_for_counts(self, layer: int) -> None:
        """Make the host wait for counts from the GPU, such as the number of rows per expert.

        The next ops cannot begin before it has issued what came so far, nor before it has seen the counts.
        """
        if self._issue == NO_HOST_COSTS or not self._ops:
            return
        if self._issued:
            self._ops.append(self._make_host_op())
            self._joining += (len(self._ops) - 1,)
        self._add_main_op(HostWork(self._issue.sync), "host", "launch", "counts", layer)
        self._issued, self._begun = 0.0, self._main

    def add_kernels(self, kernels: Sequence[Kernel], kind: str, name: str, layer: int) -> None:
        """Add kernels as one op on the main lane, cut where a collective follows one; nothing if there are none."""
        for place, kernel in enumerate(kernels):
            if kernel.then:
                self.add_kernels((*kernels[:place], replace(kernel, then=None)), kind, name, layer)
                self.add_collective(*kernel.then, layer)
                return self.add_kernels(kernels[place + 1 :], kind, name, layer)
        if kernels:
            launches = sum(kernel.launches for kernel in kernels)
            calls = sum(kernel.calls for kernel in kernels)
            self._issued += calls * self._issue.kernel + (launches - calls) * self._issue.launch
            self.launched.append(LaunchedKernels(kind, name, layer, tuple(kernels)))
            work = self._work(kernels)
            if self._issue.gap:
                work = replace(work, seconds=work.seconds + launches * self._issue.gap)
            self._add_main_op(work, "compute", kind, name, layer)
        return None

    def add_empty_pass(self, kind: str) -> None:
        """Add a pass without layers, which takes no time."""
        self._add_main_op(Compute(0.0), "compute", kind, "empty", -1)

    def add_collective(self, kind: str, name: str, size: float, layer: int = -1, axis: str = "tp") -> None:
        """Add a collective of ``size`` bytes over an axis; the main lane waits until the collective ends."""
        self._issued += self._issue.collective
        stream = get_communicator(axis).stream
        self.add_host_wait(self._issue.late if stream == "tp" else 0.0, "late", layer)
        self._add_main_op(Collective(kind, axis, size), stream, kind, name, layer)

    def add_overlapped_collective(self, kind: str, name: str, size: float, layer: int, axis: str = "tp") -> None:
        """Add a collective that begins when the main lane's last op ends and overlaps with the next ops.

        Where there is none yet, it begins after an op of the host of no time.
        """
        stream = get_communicator(axis).stream
        if self._main < 0 and stream != "tp":
            self._add_main_op(HostWork(0.0), "host", "launch", "begin", layer)
        self._issued += self._issue.collective
        after = (self._main,) if self._main >= 0 else ()
        self._ops.append(Op(Collective(kind, axis, size), stream, kind, name, layer, stream, after))
        self._beside.append(len(self._ops) - 1)

    def join_collectives(self, count: int | None = None) -> None:
        """Make the next op of the main lane wait for all overlapping collectives, or for the first ``count``."""
        many = len(self._beside) if count is None else count
        self._joining += tuple(self._beside[:many])
        del self._beside[:many]

    def add_gathered_matmul(self, kernel: Kernel, kind: str, name: str, size: float, layer: int) -> None:
        """Add a matmul in pieces; each piece waits for the all-gather of one part of the operand.

        With equal pieces, matmul g and gather c take max(g, c) + min(g, c) / pieces (modelling of asynchronous tensor
        parallelism; Megatron-LM's ``--tp-comm-overlap`` with all-gather in pieces). In a ``ring`` every member has a
        piece, begins with that, and passes on what it gets from its neighbour, in copies and not in collectives
        (Transformer Engine's userbuffers, CommOverlapP2P; PyTorch's fused_all_gather_matmul).
        """
        begins = not self._ops  # nothing is there for the first to go beside
        called = "send_recv" if self._ring else "all_gather"
        if begins:
            self.add_collective(called, name, size / self._pieces, layer)
        for _ in range(self._pieces - begins - self._ring):
            self.add_overlapped_collective(called, name, size / self._pieces, layer)
        for number, piece in enumerate(split_matmul(kernel, self._pieces)):
            self.join_collectives(1 if number >= begins + self._ring else 0)
            self.add_kernels((piece,), kind, name, layer)

    def add_reduced_matmul(
        self, kernel: Kernel, kind: str, name: str, reduction: tuple[str, str, float], layer: int
    ) -> None:
        """Add a matmul in pieces; the result of each piece is reduced over an axis as soon as the piece ends.

        No op has joined the reductions yet. ``reduction`` is the collective's kind, its name and its bytes. In a
        ``ring`` a piece is copied to the member whose share it is, the member's own comes last, and it sums what it got
        (``add_ring_sum``).
        """
        collective, called, size = reduction
        for number, piece in enumerate(split_matmul(kernel, self._pieces)):
            self.add_kernels((piece,), kind, name, layer)
            if not self._ring:
                self.add_overlapped_collective(collective, called, size / self._pieces, layer)
            elif number < self._pieces - 1:
                self.add_overlapped_collective("send_recv", called, size / self._pieces, layer)

    def add_ring_sum(self, kind: str, name: str, size: float, layer: int) -> None:
        """Add the kernel that sums partial results received around a ring of ranks (``size`` bytes in total).

        (Transformer Engine's reduce_bf16 after CommOverlapP2PBase's split_overlap_rs; the sum over stacked partial
        results in PyTorch's fused_matmul_reduce_scatter.)
        """
        self.add_kernels((Kernel(f"{name}_sum", "memory", 0.0, size * (1.0 + 1.0 / self._pieces)),), kind, name, layer)

    def attach_memory(
        self, begin: int, name: str, changes: Sequence[MemoryChange], routed: Sequence[MemoryChange] = ()
    ) -> None:
        """Attach memory changes of the block ``name`` to the segment's ops from index ``begin`` on.

        A visit without ops allocates and frees after the op before it. ``routed`` is part of ``changes`` (``ops.Op``).
        """
        own = range(begin, len(self._ops))
        if not own:
            self._attach_to_op(self._main, [MemoryChange(each.pool, 0.0, each.start + each.end) for each in changes])
            return
        main = [index for index in own if self._ops[index].name == name and self._ops[index].stream == "compute"]
        first = main[0] if main else begin
        self._attach_to_op(first, *([MemoryChange(each.pool, each.start, 0.0) for each in part if each.start]
                                for part in (changes, routed)))  # fmt: skip
        self._attach_to_op(self._main, *([MemoryChange(each.pool, 0.0, each.end) for each in part if each.end]
                                     for part in (changes, routed)))  # fmt: skip

    def _attach_to_op(self, index: int, changes: Sequence[MemoryChange], routed: Sequence[MemoryChange] = ()) -> None:
        if changes:
            op = self._ops[index]
            self._ops[index] = replace(op, memory=(*op.memory, *changes), routed=(*op.routed, *routed))

    def __len__(self) -> int:
        return len(self._ops)

    def build_segment(self) -> Segment:
        """Return the segment of all ops added so far."""
        return Segment(tuple(self._ops if self._issued == 0 else self._ops_with_host_op()))

    def _ops_with_host_op(self) -> list[Op]:
        first, last = self._ops[0], self._ops[-1]
        if len(self._ops) == 1:
            assert isinstance(first.work, Compute), first
            return [replace(first, work=replace(first.work, seconds=max(first.work.seconds, self._issued)))]
        if self._begun == len(self._ops) - 1:  # nothing came behind what it waited for
            return self._ops
        return [*self._ops[:-1], self._make_host_op(), replace(last, after=(*last.after, len(self._ops) - 1))]

    def _make_host_op(self) -> Op:
        first = self._ops[self._begun].work
        done = 0.0 if first.sensitivity is None else first.seconds
        left = HostWork(max(self._issued - done, 0.0))
        return Op(left, "host", "launch", "launch", lane="host", after=(self._begun,))

    def add_host_wait(self, seconds: float, name: str, layer: int = -1) -> None:
        """Let the GPU wait for ``seconds`` of host work; add nothing for 0."""
        if seconds:
            self._add_main_op(HostWork(seconds), "host", "launch", name, layer)

    def _add_main_op(self, work: OpWork, stream: str, kind: str, name: str, layer: int) -> None:
        self._ops.append(Op(work, stream, kind, name, layer, MAIN, self._joining))
        self._joining = ()
        self._main = len(self._ops) - 1


def renumber_layers(segment: Segment, new_numbers: Mapping[int, int]) -> Segment:
    """Return the segment with new layer numbers; layers outside the mapping keep their numbers."""
    return Segment(tuple([
        Op(op.work, op.stream, op.kind, op.name, new_numbers.get(op.layer, op.layer), op.lane, op.after, op.memory,
           op.routed)
        for op in segment.ops
    ]))  # fmt: skip
