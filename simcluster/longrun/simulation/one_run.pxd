from simcluster.longrun.simulation.outages cimport LASTS, NOTICED, PACE, PAUSE, SLOW, Outages
from simcluster.longrun.simulation.state cimport SlowPeriod

cdef double _INF, _SOON

cdef class OneRun(Outages):
    cpdef void simulate(self, int row) except *
    cdef void advance(self, double passed, double at) noexcept
    cdef void handle_wall_events(self) except *
    cdef void handle_nominal_event(self) except *
    cdef void handle_failure(self) except *
    cdef void slow_device(self, int cause, int occurrence) except *
    cdef void corrupt_weights(self, int cause, int occurrence) except *
    cdef void pause_job(self, int cause, int occurrence) except *
    cdef double failure_duration(self, int cause, int occurrence) except? -1.0
    cdef void plan_outage(self, int cause) noexcept
    cdef double surviving_snapshot_end(self, int cause) noexcept
    cdef double clean_snapshot_end(self) noexcept
