"""A kind of fault as a stranger adds it, by the README's words: one file, and its name in the union of all faults."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from conftest import Tiny
from pydantic import Field

from simcluster.base.errors import InputError
from simcluster.faults.targets import LinkFault, TimedFault
from simcluster.step.simulate import simulate
from simcluster.studies.fast_path_scopes import PLAN, QUICK, REPLICAS
from simcluster.studies.whatif.monte_carlo_study import monte_carlo

ROOT = Path(__file__).parent.parent
IMPORTS = """
from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from simcluster.faults.targets import TimedFault, LinkFault


"""


class PacketLoss(LinkFault, TimedFault):
    """Links that lose a ``rate`` of their packets, each of which is sent again."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"kind": "packet_loss", "nic_of": 0, "rate": 0.5}
    NEUTRAL: ClassVar[dict[str, Any]] = {"kind": "packet_loss", "nic_of": 0, "rate": 0.0}

    kind: Literal["packet_loss"]
    rate: Annotated[float, Field(ge=0, lt=1)]

    @property
    def is_neutral(self) -> bool:
        """Does it lose nothing?"""
        return self.rate == 0

    def remaining_share(self, capacity: float) -> float:
        """What is not sent again."""
        return 1.0 - self.rate


def test_a_stranger_adds_a_file_and_a_name_and_has_all_tests_of_faults(tmp_path: Path) -> None:
    """In a copy of the package, in which nothing else is changed."""
    for name in ("simcluster", "topologies"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/chromium.py", "tests/test_fault_kinds.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    faults = tmp_path / "simcluster" / "faults"
    (faults / "packet_loss.py").write_text(IMPORTS + inspect.getsource(PacketLoss))
    registry = (faults / "__init__.py").read_text()
    known = registry.replace("Fault = Annotated[\n    ", "Fault = Annotated[\n    PacketLoss | ")
    known = known.replace("\nFault = ", "\nfrom simcluster.faults.packet_loss import PacketLoss\n\nFault = ")
    assert len(known.splitlines()) == len(registry.splitlines()) + 2
    (faults / "__init__.py").write_text(known)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "packet_loss", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [*command, "-o", "addopts=", "tests"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout
    assert "6 passed" in ran.stdout, ran.stdout


def all_reduce(tiny: Tiny, *faults: PacketLoss) -> float:
    """Seconds of the one all-reduce of two GPUs, whose links have no latency."""
    link = {"line_rate": "10 GB/s", "source": ""}
    scenario = tiny(
        cluster={"topology": "flat", "gpus": 2, "link": link, "path_latency": "0 s"}, overlap={"bucket_size": "1 GB"}
    )
    table = simulate(scenario.model_copy(update={"faults": faults})).timeline_of(0)
    (row,) = table[(table["stream"] == "dp") & (table["name"] == "gradients")].itertuples()
    return float(row.end - row.start)


def test_transfers_over_its_links_take_as_much_longer_as_is_sent_again(tiny: Tiny) -> None:
    """For ever, or in half of every period: 1 / (0.5 x 1 + 0.5 x 0.6) of the time."""
    clean, lossy = all_reduce(tiny), PacketLoss(kind="packet_loss", nic_of=0, rate=0.4)
    assert all_reduce(tiny, lossy) / clean == pytest.approx(1 / 0.6, rel=1e-9)
    now_and_then = lossy.model_copy(update={"period": 1e-6, "duty": 0.5})
    assert all_reduce(tiny, now_and_then) / clean == pytest.approx(1 / 0.8, rel=1e-2)


def test_short_ways_do_not_know_it_and_say_so_by_its_name(tiny: Tiny) -> None:
    """Replicas are played on the engine then, and nobody who asks for the sweep has it without the fault."""
    scenario = tiny(cluster={"topology": "flat", "gpus": 2})
    lossy = scenario.model_copy(update={"faults": (PacketLoss(kind="packet_loss", nic_of=0, rate=0.4),)})
    for scope in (QUICK, PLAN, REPLICAS):
        assert scope.find_obstacle(lossy).endswith("does not support faults of kind packet_loss")
    many = lossy.model_copy(update={"replicas": 2})
    assert set(monte_carlo(many).step_times.tolist()) == {simulate(lossy).step_time}
    with pytest.raises(InputError, match="the sweep of replicas does not support faults of kind packet_loss"):
        monte_carlo(many, method="sweep")
