"""Colours of the HTML report, as CSS and as script data, for light and dark backgrounds.

On a dark background a colour is mixed with white until it stands out: the hue stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simcluster.interactive.report.packing import BinaryColumns, choose_shown_ranks, pack_timeline
from simcluster.results.result import Result
from simcluster.results.timeline import Spans
from simcluster.schedules import Schedule
from simcluster.schedules.actions import PASS_NAMES
from simcluster.schedules.timing import EqualCosts, time_actions
from simcluster.show.palette import (
    COMPUTE_KINDS,
    MEMORY,
    STRAGGLING,
    STREAMS,
    WAITING,
    Colour,
    luminance,
    op_colour,
    parse_rgb,
    text_colour_on,
    tint_colour,
)

LIGHT_GROUND, DARK_GROUND = "#FFFFFF", "#1D2024"
CONTRAST = 3.0
"""Minimum contrast of graphics with their background (WCAG 2.2, 1.4.11)."""

_TINT_STEPS = 50
_LEAST_TINT = {"dp": 0.6, "optimizer": 0.75}  # so that they stay apart from ep and from W for every reader
_DARK_WAITING = {"bubble": "#4A4F55", "straggler_wait": "#8A9096"}
_DARK_GREYS = {"parameters": "#8A9096", "gradients": "#6E747B", "optimizer": "#565C63", "buffers": "#434950"}
_HEAT = ((0.0, LIGHT_GROUND, DARK_GROUND), (0.3, "#F3C9A5", "#5C3316"), (0.65, "#D55E00", "#C4570A"),
         (1.0, "#8F3800", "#FFB37A"))  # fmt: skip
HEAT_LEVELS = 12
_Paints = dict[tuple[str, str, int], int]

# What the breakdown's entries look like: the colour of what fills the time.
BREAKDOWN_COLOURS = {
    **{name: COMPUTE_KINDS[name] for name in ("forward", "backward", "recompute")},
    **{f"exposed_{axis}": colour for axis, colour in STREAMS.items()},
    "bubble": WAITING,
    "straggler_wait": STRAGGLING,
    **{name: COMPUTE_KINDS[name] for name in ("optimizer", "checkpoint", "data", "validation", "offload", "other")},
}


def contrast_ratio(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def lighten_for_dark(colour: Colour, name: str = "") -> Colour:
    """Lighten a colour just enough to stand out on a dark background, with the same hue."""
    ground = parse_rgb(DARK_GROUND)
    lighter = tint_colour(colour, _LEAST_TINT.get(name, 0.0))
    tints = (tint_colour(lighter, step / _TINT_STEPS) for step in range(_TINT_STEPS + 1))
    return next(tint for tint in tints if contrast_ratio(tint, ground) >= CONTRAST)


def hex_code(colour: Colour) -> str:
    """Return a colour as "#RRGGBB"."""
    return "#" + "".join(f"{round(255 * part):02X}" for part in colour)


def paint_colours(paints: Sequence[tuple[str, str, int]]) -> dict[str, list[str]]:
    """Return the fill and text colours of each kind of span, on light and on dark backgrounds."""
    light = [op_colour(stream, kind, chunk) for stream, kind, chunk in paints]
    names = [kind if stream == "compute" else stream for stream, kind, _ in paints]
    dark = [lighten_for_dark(colour, name) for colour, name in zip(light, names, strict=True)]
    return {
        "light": [hex_code(colour) for colour in light],
        "dark": [hex_code(colour) for colour in dark],
        "light_text": [text_colour_on(colour) for colour in light],
        "dark_text": [text_colour_on(colour) for colour in dark],
    }


def memory_colours() -> dict[str, dict[str, str]]:
    """Return the colour of each memory category, on light and on dark backgrounds."""
    dark = {name: hex_code(lighten_for_dark(parse_rgb(colour))) for name, colour in MEMORY.items()}
    return {"light": dict(MEMORY), "dark": dark | _DARK_GREYS}


def css_variables() -> tuple[str, str]:
    """Return CSS custom properties for the colours of tables and bars, on light and on dark backgrounds."""
    light = {f"--k-{name}": colour for name, colour in BREAKDOWN_COLOURS.items()}
    light |= {f"--m-{name}": colour for name, colour in MEMORY.items()}
    dark = {key: hex_code(lighten_for_dark(parse_rgb(code), re.split("[-_]", key)[-1])) for key, code in light.items()}
    dark |= {f"--k-{name}": grey for name, grey in _DARK_WAITING.items()}
    dark |= {f"--m-{name}": grey for name, grey in _DARK_GREYS.items()}
    for level in range(HEAT_LEVELS):
        on_light, dark_one = _heat_colour(level / (HEAT_LEVELS - 1))
        light |= {f"--h-{level}": hex_code(on_light), f"--t-{level}": text_colour_on(on_light)}
        dark |= {f"--h-{level}": hex_code(dark_one), f"--t-{level}": text_colour_on(dark_one)}
    return _css_declarations(light), _css_declarations(dark)


def css_classes() -> str:
    """Return CSS classes that set palette colours as fill: .k-forward, .m-activations, .heat-0 ... ."""
    fills = [f".k-{name}{{fill:var(--k-{name});background:var(--k-{name})}}" for name in BREAKDOWN_COLOURS]
    fills += [f".m-{name}{{fill:var(--m-{name});background:var(--m-{name})}}" for name in MEMORY]
    fills += [f"td.heat-{level}{{background:var(--h-{level});color:var(--t-{level})}}" for level in range(HEAT_LEVELS)]
    return "\n".join(fills)


def _css_declarations(values: dict[str, str]) -> str:
    return "".join(f"{name}:{value};" for name, value in values.items())


def _heat_colour(part: float) -> tuple[Colour, Colour]:
    places = [place for place, _, _ in _HEAT]
    scales = ([parse_rgb(light) for _, light, _ in _HEAT], [parse_rgb(dark) for _, _, dark in _HEAT])
    light, dark = (
        [float(np.interp(part, places, channel)) for channel in zip(*scale, strict=True)] for scale in scales
    )
    return (light[0], light[1], light[2]), (dark[0], dark[1], dark[2])


MOST_ACTIONS = 100_000


def ideal_schedule_spans(schedule: Schedule) -> Spans:
    """Return a schedule's passes as spans, timed in units of one forward pass; each stage becomes a rank."""
    timing = time_actions(schedule, EqualCosts(F=1.0, B=2.0, I=1.0, W=1.0))
    words = ("compute", "", *PASS_NAMES, *PASS_NAMES.values())
    rows = []
    for number, actions in enumerate(schedule.rows):
        for action, *times in zip(actions, timing.starts[number], timing.ends[number], strict=True):
            codes = words.index(PASS_NAMES[action.kind]), words.index(action.kind)
            rows.append((number, *codes, action.chunk, action.microbatch, *times))
    stage, kind, name, chunk, microbatch, start, end = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Spans(
        words,
        op=nothing, step=nothing, rank=stage, stream=nothing, kind=kind, name=name, layer=nothing - 1, stage=stage,
        chunk=chunk, microbatch=microbatch, group=nothing + 1, bytes=nothing.astype(np.float64),
        ready=start.astype(np.float64), start=start.astype(np.float64), end=end.astype(np.float64),
    )  # fmt: skip


