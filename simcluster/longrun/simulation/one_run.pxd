from simcluster.base.pointers cimport Buffers
from simcluster.longrun.simulation.accounts cimport Accounts
from simcluster.longrun.simulation.draws cimport Draws
from simcluster.longrun.simulation.hazards cimport Hazards
from simcluster.longrun.simulation.state cimport RepairQueue, SlowDevices, SlowPeriod, Snapshots

cdef int LOST, SLOW, DETECTION, DIAGNOSIS, WAITING, RESTART, PAUSE, MAINTENANCE
cdef int DETECT, LASTS, NOTICED, PACE, WRONG, REPLACE, REPAIR
cdef double _INF

cdef struct Cause:
    int effect, stored, leave, repairs, retired

cdef class OneRun:
    cdef Draws draws
    cdef Accounts accounts
    cdef Hazards hazards
    cdef RepairQueue queue
    cdef SlowDevices slow
    cdef Snapshots snapshots
    cdef Buffers buffers
    cdef list struck, shares, faster
    cdef Cause* causes
    cdef int* exposed
    cdef double* part_seconds
    cdef double* ready
    cdef double* paces
    cdef int names, parts, stride, first_part, spares, short, keep
    cdef bint verifies, leaves_slow, replaces_slow, diagnoses
    cdef double end_at, until, week, timeout, every, maintenance
    cdef bint alive, maintains
    cdef int missing, planned_cause, planned_replaces, silent_cause
    cdef double now, turn, next_week, due, back_at, planned_at, since, found_at, verified_at

    cpdef void simulate(self, int row) except *
    cdef void begin_run(self, int row) except *
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
    cdef double spend_time(self, double seconds, int fate, int cause) noexcept
    cdef void stop_job(self, int cause, double target, bint planned) except *
    cdef int go_back(self, int cause, double target, bint planned) noexcept
    cdef void replace_machines(self, int leaves, int cause) except *
    cdef void wait_for_machines(self, int cause) except *
    cdef void run_restart(self, int cause) noexcept
