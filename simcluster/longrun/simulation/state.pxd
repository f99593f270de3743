from simcluster.base.pointers cimport Buffers

cdef double _INF, _SOON, _PART

cdef class Snapshots:
    cdef int cycles
    cdef bint in_memory
    cdef double period, last, rest
    cdef Buffers buffers
    cdef double* ends
    cdef double* safe_within
    cdef double* stalls
    cdef double* work
    cdef double at, in_memory_at, stored_at

    cdef long long split_patterns(self, double at) noexcept
    cdef double snapshot_end(self, long long snapshot) noexcept
    cdef long long count_taken(self, double at) noexcept
    cdef double next_snapshot_end(self) noexcept
    cdef double next_verification_end(self) noexcept
    cdef double latest_safe_end(self, bint stored) noexcept
    cdef double step_begin(self) noexcept

cdef class Absent:
    cdef public int machines, cause
    cdef public double back
    cdef public list copy

cdef class SlowPeriod:
    cdef public int cause
    cdef public double pace, end, noticed

cdef class SlowDevices:
    cdef list devices
    cdef double worst, next
    cdef int by

    cdef void remove_ended(self, double now) except *
    cdef void remove_noticed(self, double now) except *
    cdef int notice(self, double now) except -2
    cdef void update(self, double short, int short_cause) except *

cdef class RepairQueue:
    cdef int crews, count, room
    cdef Buffers buffers
    cdef double* back

    cdef int count_out(self, double now) noexcept
    cdef void send_to_repair(self, double now, double seconds) except *
    cdef double time_with_at_most(self, double now, int out) noexcept
