"""Casts to fp8 or fp4: of what two matmuls read and of the gradients of what they give, and of weights once a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def weight_casts(shape: RankShape, sections: Iterable[Section]) -> tuple[Kernel, ...]:
    """Return the kernels that cast the weights of these sections, one for each weight of a module.

    They run in the first microbatch of a step; later ones reuse the copies (Transformer Engine,
    ``is_first_microbatch`` of its modules and ``get_weight_workspace``).
    """
    if not shape.weight_cast_bytes:
        return ()
    gradients = (kernel for section in sections for kernel in section.weight_grad)
    return tuple(
        Kernel(
            kernel.name.replace("_weight_grad", "_weight_cast"), "memory", 0.0,
            shape.weight_cast_bytes * kernel.m * kernel.n * kernel.batch, launches=kernel.launches, calls=kernel.calls,
        )
        for kernel in gradients
        if kernel.kind == "matmul" and not kernel.wide
    )  # fmt: skip
