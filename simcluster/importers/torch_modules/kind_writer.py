"""Documents of traced layer kinds: numbers of six traces become formulas of tokens, sequence and tp."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from simcluster.importers.torch_modules.kind_builder import TracedKind
from simcluster.importers.torch_modules.traced_layer import Amount

LENGTHS = (1, 2, 4)
"""Reciprocals of the parts of the sequence length that are traced."""
_LONGEST = 500  # characters of a formula
_TILE = 128  # a custom operation's FLOP are those of a matmul in tiles of this size
_WORDS = (("micro_batch", "{}tokens", "tokens * sequence"), ("", "sequence", "sequence * sequence"))
_COMPILED = {"values": ["fused", "compiled", None], "reason": "its kernels are as a compiler fuses them"}
_NO_EXPERTS = {"values": [1], "reason": "experts of a traced module are not divided; use ep 1"}


class KindWriter:
    """Writer of a layer kind's document, given its numbers at every (micro batch, sequence length) of ``points``."""

    def __init__(self, points: Sequence[tuple[int, int]], source: str) -> None:
        self._points, self._source = points, source

    def write(self, kinds: Sequence[TracedKind], what: str) -> dict[str, Any]:
        """Return the document of one kind, traced at every point."""
        first = kinds[0]
        entry, end = (self._section([getattr(each, name) for each in kinds], edge=True) for name in ("entry", "exit"))
        body = [self._section(parts) for parts in zip(*(each.body for each in kinds), strict=True)]
        weights, saved = {name: dict(rule) for name, rule in first.weights.items()}, dict[str, Any]()
        for name, rule in weights.items():
            for side in ("rows", "columns"):
                rule[side] = self._text([each.weights[name][side] for each in kinds], whole=True)
        for name, fields in first.saved.items():
            size = self._text([each.saved[name]["bytes"] for each in kinds], edge=fields["edge"])
            saved[name] = {**fields, "bytes": size}
            del saved[name]["edge"]
        divided = math.gcd(*first.divided) if first.divided else 1
        why = "the heads and widths that the plan divides" if divided > 1 else "no plan has one reduction per kind"
        by_tp = {"values": [tp for tp in range(1, 65) if divided % tp == 0], "reason": f"{why}: use one of the values"}
        experts = {"parallel.ep": _NO_EXPERTS} if first.experts else {}
        vectors, idle, working = (
            self._text([getattr(each, name) for each in kinds], whole=True) for name in ("vectors", "idle", "working")
        )
        return {
            "description": what, "source": self._source, **({} if first.mixes else {"mixes": False}),
            "supports": {"parallel.tp": by_tp, "software.kernels": _COMPILED, **experts}, "weights": weights,
            "vectors": vectors, **({"idle": idle} if first.idle else {}), "entry": entry, "body": body, "exit": end,
            "saved": saved, "working": {"backward": working}, **_count_model_flops(body),
        }  # fmt: skip

    def _section(self, parts: Sequence[Mapping[str, Any]], *, edge: bool = False) -> dict[str, Any]:
        if "matmul" in parts[0]:
            return dict(parts[0])
        return {
            phase: {name: self._kernel([each[phase][name] for each in parts], edge) for name in kernels}
            for phase, kernels in parts[0].items()
        }

    def _kernel(self, kernels: Sequence[Mapping[str, Any]], edge: bool) -> Any:
        one, size = kernels[0], self._text([each["bytes"] for each in kernels], edge=edge)
        names = [name for name in ("m", "n", "k", "batch", "cost") if name in one]
        sizes = {name: self._text([each[name] for each in kernels], edge=edge, whole=True) for name in names}
        if "cost" in one and sizes["cost"] != "0":
            rows = f"ceil({_product(sizes['cost'])} / {2 * _TILE * _TILE})"
            return {"kind": "matmul", "flops": sizes["cost"], "m": rows, "n": _TILE, "k": _TILE, "bytes": size}
        if "kind" not in one:
            return size
        if one["kind"] == "matmul":
            return [*sizes.values(), size]
        seen = "0.5" if one["causal"] else "1"
        if w := one["window"]:
            seen = f"0.5 if sequence <= {w} else {w} / sequence * (1 - {w} / sequence / 2)"
        flops = _product("10" if one["backward"] else "4", *sizes.values(), seen)
        return {"kind": "attention", "flops": flops, "bytes": size, **sizes, "seen": seen}

    def _text(self, amounts: Sequence[Amount], *, edge: bool = False, whole: bool = False) -> str:
        """Return the formula of a number, given its value at every point."""
        terms = []
        for unit, divided in sorted(dict.fromkeys(key for each in amounts for key in each)):
            text = self._polynomial([each.get((unit, divided), 0.0) for each in amounts], edge)
            if text != "0":
                text = f"({text})" if (" + " in text or " - " in text) and (unit != "1" or divided) else text
                by_tp = (" // tp" if whole else " / tp") if divided else ""
                terms.append(("" if unit == "1" else f"{unit} * ") + text + by_tp)
        return " + ".join(terms) or "0"

    def _polynomial(self, values: Sequence[float], edge: bool) -> str:
        """Return values as a formula that is linear in the micro batch and quadratic in the sequence length."""
        half, exact = len(LENGTHS), [Fraction(value) for value in values]
        batch, lengths = self._points[0][0], [Fraction(length) for _, length in self._points[:half]]
        per = [two - one for one, two in zip(exact[:half], exact[half:], strict=True)]  # of one more sequence
        fixed = [one - batch * each for one, each in zip(exact, per, strict=False)]
        terms = []
        for column, words in zip((per, fixed), _WORDS, strict=True):
            for number, word in zip(_quadratic(lengths, column), words, strict=True):
                factors = ("" if number.numerator == 1 and word else str(number.numerator), word)
                told = " * ".join(filter(None, factors)).format("edge_" if edge else "")
                terms += [told if number.denominator == 1 else f"{told} / {number.denominator}"] if number else []
        return " + ".join(terms).replace("+ -", "- ") or "0"


