cimport cython

from simcluster.base.event_queue cimport EventQueue
from simcluster.base.pointers cimport Buffers
from simcluster.engine.lanes cimport LaneStates
from simcluster.engine.links cimport LinkActivities
from simcluster.engine.meetings cimport MeetingStates
from simcluster.engine.memberships cimport Memberships


cdef struct RankState:
    double speed
    int lane
    int is_changed


@cython.final
cdef class RankActivities:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef LaneStates lanes
    cdef LinkActivities links
    cdef MeetingStates meetings
    cdef Memberships flights
    cdef readonly int computing_lanes
    cdef readonly int changed
    cdef readonly bint drags
    cdef int* _changed
    cdef RankState* _state
    cdef double* _pressure
    cdef double* _drag
    cdef int* _rank_first
    cdef int* _kind_rank
    cdef void begin(self, int lane, bint joins) noexcept
    cdef void end(self, int lane) noexcept
    cdef void take_off(self, int flight, int kind) noexcept
    cdef void land(self, int flight, int kind) noexcept
    cdef void set_speed(self, int rank, double factor) noexcept
    cdef void settle(self) noexcept
    cdef void _change(self, int rank) noexcept
    cdef void _settle_lanes(self, int rank) noexcept
    cdef void _settle_flights(self, int rank) noexcept
