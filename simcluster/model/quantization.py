"""Recipes of low precision, and the kernels that quantize operands of matmuls, per microbatch or (weights) once a step.

Transformer Engine's (NVIDIA/TransformerEngine, transformer_engine/), as Megatron-Core uses it; e is 2 bytes, c an
operand's bytes per element. A norm writes the operand only with delayed scaling, finds its largest value with current
scaling, and does neither with blocks (@01a4d04 pytorch/csrc/extensions/normalization.cpp, @0064fbd quantizer.cpp,
``create_hp_tensor_with_amax``); activation functions are Megatron-LM's, which quantize nothing. Per operand:

* delayed: one kernel reads e and writes c in each order, with the scale of past steps (``fp8_cast_transpose_fused``);
* current: a kernel sets the largest value to 0, one finds it, one makes the scale, one casts (``quantize_impl``);
* blockwise (1 x 128, weights 128 x 128) and mxfp8 (1 x 32): one kernel, which finds the scales of its blocks;
* nvfp4 (1 x 16, weights 16 x 16): two kernels find the largest values, of the plain operand and of its Hadamard
  transform; one casts along rows, one transforms and casts along columns, since the weight gradient reads transformed
  operands (@e519ea4 common/hadamard_transform/hadamard_transform_cast_fusion.cu; of later releases one kernel does
  both). Gradients, rounded stochastically, need one more kernel for the state of random numbers; weights have no
  transform, and one kernel writes both orders (arXiv:2509.25149).

Scales of mxfp8 and nvfp4 are rearranged before each matmul, a kernel for each operand (``swizzle_scaling_factors``).
What is gathered over tp, and how: @0004dbd pytorch/module/layernorm_linear.py, docs/features/low_precision_training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from simcluster.model.kernel_choices import QUANTIZED, CastKernels, Fp8Scaling, Operand, Quantization
from simcluster.model.kernels import Kernel, Section
from simcluster.model.layer_sections import join_sections, memory_kernel
from simcluster.model.rank_shape import RankShape

_CURRENT, _HADAMARD = CastKernels(2, 4), CastKernels(3, 4)
_RECIPES: Mapping[str, Quantization] = MappingProxyType(
    {
        "delayed": Quantization("delayed", 1.0, normed=CastKernels(0, 0), gathers="rows"),
        "current": Quantization(
            "current", 1.0, normed=CastKernels(1, 3), input=_CURRENT, gradient=_CURRENT, weight=_CURRENT,
            gathers="rows", reduces_largest=True,
        ),
        "blockwise": Quantization("blockwise", 1.0 + 4 / 128),
        "mxfp8-mixed": Quantization("mxfp8", 1.0 + 1 / 32, rows=32, swizzled=1 / 32, rearranges=False),
        "nvfp4-mixed": Quantization(
            "nvfp4", 0.5 + 1 / 16, rows=64, swizzled=1 / 16, normed=_HADAMARD, input=_HADAMARD,
            gradient=CastKernels(3, 5), weight=CastKernels(2, 3), reduces_largest=True,
        ),
    }
)  # fmt: skip


def torch_quantization(precision: str = "fp8-mixed") -> Quantization:
    """Return the recipe of torchao under torch.compile: one kernel per operand writes both orders.

    The kernel that made the operand finds its largest value; operands are gathered in 16 bits.
    """
    like = _RECIPES["delayed" if precision == "fp8-mixed" else precision]
    return Quantization("torch", like.operand_bytes, like.rows, gathers="16-bit", rearranges=False)


def find_quantization(
    precision: str, scaling: Fp8Scaling | None, *, fused: bool, either_order: bool
) -> Quantization | None:  # fmt: skip
    """Return the recipe of a training precision; None for 16 and 32 bits.

    ``scaling`` of fp8 is delayed by default, as Megatron-LM's ``--fp8-recipe``. ``fused``: kernels are Transformer
    Engine's. ``either_order``: matmuls take fp8 operands along rows or columns (Blackwell,
    ``nvte_is_non_tn_fp8_gemm_supported``), so that one copy with one scale serves both.
    """
    if precision not in QUANTIZED:
        return None
    if not fused:
        return torch_quantization(precision)
    found = _RECIPES[(scaling or "delayed") if precision == "fp8-mixed" else precision]
    if either_order and found.gathers == "rows":
        return replace(found, copies=1, rearranges=False)
    return found


# --- kernels -------------------------------------------------------------------------------------------------------


def cast_kernels(
    name: str, shape: RankShape, operand: Operand, elements: int, scales: float, *, copies: int = 0, launches: int = 1
) -> tuple[Kernel, ...]:
    """Return the kernels, as one, that quantize an operand in ``copies`` orders (0: all); none in 16 bits.

    ``launches`` of each kernel: one per expert. Recipes that rearrange scales do so before each of its matmuls, one
    forward and two of a gradient, with a kernel for either operand: of N ``scales``' elements in all. Of an operand
    that its maker has written, only the second order is left to make: a transpose.
    """
    how = shape.quantization
    if how is None or not elements:
        return ()
    own, copies = how.cast_kernels(operand), copies or how.copies
    count, size = launches * own.launches, own.reads * shape.element_bytes + copies * how.operand_bytes
    if not own.reads:
        count, size = copies - 1, 2 * (copies - 1) * how.operand_bytes
    if how.swizzled:
        count += 4 if operand == "gradient" else 2
    return (memory_kernel(f"{name}_cast", size * elements + 2 * how.swizzled * scales, count),) if count else ()


def cast_matmul_pair(
    name: str, shape: RankShape, body: Sequence[Section], *,
    rows: int, outer_size: int, launches: int = 1, operand: Operand = "input", gathered: bool = False,
) -> tuple[Section, tuple[Section, Section, Section]]:  # fmt: skip
    """Add the kernels that quantize operands to the first and last matmul of a block; return outer ones and the rest.

    The outer ones are those of the first matmul's input (forward) and of the last one's output gradient (backward),
    which the caller puts where these are made. The matmuls work on N ``rows``; ``outer_size`` counts the elements of
    the first matmul's input and of the last one's output; 0 if these arrive quantized. Both are ``gathered`` over tp
    as they are quantized; what the weight gradients read is then transposed or rearranged.
    """
    first, *rest, last = body
    up, down = first.forward[0], last.forward[0]
    up_weight, down_weight = (kernel.k * kernel.n * kernel.batch for kernel in (up, down))
    (x, middle), (middle_grad, grad) = ([rows * getattr(kernel, side) for kernel in (up, down)] for side in "kn")
    how = shape.quantization
    copies = 1 if how and gathered and how.gathers == "rows" else 0

    def cast(tensor: str, operand: Operand, elements: int, scales: int, copies: int = 0) -> tuple[Kernel, ...]:
        return cast_kernels(f"{name}_{tensor}", shape, operand, elements, scales, copies=copies, launches=launches)

    between = (
        Section(input_grad=cast("middle_grad", "gradient", middle_grad, 2 * middle_grad + up_weight + x)),
        *rest,
        Section(forward=cast("middle", "input", middle, middle + down_weight)),
    )
    outside = Section(
        forward=cast("input", operand, outer_size, x + up_weight, copies),
        input_grad=cast("grad", "gradient", outer_size, 2 * grad + down_weight + middle, copies),
    )
    if how and gathered and how.rearranges:
        each = 2 * how.operand_bytes
        first = _prepend_weight_grad(first, memory_kernel(f"{up.name}_input_transpose", each * x))
        last = _prepend_weight_grad(last, memory_kernel(f"{down.name}_grad_transpose", each * grad))
    return outside, (first, join_sections(between, "none"), last)


def _prepend_weight_grad(section: Section, kernel: Kernel) -> Section:
    return replace(section, weight_grad=(kernel, *section.weight_grad))


def weight_cast_kernels(shape: RankShape, sections: Iterable[Section]) -> tuple[Kernel, ...]:
    """Return the kernels that quantize the sections' weights, or transpose quantized ones, one by one.

    They run in the first microbatch of a step; later ones reuse the copies (Transformer Engine, ``is_first_microbatch``
    of its modules and ``get_weight_workspace``).
    """
    if not shape.weight_cast_bytes:
        return ()
    gradients = (kernel for section in sections for kernel in section.weight_grad)
    return tuple(
        Kernel(
            kernel.name.replace("_weight_grad", "_weight_cast"), "memory", 0.0,
            shape.weight_cast_bytes * kernel.m * kernel.n * kernel.batch,
            launches=kernel.launches * shape.weight_cast_launches, calls=kernel.calls,
        )
        for kernel in gradients
        if kernel.kind == "matmul" and not kernel.keeps_16_bits
    )  # fmt: skip