def _count_model_flops(body: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the FLOP as MFU counts them: the backward of attention is twice its forward, without recomputation."""
    terms: dict[str, list[str]] = {"forward": [], "backward": []}
    phases = [pair for part in body if "matmul" not in part for pair in part.items()]
    for phase, kernel in ((phase, kernel) for phase, kernels in phases for kernel in kernels.values()):
        where = terms["forward" if phase == "forward" else "backward"]
        if isinstance(kernel, list):
            where.append(_product("2", *kernel[:4]))
        elif isinstance(kernel, dict):  # attention or a custom operation
            where.append(kernel["flops"].replace("10 * ", "8 * ", kernel["kind"] == "attention"))
    texts = {phase: " + ".join(each) or "0" for phase, each in terms.items()}
    stated = any(terms.values()) and max(map(len, texts.values())) <= _LONGEST
    return {"model_flops": texts} if stated else {}


def _product(*factors: str) -> str:
    """Return the product of formulas."""
    return " * ".join(each if each.replace(".", "").replace("_", "").isalnum() else f"({each})" for each in factors)


def _quadratic(x: Sequence[Fraction], y: Sequence[Fraction]) -> tuple[Fraction, Fraction, Fraction]:
    """Return the coefficients (constant first) of the parabola through three points."""
    first, second = ((y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in (0, 1))
    square = (second - first) / (x[2] - x[0])
    slope = first - square * (x[0] + x[1])
    return y[0] - slope * x[0] - square * x[0] * x[0], slope, square


def structure_of(value: Any) -> Any:
    """Return the structure of a kind without its numbers."""
    if isinstance(value, TracedKind):
        return [structure_of(getattr(value, name)) for name in ("entry", "body", "exit", "weights", "saved")]
    if isinstance(value, dict):
        return {key: structure_of(each) for key, each in value.items() if isinstance(key, str)}
    return [structure_of(each) for each in value] if isinstance(value, list) else value
