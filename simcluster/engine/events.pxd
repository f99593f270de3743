cimport cython

from simcluster.base.pointers cimport Buffers
from simcluster.base.event_queue cimport EventQueue
from simcluster.engine.lanes cimport LaneStates
from simcluster.engine.links cimport LinkActivities
from simcluster.engine.meetings cimport MeetingStates
from simcluster.engine.ranks cimport RankActivities
from simcluster.engine.rounds cimport RoundsUnderWay


@cython.final
cdef class Engine:
    cdef Buffers buffers
    cdef readonly EventQueue queue
    cdef readonly LaneStates lanes
    cdef readonly LinkActivities links
    cdef readonly MeetingStates meetings
    cdef readonly RankActivities ranks
    cdef RoundsUnderWay rounds
    cdef readonly int change
    cdef int _changes
    cdef bint _more_changes
    cdef double* _change_time
    cdef int* _change_of
    cdef double* _change_factor
    cdef double _until
    cdef int* _position
    cdef int _position_count
    cdef int* _traffic_first
    cdef int* _traffic
    cdef int* _in_rounds
    cdef bint _joins_ahead
    cpdef object load_changes(self, object times, object of, object factors, bint more)
    cpdef int run(self, long long events)
    cpdef long long events(self) noexcept
    cpdef long long ops_over(self) noexcept
    cpdef double next_event(self) noexcept
    cdef int _stop(self) noexcept
    cdef double _next_time(self) noexcept
    cdef void _apply_changes(self) noexcept
    cdef void _finish_instant(self) noexcept
    cdef void _take_event(self) noexcept
    cdef void _begin(self, int lane) noexcept
    cdef void _arrive_in_rounds(self, int lane, int place, int kind) noexcept
    cdef void _begin_meeting(self, int meeting) noexcept
    cdef void _advance_activity(self, int activity) noexcept
    cdef void _end_meeting(self, int meeting) noexcept
    cdef void _leave(self, int lane) noexcept
    cdef void _drain_rounds(self) noexcept
