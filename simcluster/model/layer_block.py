"""The block of a layer kind from its body: norm, casts of operands and residual add around it, and what runs again.

Shapes are those of one rank: heads, MLP columns and vocabulary divided by tp; n = micro_batch x sequence / cp tokens in
the body of a block, and n / tp in its entry and exit under sequence parallelism.  Communication is not here: it goes
between entry, body and exit (``kernels.Block``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simcluster.model import eager_sections as eager
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_sections import LocalSizes, RankShape, cast, join, linear, norm, residual_add
from simcluster.model.transformer import Model


def layer_block(name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]) -> Block:
    """Return a block between its norm and its residual add; under full recompute every section runs its forward again.

    One that ``stops_early`` does not run the last product of the MLP again, nor what follows: backward reads neither.
    """
    entry = norm_of(f"{name}_norm", model, shape, local, residual=True)
    if model.layer_norms == 1 and name == "mlp":  # it reads what the attention's norm gave
        entry = Section(input_grad=entry.input_grad[-1:])
    add = residual_add(name, model, shape, local)
    if model.layer_norms == 4:
        add = join((norm_of(f"{name}_post_norm", model, shape, local, residual=False), add), "none")
    if shape.fp8:
        outside, body = cast_pair(name, shape, body, rows=local.tokens, outer=local.edge_tokens * local.hidden)
        entry = replace(entry, forward=(*entry.forward, *outside.forward))
        add = replace(add, input_grad=(*outside.input_grad, *add.input_grad))
    if shape.recompute == "operators":
        joined = join(body, "none")
        again = (*entry.forward, *_run_again(name, model, shape, local, body))
        again += add.forward if name == "attention" else ()
        return Block(name, entry=entry, body=replace(joined, recompute=again), exit=add)
    mode = "full" if name == "mlp" and shape.reruns("mlp") else shape.recompute
    whole = Block(
        name,
        entry=join([entry], mode),
        body=join(body, mode),
        exit=join([add], shape.recompute),
    )
    if shape.recompute == "full" and shape.stops_early and name == "mlp":
        shorter = replace(whole.body, recompute=whole.body.recompute[:-1])
        return replace(whole, body=shorter, exit=replace(whole.exit, recompute=()))
    return whole


def norm_of(name: str, model: Model, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    """Return a norm by the kernels that the software has."""
    if shape.kernels == "eager":
        return eager.norm(name, model, shape, local, residual=residual)
    return norm(name, shape, local, residual=residual)


def _run_again(
    name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]
) -> tuple[Kernel, ...]:
    """Kernels between the norm and the residual add that run again when every second product's result is kept.

    Counting through a layer of the Llama family, whose products are separate: of query, key, value, projection, gate,
    up and down the second, fourth and sixth; of the GPT family's four the second.  The last is never needed.  Attention
    is kept (torchtitan, ``_apply_ac_to_transformer_block``, "op"; torch.utils.checkpoint's selective contexts).
    """

    def product(width_in: int, width_out: int) -> tuple[Kernel, ...]:
        return linear(f"{name}_again", shape, local.tokens, width_in, width_out, bias=False).forward

    if name == "attention":
        key = product(local.hidden, local.kv) if model.gated_mlp else ()
        core = [kernel for section in body[1:-1] for kernel in section.forward if kernel.kind != "attention"]
        return (*key, *core, *product(local.query, local.hidden))
    up = product(local.hidden, local.ffn) if model.gated_mlp else ()
    return (*up, *body[1].forward)


# --- casts to fp8 or fp4 ----------------------------------------------------------------------------------------------


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
