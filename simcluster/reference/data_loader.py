"""SimPy simulation of the training data loaders: how late the batches of each host arrive.

On each host ``workers`` load batches, each one at a time, into a queue that holds ``prefetch``; one that is done while
the queue is full keeps its batch until there is room. Workers begin evenly spread over the time of a batch, as they are
once they have run for a while. A step begins by taking a batch on every host, waits for the last of them, and then
takes its compute seconds. Without a queue a host loads a batch when it is requested.

So in the long run a step takes max(T, L/W) with T its compute seconds, L those of a batch, W workers and a queue, else
T + L. All times are seconds.
"""

from __future__ import annotations

import simpy

from simcluster.base.arrays import Floats
from simcluster.reference.fluid_network import Process


class HostLoader:
    """Loader workers and batch queue of one host, given the load time (s) of each batch."""

    def __init__(self, env: simpy.Environment, load_times: Floats, workers: int, prefetch: int) -> None:
        self._env, self._takes = env, load_times.tolist()
        self._next = 0
        self._queue = simpy.Store(env, prefetch) if prefetch else None
        for worker in range(workers if prefetch else 0):
            env.process(self._run_worker(worker / workers * float(load_times.mean())))

    def _load_batch(self) -> Process:
        number, self._next = self._next, self._next + 1
        yield self._env.timeout(self._takes[number])

    def _run_worker(self, begin: float) -> Process:
        assert self._queue is not None
        yield self._env.timeout(begin)
        while self._next < len(self._takes):
            yield self._env.process(self._load_batch())
            yield self._queue.put(True)

    def wait_for_batch(self) -> Process:
        """Wait until the next batch of this host is loaded."""
        yield self._env.process(self._load_batch()) if self._queue is None else self._queue.get()


def simulate_batch_delays(load_times: Floats, workers: int, prefetch: int, step: float) -> Floats:
    """Return how late (s) each host's batch is for each training step, as an array [host, step].

    ``load_times[host, number]`` are the seconds that loading a batch takes.
    """
    env = simpy.Environment()
    hosts = [HostLoader(env, own, workers, prefetch) for own in load_times]
    late = load_times * 0.0

    def load_on(host: int, number: int) -> Process:
        begun = env.now
        yield env.process(hosts[host].wait_for_batch())
        late[host, number] = env.now - begun

    def train() -> Process:
        for number in range(load_times.shape[1]):
            yield env.all_of([env.process(load_on(host, number)) for host in range(len(hosts))])
            yield env.timeout(step)

    env.run(until=env.process(train()))
    return late
