"""The ops of a segment in the making.  Pure; imports ops and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simcluster.kernels import Kernel, in_pieces
from simcluster.ops import MAIN, Change, Collective, Compute, Op, Segment

Worker = Callable[[Sequence[Kernel]], Compute]
"""What kernels one after the other are for the engine."""


class OpsInMaking:
    """Ops one behind the other; what goes beside the main lane is joined by a later op on it."""

    def __init__(self, work: Worker) -> None:
        self._work = work
        self._ops: list[Op] = []
        self._main = -1  # the last op on the main lane
        self._beside: list[int] = []  # ops on the tp lane that nobody has joined yet
        self._joining: tuple[int, ...] = ()

    def compute(self, kernels: Sequence[Kernel], kind: str, name: str, layer: int) -> None:
        """Kernels on the main lane; nothing if there are none."""
        if kernels:
            self._add(self._work(kernels), "compute", kind, name, layer)

    def collective(self, kind: str, name: str, size: float, layer: int = -1) -> None:
        """A collective over tp that the main lane waits for."""
        self._add(Collective(kind, "tp", size), "tp", kind, name, layer)

    def beside(self, kind: str, name: str, size: float, layer: int) -> None:
        """A collective on the tp lane, from the end of the last main op on."""
        after = (self._main,) if self._main >= 0 else ()
        self._ops.append(Op(Collective(kind, "tp", size), "tp", kind, name, layer, "tp", after))
        self._beside.append(len(self._ops) - 1)

    def join(self, count: int | None = None) -> None:
        """The next op on the main lane waits for what goes beside it: all of that, or the first ``count``."""
        many = len(self._beside) if count is None else count
        self._joining += tuple(self._beside[:many])
        del self._beside[:many]

    def gathered(self, kernel: Kernel, pieces: int, kind: str, name: str, size: float, layer: int) -> None:
        """A product whose operand is gathered piece by piece beside it: each piece of the product waits for its own.

        With equal pieces, product g and gather c take max(g, c) + min(g, c) / pieces (modelling of asynchronous tensor
        parallelism; Megatron-LM's ``--tp-comm-overlap`` with all-gather in pieces).
        """
        for _ in range(pieces):
            self.beside("all_gather", name, size / pieces, layer)
        for piece in in_pieces(kernel, pieces):
            self.join(1)
            self.compute((piece,), kind, name, layer)

    def reduced(
        self, kernel: Kernel, pieces: int, kind: str, name: str, reduction: tuple[str, str, float], layer: int
    ) -> None:
        """A product whose result is reduced piece by piece, each as soon as it is there; nobody has joined them yet.

        ``reduction`` is the collective's kind, its name and its bytes.
        """
        collective, called, size = reduction
        for piece in in_pieces(kernel, pieces):
            self.compute((piece,), kind, name, layer)
            self.beside(collective, called, size / pieces, layer)

    def hold(self, begin: int, name: str, changes: Sequence[Change]) -> None:
        """Memory of a visit of the block ``name``, which began at this op: it grows with the block's main kernels.

        A visit without ops grows and frees behind the op before it.
        """
        own = range(begin, len(self._ops))
        if not own:
            self._remember(self._main, [Change(change.pool, 0.0, change.start + change.end) for change in changes])
            return
        main = [index for index in own if self._ops[index].name == name and self._ops[index].stream == "compute"]
        first = main[0] if main else begin
        self._remember(first, [Change(change.pool, change.start, 0.0) for change in changes if change.start])
        self._remember(self._main, [Change(change.pool, 0.0, change.end) for change in changes if change.end])

    def _remember(self, index: int, changes: Sequence[Change]) -> None:
        self._ops[index] = replace(self._ops[index], memory=(*self._ops[index].memory, *changes))

    def __len__(self) -> int:
        return len(self._ops)

    def segment(self) -> Segment:
        """What has been put so far."""
        return Segment(tuple(self._ops))

    def _add(self, work: Compute | Collective, stream: str, kind: str, name: str, layer: int) -> None:
        self._ops.append(Op(work, stream, kind, name, layer, MAIN, self._joining))
        self._joining = ()
        self._main = len(self._ops) - 1
