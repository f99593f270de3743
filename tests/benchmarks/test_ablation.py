"""What the table of accelerators switches off is there to be switched off."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ablation import SWITCHES


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_finds_what_it_switches_off(switch: str) -> None:
    with SWITCHES[switch]():
        pass