MOST_SPANS = 1_000_000
"""Maximum number of spans in all timelines of a page."""


def timelines_data(runs: Sequence[tuple[str, Result]], blob: BinaryColumns) -> dict[str, Any]:
    """Return the data that the page's script needs to draw runs' timelines, for pages without other charts."""
    paints: _Paints = {}
    most = MOST_SPANS // len(runs)
    found = []
    for name, result in runs:
        run, _ = timeline_data(name, result.spans, result.weights, most, paints, blob)
        found.append({**run, "steps": result.steps})
    return {"runs": found, "paints": list_page_paints(paints)}


def timeline_data(
    name: str, spans: Spans, weights: Mapping[int, int], max_spans: int, paints: _Paints, blob: BinaryColumns
) -> tuple[dict[str, Any], int]:
    """Return the data that the page's script needs to draw one timeline, and the number of omitted ranks."""
    kept, missing = choose_shown_ranks(spans, max_spans)
    timeline = index_paints(pack_timeline(kept, blob, weights=weights), paints, blob)
    run = {"name": name, "steps": 1, "timeline": timeline, "grid": None, "memory": [], "links": None}
    return run, len(missing)


def list_page_paints(places: Mapping[tuple[str, str, int], int]) -> dict[str, Any]:
    """Return the page's list of colours; timelines refer to colours by position in this list."""
    return {**paint_colours(list(places)), "memory": memory_colours()}


def index_paints(timeline: dict[str, Any], places: _Paints, blob: BinaryColumns | None = None) -> dict[str, Any]:
    """Replace the kinds of span in a timeline's data by positions in the page's list of colours.

    With a ``blob``, the kinds of span are stored in it.
    """
    what, texts = timeline["what"], timeline["words"]
    what["paint"] = [
        places.setdefault((texts[stream], texts[kind], max(chunk, 0) if texts[stream] == "compute" else 0), len(places))
        for stream, kind, chunk in zip(what["stream"], what["kind"], what["chunk"], strict=True)
    ]
    if blob is not None:
        whole = {name: np.array(values) for name, values in what.items()}
        timeline["what"] = {
            name: blob.add_floats(values) if values.dtype.kind == "f" else blob.add_integers(values)
            for name, values in whole.items()
        }
    return timeline
