from simcluster.base.pointers cimport doubles, ints
from simcluster.longrun.simulation.accounts cimport Accounts
from simcluster.longrun.simulation.draws cimport Draws
from simcluster.longrun.simulation.hazards cimport Hazards
from simcluster.longrun.simulation.repair_queue cimport RepairQueue
from simcluster.longrun.simulation.slow_devices cimport SlowDevices
from simcluster.longrun.simulation.snapshots cimport Snapshots

cdef int LOST, SLOW, DETECTION, DIAGNOSIS, WAITING, RESTART, PAUSE, MAINTENANCE

cdef double _INF

cdef class OneRun:
    cdef Draws draws
    cdef Accounts accounts
    cdef Hazards hazards
    cdef RepairQueue queue
    cdef SlowDevices slow
    cdef Snapshots snapshots
    cdef list struck
    cdef object tables, state
    cdef int* effect
    cdef int* stored
    cdef int* detect
    cdef int* lasts
    cdef int* noticed
    cdef int* pace
    cdef int* wrong
    cdef int* leave
    cdef int* replace
    cdef int* repair
    cdef int* restart
    cdef int* exposed
    cdef int* faster
    cdef double* ready
    cdef double* paces
    cdef double* shares
    cdef double* part_seconds
    cdef int* repairs
    cdef int* retired
    cdef int names, parts, machines, spares, short, keep
    cdef bint limited, verifies, leaves_slow, replaces_slow, diagnoses, made_ready
    cdef double end_at, until, week, timeout, every, maintenance
    cdef bint alive, maintains
    cdef int missing, planned_cause, planned_replaces, silent_cause
    cdef double now, turn, next_week, due, back_at, planned_at, since, found_at, verified_at

    cpdef void simulate(self, int row) except *
    cdef void clear(self, int row) except *
    cdef void advance(self, double passed, double at) noexcept
    cdef void on_clock(self) except *
    cdef void on_work(self) except *
    cdef void on_strike(self) except *
    cdef void begin_slow(self, int cause, int occurrence) except *
    cdef void corrupt(self, int cause, int occurrence) except *
    cdef void pause(self, int cause, int occurrence) except *
    cdef double seconds_of(self, int cause, int occurrence) except? -1.0
    cdef void plan(self, int cause) noexcept
    cdef double survivor(self, int cause) noexcept
    cdef double clean(self) noexcept
    cdef double spend(self, double seconds, int fate, int cause) noexcept
    cdef void stop(self, int cause, double target, bint planned) except *
    cdef int go_back(self, int cause, double target, bint planned) noexcept
    cdef void replace_machines(self, int leaves, int cause) except *
    cdef void wait_for_machines(self, int cause) noexcept
    cdef void load(self, int cause) noexcept
