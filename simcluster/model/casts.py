"""Casts to fp8 or fp4 around two products: kernels of what both read, and of the gradients of what both gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import RankShape, cast, join


class CastPair(NamedTuple):
    """A widening product, what is between, and a narrowing one, with their casts.

    ``outside``: what the first reads (forward) and the gradient of what the last gave (backward), which the caller puts
    where these are made; ``body``: both products, and between them the casts of the inner tensors.
    """

    outside: Section
    body: tuple[Section, Section, Section]


def cast_pair(
    name: str, shape: RankShape, body: Sequence[Section], *, rows: int, outer: int, launches: int = 1
) -> CastPair:
    """The pair with casts, of ``launches`` kernels each.

    ``rows`` are those that the products work on; ``outer``: elements of the first's input, as many as of the last's
    output; 0 where these come cast.
    """
    first, *rest, last = body

    def made(tensor: str, elements: int) -> tuple[Kernel, ...]:
        kernels = cast(f"{name}_{tensor}", shape, elements) if elements else ()
        return tuple(replace(kernel, launches=launches) for kernel in kernels)

    between = (
        Section(input_grad=made("middle_grad", rows * first.forward[0].n)),
        *rest,
        Section(forward=made("middle", rows * last.forward[0].k)),
    )
    outside = Section(forward=made("input", outer), input_grad=made("grad", outer))
    return CastPair(outside, (first, join(between, "none"), last))
