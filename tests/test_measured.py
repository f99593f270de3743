"""A measured step beside the simulated one: its MFU and HFU, and what alone would explain the gap."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.results.result import MeasuredStep
from simcluster.scenario.scenario import load_text
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.studies.whatif.sensitivities import Sensitivity, find_gap_causes, sensitivity


def test_mfu_goes_with_the_step() -> None:
    """7.5 s where 8.229 s were expected: 41.4 % (41.45) become 45.5 %; tokens and HFU in the same proportion."""
    plain = simulate(simcluster.scenario("tiny_dp"))
    flops = 0.4145 * 8.229 * plain.facts.ranks * plain.facts.peak_flops
    expected = MeasuredStep.from_step_time(7.5, replace(plain.facts, model_flops=flops), 8.229)
    assert f"{expected.mfu:.1%}" == "45.5%"
    part = 7.5 / 8.229
    told = {"measured": {"step_time": f"{part * plain.step_time!r} s", "source": "us"}}
    found = simulate(simcluster.scenario("tiny_dp", told)).measured
    assert found is not None
    assert plain.measured is None
    assert found.mfu == pytest.approx(plain.mfu / part)
    assert found.hfu == pytest.approx(plain.hfu / part)
    assert found.gap == pytest.approx((part - 1) * plain.step_time)
    assert found.tokens_per_s == pytest.approx(plain.facts.tokens / plain.step_time / part)


def test_tokens_per_second_are_another_way_to_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(simcluster.scenario("tiny_dp", {"measured.tokens_per_s": "1.9M"}))
    assert found.measured is not None
    assert found.measured.step_time == pytest.approx(32_768 / 1.9e6)
    again = load_text(json.dumps(found.scenario.document()))
    assert again == found.scenario
    assert cli.main(["run", "tiny_dp", "--measured.tokens_per_s", "1.9M"]) == 0
    text = capsys.readouterr().out
    assert "7.5% below the measured 17.25 ms" in text
    assert f"  measured     MFU {found.measured.mfu:.1%}   (HFU {found.measured.hfu:.1%}); 1,900,000 tokens/s" in text
    document = found.to_dict()["measured"]
    assert document["step_time_s"] - document["gap_s"] == pytest.approx(found.step_time)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"step_time": "1 s", "tokens_per_s": 3}, "both are set"),
        ({"source": "me"}, "neither is set"),
        ({"step_time": "0 s"}, "must be longer than 0 s"),
        ({"tokens_per_s": "fast"}, "tokens_per_s 'fast' is not a number above zero"),
    ],
)
def test_one_of_both(told: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        simcluster.scenario("tiny_dp", {"measured": told})


def test_each_cause_closes_the_gap_as_far_as_it_is_linear() -> None:
    """Played with the factor that is named, the step is the measured one; what the step does not use is no cause."""
    base = simulate_scenario(simcluster.scenario("tiny_dp"))
    found = sensitivity(base, ("flops", "network", "nvlink"))
    gap = 0.05 * base.step_time
    causes = {cause.resource: cause for cause in find_gap_causes(found, gap)}
    assert set(causes) == {"flops", "network"}
    for name, cause in causes.items():
        played = simulate(simcluster.scenario("tiny_dp", {f"cluster.scale.{name}": cause.factor}))
        assert played.step_time - base.step_time == pytest.approx(gap, rel=0.03)


def test_a_time_that_is_too_short_explains_nothing_alone() -> None:
    """A tenth of the step cannot make it a fifth shorter; half of it can, at 1 / (1 - 0.4) the rate."""
    few = Sensitivity("network", 0.01, 1.0, None, 1.0 - 0.1 * 0.01 / 1.01)
    half = Sensitivity("latency", 0.01, 1.0, None, 1.0 - 0.5 * 0.01 / 1.01)
    more = Sensitivity("flops", 0.01, 1.0, None, 1.0 - 0.5 * 0.01 / 1.01)
    first, second, third = find_gap_causes([few, half, more], -0.2)
    assert [cause.factor for cause in (first, second)] == [pytest.approx(0.6), pytest.approx(1 / 0.6)]
    assert third.factor is None
    assert "alone cannot close the gap" in third.describe()


def test_sensitivity_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sensitivity", "tiny_dp", "--resources", "flops", "--measured.step_time", "17 ms"]
    assert cli.main([*asked, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)["measured"]
    assert document["step_time_s"] == 0.017
    assert [cause["resource"] for cause in document["explained_by"]] == ["flops"]
    assert cli.main(asked) == 0
    assert "each of these alone would explain it, to first order" in capsys.readouterr().out
