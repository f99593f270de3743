from simcluster.base.pointers cimport Buffers
from simcluster.longrun.simulation.accounts cimport Accounts
from simcluster.longrun.simulation.draws cimport Draws
from simcluster.longrun.simulation.hazards cimport Hazards
from simcluster.longrun.simulation.state cimport Absent, RepairQueue, SlowDevices, Snapshots

cdef int LOST, SLOW, DETECTION, DIAGNOSIS, WAITING, RESTART, PAUSE, MAINTENANCE
cdef int DETECT, LASTS, NOTICED, PACE, WRONG, REPLACE, REPAIR
cdef double _INF

cdef struct Cause:
    int effect, stored, rejoins, leave, repairs, retired

cdef class Outages:
    cdef Draws draws
    cdef Accounts accounts
    cdef Hazards hazards
    cdef RepairQueue queue
    cdef SlowDevices slow
    cdef Snapshots snapshots
    cdef Buffers buffers
    cdef list struck, shares, faster, absent
    cdef Cause* causes
    cdef int* exposed
    cdef int* copies
    cdef double* part_seconds
    cdef double* ready
    cdef double* paces
    cdef int names, parts, stride, first_part, spares, short, most, machines, keep
    cdef bint verifies, leaves_slow, replaces_slow, diagnoses
    cdef double end_at, until, week, timeout, every, maintenance
    cdef bint alive, maintains, has_state
    cdef int missing, planned_cause, planned_replaces, silent_cause
    cdef double now, turn, next_week, due, back_at, rejoin_at, planned_at, since, found_at, verified_at

    cdef void begin_run(self, int row) except *
    cdef double spend_time(self, double seconds, int fate, int cause) noexcept
    cdef void stop_job(self, int cause, double target, bint planned) except *
    cdef void leave_job(self, int cause, int occurrence) except *
    cdef void rejoin_first(self) except *
    cdef void set_back(self, int cause, double back) noexcept
    cdef int go_back(self, int cause, double target, bint planned) noexcept
    cdef void replace_machines(self, int leaves, int cause) except *
    cdef double send_to_repair(self, int cause) except? -1.0
    cdef void wait_for_machines(self, int cause) except *
    cdef void run_restart(self, int cause) noexcept
