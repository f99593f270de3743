"""Scenarios drawn by a seed: a small job, and then field by field, where the scenario stays a valid one.

Every field of a scenario is drawn from its annotation (``values``), so that a new literal, schedule, fault or topology
is drawn without a line here.  By hand are sizes, which have to fit each other (``job``).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from conftest import counts_of, tiny_scenario
from hypothesis import strategies as st

from drawn.values import NothingDrawnError, document, drawn
from simcluster.base.errors import InputError
from simcluster.base.progress import set_estimate_limit
from simcluster.devices.software import list_software_names
from simcluster.documents.builtin_documents import builtin_names
from simcluster.documents.field_annotations import models_in_annotation
from simcluster.faults import FAULTS
from simcluster.scenario.fast_path import STEP_FIELDS, FastPath
from simcluster.scenario.sections import Pipeline
from simcluster.schedules import SCHEDULES
from simcluster.step.simulate import simulate_scenario
from simcluster.topology import TOPOLOGIES
from simcluster.topology.policies import RoutingSpec

Document = dict[str, Any]

ASIDE = {  # with the reason
    "engine": "it is what is compared",
    "replicas": "a step of its own each",
    "name": "text",
    "measured": "is only shown",
    "cluster.scale.memory": "what does not fit is refused",
}
BY_HAND = (
    "model.blocks", "model.pattern", "model.layer_types", "model.layer_kinds", "cluster.topology", "gpus",
    "steps", "model.layers", "model.hidden_size", "model.heads", "model.vocab_size", "model.sequence_length",
    "model.ffn_hidden_size",
    "model.kv_heads", "model.head_dim", "model.moe.experts", "model.moe.top_k", "model.moe.expert_ffn_hidden_size",
    "parallel.tp", "parallel.cp", "parallel.pp", "parallel.dp", "parallel.ep", "parallel.etp", "parallel.order",
    "pipeline.schedule", "pipeline.chunks", "pipeline.layers_per_stage", "pipeline.layout", "training.global_batch",
)  # fmt: skip
"""Fields that ``job`` draws, since they have to fit each other."""
OFTEN = ("overlap.", "parallel.", "fsdp.", "pipeline.", "training.")
"""Fields that decide what meets on links."""
SECTIONS: dict[str, Document | tuple[Document, ...]] = {
    "model.mla": {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32},
    "model.mla.indexer": {"heads": 2, "head_dim": 32, "top_k": 32},
    "model.encoder": {
        "layers": 2, "hidden_size": 64, "heads": 4, "ffn_hidden_size": 128, "patch_values": 48, "image_tokens": 32,
    },
    "training.trainable": ({"rank": 8}, {"frozen": ["attention"]}, {"frozen_layers": [0, 0]}),
    "training.outer": {"every": 2, "workers": 2},
    "data.loader": {"batch": "2 ms"},
    "checkpoint": {"after": 0, "to": "20 GB/s"},
}  # fmt: skip
"""Sections that may be left out, with what they must say: one of several where there are some."""
RANGES: dict[str, tuple[Any, ...]] = {
    "memory.offload.bucket": (100_000, 1_000_000),  # of one parameter each there would be millions
    "fsdp.reshard_after_forward": (True, False, 2, 4),
    "overlap.tensor_pieces": (2, 3, 4),
    "training.micro_batch": (2, 3),
    "training.layers_in_16_bits": ([1, 0], [0, 1], [1, 1]),
    "training.trainable.rank": (8, 24),
    "training.trainable.frozen": (["attention"], ["mlp"], ["embedding"], ["lm_head", "mlp"], ["mixture", "embedding"]),
}
"""Numbers that are drawn from these, where the smallest that a field takes say nothing of a step."""
SMALL: dict[str, Document] = {
    "leaf_spine_512": {"leaves": 4, "gpus_per_leaf": 4, "spines": 3},
    "pcie_ethernet": {"nodes": 2, "gpus_per_node": 4, "gpus_per_pcie_switch": 2},
    "two_sites_h100": {"site": {"nodes": 1}},
}
"""Parameters of topologies that are large, or whose parameters are their own."""


def sections(seed: int, scope: FastPath | None = None, focus: str = "") -> Document:
    """Return the sections of the scenario of a seed, for ``tiny_scenario``; one for which this scope vouches.

    Most values are of fields of the section ``focus``; by default of any one.
    """
    drawing = Drawing(Random(seed), scope)
    return drawing.with_faults(drawing.changed(drawing.job(), focus))


def documents(scope: FastPath | None = None) -> st.SearchStrategy[Document]:
    """Return a strategy of sections for ``tiny_scenario``, of scenarios that no engine refuses."""
    return st.integers(0, 2**32 - 1).map(lambda seed: sections(seed, scope)).filter(simulates)


def simulates(found: Document) -> bool:
    """Is there a step of it?  NCCL may have no such algorithm, and stages may wait for each other for ever."""
    try:
        scenario = tiny_scenario(**found)
        with set_estimate_limit(30.0):  # faults may change so often that a step takes hours
            simulate_scenario(scenario)
    except InputError:
        return False
    return True


class Drawing:
    """A scenario in the making: each change is kept if what it leaves is valid, and in the scope."""

    def __init__(self, dice: Random, scope: FastPath | None) -> None:
        self._dice, self._scope = dice, scope

    def job(self) -> Document:
        """Return the sections of a small job."""
        while True:
            found = job(self._dice)
            if self._valid(found):
                return found

    def changed(self, found: Document, focus: str = "") -> Document:
        """Return the sections with values of fields, most of them of one section, since some fields need others."""
        dice = self._dice
        paths = [path for path in STEP_FIELDS if drawn_here(path)]
        focus = focus or dice.choice(sorted({path.rpartition(".")[0] for path in paths}))
        for section, least in SECTIONS.items():
            if f"{focus}.".startswith(f"{section}.") or dice.random() < 0.1:
                found = self._with(found, section, dice.choice(least) if isinstance(least, tuple) else least)
        dice.shuffle(paths)
        own = [path for path in paths if path.rpartition(".")[0] == focus]
        for path in (*paths, *own):
            often = 0.5 if path in own else 0.25 if path.startswith(OFTEN) else 0.06
            if dice.random() < often and there(found, path):
                try:
                    found = self._with(found, path, value(dice, path))
                except NothingDrawnError:
                    continue
        return found

    def with_faults(self, found: Document) -> Document:
        """Return the sections with up to two faults, each without what of it does not fit the job."""
        dice, cluster, gpus = self._dice, tiny_scenario(**found).cluster.built, found["gpus"]
        for _ in range(dice.choice((0, 0, 1, 1, 2))):
            names = {
                "rank": dice.randrange(gpus), "ranks": sorted({dice.randrange(gpus) for _ in range(3)}),
                "node": dice.choice(cluster.host_of[:gpus]), "nic_of": dice.randrange(gpus),
                "uplinks_of": dice.choice(cluster.host_of), "between": list(dice.choice(list(cluster.graph.edges))),
            }  # fmt: skip
            fault = document(dice, FAULTS[dice.choice([*FAULTS, "slow_gpu", "slow_gpu", "speeds"])], names)
            fault |= {name: names[name] for name in fault if name in names}
            while fault and not self._valid(other := {**found, "faults": [*found["faults"], fault]}):
                optional = [name for name in fault if name not in ("kind", "law")]
                gone = dice.choice(optional) if optional else ""
                fault = {name: value for name, value in fault.items() if name != gone} if optional else {}
            found = other if fault else found
        return found

    def _with(self, found: Document, path: str, value: Any) -> Document:
        """Return the sections with this value, if that is valid; else as they were."""
        *above, name = path.split(".")
        other = inside(found, above, {name: value})
        return other if self._valid(other) else found

    def _valid(self, found: Document) -> bool:
        try:
            made = tiny_scenario(**found)
        except InputError:
            return False
        return self._scope is None or not self._scope.find_obstacle(made)


def drawn_here(path: str) -> bool:
    """Is the field drawn from its annotation?"""
    return path not in BY_HAND and not any(path == each or path.startswith(f"{each}.") for each in ASIDE)


def value(dice: Random, path: str) -> Any:
    """Return a value of a field."""
    field = STEP_FIELDS[path]
    return dice.choice(RANGES[path]) if path in RANGES else drawn(dice, field.annotation, field.metadata)


def there(found: Document, path: str) -> bool:
    """Is the field in no section that may be left out, or has the document this section?"""
    for section in ("model.moe", *SECTIONS):
        if path.startswith(f"{section}."):
            for name in section.split("."):
                found = found.get(name, {})
            return bool(found)
    return True


def inside(found: Document, above: list[str], values: Document) -> Document:
    """Return the document with these values in a section."""
    if not above:
        return {**found, **values}
    first, *rest = above
    return {**found, first: inside(found.get(first, {}), rest, values)}


# --- sizes that fit each other ----------------------------------------------------------------------------------------


def job(dice: Random) -> Document:
    """Return a small job: a cluster, how it is split, a model and a schedule; seldom none that is valid."""
    place, most = cluster(dice)
    gpus = dice.choice([each for each in (1, 2, 3, 4, 4, 6, 8, 8, 8, 8, 12, 16, 16) if each <= most])
    tp, cp, pp = (split for split in splits(dice, gpus))
    dp = gpus // (tp * cp * pp)
    experts = dice.random() < 0.5
    schedule, chunks, rounds = schedule_of(dice, pp)
    layers = pp * chunks * dice.choice((1, 1, 2))
    own: Document = {
        "cluster": place,
        "gpus": gpus,
        "steps": dice.choice((1, 1, 1, 2)),
        "seed": dice.randrange(100),
        "model": {
            "layers": layers, "gated_mlp": True, "sequence_length": dice.choice((128, 1024, 2048)),
            "hidden_size": dice.choice((256, 1024, 2048)), "kv_heads": dice.choice((1, 2, 8, 8)),
        },
        "parallel": {
            "tp": tp, "cp": cp, "pp": pp, "dp": dp, "order": order(dice),
            "zero": dice.choice((0, 0, 0, 1, 2, 3)) if dp > 1 else 0,
        },
        "pipeline": {"schedule": schedule, "chunks": chunks, **layers_of(dice, layers, pp * chunks)},
        "training": {"global_batch": rounds * dp},
        "software": {} if dice.random() < 0.8 else {"base": dice.choice(list_software_names())},
        "overlap": {"experts": experts and dice.choice((False, True))},
        "collectives": {"nccl": dice.choice(("auto", "auto", "none"))},
        "faults": [],
    }  # fmt: skip
    if experts:
        own["model"]["moe"] = {
            "experts": dice.choice((4, 8)), "top_k": dice.choice((1, 2)), "expert_ffn_hidden_size": 256,
            "shared_experts": dice.choice((0, 1)),
        }  # fmt: skip
        ep = dice.choice([each for each in (1, 2, 2, 4, 8) if (tp * cp * dp) % each == 0])
        etp = dice.choice([None, *(each for each in (1, 2, 4) if (tp * cp * dp) % (each * ep) == 0)])
        own["parallel"] |= {"ep": ep, "sequence_parallel": tp > 1} | ({"etp": etp} if etp else {})
    own["model"] |= pattern(dice, layers, experts=experts) if dice.random() < 0.3 else {}
    if cp > 1 and dice.random() < 0.5:
        own["parallel"] |= dice.choice(({"cp_states": True}, {"cp_comm": "hybrid", "cp_inner": dice.choice((2, 4))}))
    return own


LINEAR: dict[str, Document] = {
    "gated_delta_net": {"value_heads": 16, "key_heads": 8, "key_head_dim": 32, "value_head_dim": 64},
    "kda": {"heads": 16, "head_dim": 64}, "lightning": {"heads": 8, "head_dim": 96},
}  # fmt: skip
"""Sizes of layer kinds with linear attention."""


def pattern(dice: Random, layers: int, *, experts: bool) -> Document:
    """Return the types of layers of a model: of other sizes, windows or blocks."""
    kinds = ("mlp", "mixture") if experts else ("mlp",)
    if not experts and dice.random() < 0.2:
        return {"blocks": [dice.choice(("attention", "mlp"))]}
    types: dict[str, Document] = {
        "a": {"blocks": ["attention", dice.choice(kinds)]},
        "b": dice.choice(
            (
                {"attention_window": 64},
                {"attention_chunk": 96},
                {"kv_heads": 8},
                {"qk_norm": "qkv", "values_from_keys": True},
                {"ffn_hidden_size": 512},
                {"position": "none"},
            )
        ),
        "c": {},
        "l": {"mixer": dice.choice(list(LINEAR))},
    }
    letters = "*-EM" if experts else "*-M"
    words = [dice.choice([*types, *letters]) for _ in range(dice.randint(1, max(layers, 1)))]
    sizes = {"heads": 16, "groups": 8, "head_dim": dice.choice((32, 128)), "state": dice.choice((64, 256)),
             "conv": dice.choice((2, 3)), "chunk": dice.choice((64, 256))}  # fmt: skip
    found = {"pattern": words, "layer_types": {word: types[word] for word in types if word in words} or None}
    mixer = types["l"]["mixer"]
    kinds = ({"mamba2": sizes} if "M" in words else {}) | ({mixer: LINEAR[mixer]} if "l" in words else {})
    return found | ({"layer_kinds": kinds} if kinds else {})


def cluster(dice: Random) -> tuple[Document, int]:
    """Return a cluster and how many GPUs it has at least."""
    routing: Document = drawn(dice, RoutingSpec) if dice.random() < 0.3 else {}
    more = {"routing": routing} if routing else {}
    if dice.random() < 0.15:
        kind = dice.choice(list(TOPOLOGIES))
        return {"topology": {"kind": kind, "device": "h100", **TOPOLOGIES[kind].EXAMPLE, **more}}, 4
    name = dice.choice((*builtin_names("topologies"), *["dgx_h100"] * 6, *["dgx_a100", "flat", "rail_only"] * 2))
    nodes, wide = dice.choice((1, 2, 2, 4)), dice.choice((2, 4, 8))
    tries: tuple[Document, ...] = (
        {"nodes": nodes, "gpus_per_node": wide}, {"nodes": nodes, "machine": {"gpus": wide}}, {"nodes": nodes},
        {"gpus": 8}, {},
    )  # fmt: skip
    for change in (SMALL[name],) if name in SMALL else tries:
        found = {"topology": name, **change, **more}
        try:
            made = tiny_scenario(cluster=found, gpus=1, training={"global_batch": 1})
        except InputError:
            continue
        if len(made.cluster.built.host_of) <= 144:
            return found, len(made.cluster.built.host_of)
    return {"topology": "flat", "gpus": 8}, 8


def splits(dice: Random, gpus: int) -> Iterator[int]:
    """Yield tp, cp and pp; what is left over is dp."""
    for sizes in ((1, 1, 2, 2, 4, 8), (1, 1, 1, 2, 4), (1, 1, 2, 3, 4)):
        size = dice.choice([each for each in sizes if gpus % each == 0])
        gpus //= size
        yield size


def schedule_of(dice: Random, stages: int) -> tuple[Any, int, int]:
    """Return a schedule, its chunks, and microbatches for which it can be made."""
    if stages == 1:
        return "1f1b", 1, dice.choice((1, 2, 3))
    name = dice.choice(list(SCHEDULES))
    chunks, microbatches = counts_of(name, stages, dice.choice((stages, 2 * stages, stages + 1)))
    models = {each.model_fields["name"].annotation.__args__[0]: each for each in specs() if "name" in each.model_fields}
    if name in models and dice.random() < 0.5:
        return {**document(dice, models[name]), "name": name}, chunks, microbatches
    return name, chunks, microbatches


def specs() -> list[Any]:
    """Return the schedules that have parameters."""
    field = Pipeline.model_fields["schedule"]
    return [each for each in models_in_annotation(field.annotation, field.metadata) if "rows" not in each.model_fields]


def layers_of(dice: Random, layers: int, slices: int) -> Document:
    """Return how layers are cut into slices."""
    if slices == 1:
        return {}
    uneven = [1] * slices
    for _ in range(layers - slices):
        uneven[dice.randrange(slices)] += 1
    layout = "|".join(f"{'E' * (not place)}{'t' * many}" for place, many in enumerate(uneven)) + "L"
    ways: list[Document] = [{}, {}, {"layers_per_stage": uneven}, {"layers_per_stage": "auto"}, {"layout": layout}]
    return dice.choice(ways)


def order(dice: Random) -> list[str]:
    """Return the axes in an order, mostly the usual one."""
    axes = ["tp", "cp", "dp", "pp"]
    return axes if dice.random() < 0.6 else dice.sample(axes, 4)
