"""Ops of the templates (programs that equal ranks share), as records for the engine's inner loop; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import InstanceColumns, TemplateColumns

if not cython.compiled:
    from simcluster.base.pointers import Buffers

    TemplateOp = SimpleNamespace

OP = [
    *((name, np.float64) for name in ("seconds", "sensitivity")),
    *(
        (name, np.int32)
        for name in ("slot", "work", "place", "wait_first", "wait_end", "lane", "at", "run", "open", "waiter")
    ),
]
"""Fields of a TemplateOp (see the .pxd file): columns of ``TemplateColumns``, its lane, its index in ``lane_op``."""


class TemplateOps:
    """Ops of all templates, with precomputed runs of computations and waiting ops.

    An op is ``open`` if its lane continues without an event at its end: no op waits for it, and it is not the last on
    its lane.  ``run`` is the index in ``lane_op`` of the last op of the run that begins with this one, as far as it
    does not depend on other lanes.  ``waiter`` is the number, plus one, of the only op that waits for an op, if that is
    a communication of the same rank; else -1, or 0 without any.
    """

    def __init__(self, templates: TemplateColumns, instances: InstanceColumns) -> None:
        self.buffers = buffers = Buffers()
        self.wait_op = buffers.view_ints("wait_op", templates.wait_op)
        self.wait_peer = buffers.view_ints("wait_peer", templates.wait_peer)
        self._peer = buffers.view_ints("peer", instances.peer)
        self._peers = instances.peer.shape[1]
        columns = {name: getattr(templates, name) for name in ("seconds", "sensitivity", "slot", "work", "place")}
        count = len(templates.seconds)
        columns |= {"wait_first": templates.wait_first[:count], "wait_end": templates.wait_first[1:]}
        records = buffers.make_records("ops", columns | {"open": np.ones(count)}, OP)
        self.ops = cython.cast(cython.pointer(TemplateOp), records) if cython.compiled else records
        self._mark_awaited_ops(templates, instances)
        self._find_computation_runs(templates)

    def awaited_instance(self, instance: cython.int, wait: cython.int) -> cython.int:
        """Return the instance (simulated rank) that runs the op which ``instance`` awaits in dependency ``wait``."""
        peer: cython.int = self.wait_peer[wait]
        return instance if peer < 0 else self._peer[instance * self._peers + peer]

    def _mark_awaited_ops(self, templates: TemplateColumns, instances: InstanceColumns) -> None:
        its_template: cython.p_int = self.buffers.view_ints("template", instances.template)
        op_first: cython.p_int = self.buffers.view_ints("template_op", templates.op_first)
        first_wait: cython.p_int = self.buffers.view_ints("first_wait", templates.wait_first[templates.op_first])
        waiting = np.repeat(np.arange(len(templates.seconds)), np.diff(templates.wait_first))
        waiter: cython.p_int = self.buffers.view_ints("waiter", waiting)
        for instance in range(len(instances.template)):
            template = its_template[instance]
            for wait in range(first_wait[template], first_wait[template + 1]):
                other: cython.int = op_first[its_template[self.awaited_instance(instance, wait)]] + self.wait_op[wait]
                self.ops[other].open = 0
                number: cython.int = waiter[wait] - op_first[template] + 1
                if self.wait_peer[wait] >= 0 or self.ops[waiter[wait]].slot < 0:
                    number = -1
                if self.ops[other].waiter not in (0, number):
                    number = -1
                self.ops[other].waiter = number

    def _find_computation_runs(self, templates: TemplateColumns) -> None:
        op_first: cython.p_int = self.buffers.view_ints("template_op", templates.op_first)
        lane_first: cython.p_int = self.buffers.view_ints("template_lane", templates.lane_first)
        lane_op_first: cython.p_int = self.buffers.view_ints("lane_op_first", templates.lane_op_first)
        lane_op: cython.p_int = self.buffers.view_ints("lane_op", templates.lane_op)
        after: cython.int = 0
        continues: cython.bint = False  # whether the op after it is a computation that waits for nothing else
        for template in range(len(templates.op_first) - 1):
            for lane in range(lane_first[template], lane_first[template + 1]):
                for at in range(lane_op_first[lane + 1] - 1, lane_op_first[lane] - 1, -1):
                    place = op_first[template] + lane_op[at]
                    self.ops[place].lane = lane - lane_first[template]
                    self.ops[place].at = self.ops[place].run = at
                    if at + 1 == lane_op_first[lane + 1]:
                        self.ops[place].open = 0
                    elif self.ops[place].open and continues:
                        self.ops[place].run = self.ops[after].run
                    after = place
                    continues = self.ops[place].slot < 0 and self.ops[place].sensitivity >= 0.0
                    continues = continues and self.ops[place].wait_first == self.ops[place].wait_end
