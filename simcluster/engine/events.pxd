from libc.math cimport rint

from simcluster.base.pointers cimport Buffers
from simcluster.base.event_queue cimport EventQueue
from simcluster.engine.lanes cimport LaneStates
from simcluster.engine.links cimport LinkActivities
from simcluster.engine.ranks cimport RankActivities
from simcluster.engine.rounds cimport RoundsUnderWay


cdef extern from *:
    """
    #ifdef __GNUC__
    #define simcluster_prefetch(address) __builtin_prefetch(address)
    #else
    #define simcluster_prefetch(address) ((void) (address))
    #endif
    """
    void prefetch "simcluster_prefetch"(void* address) noexcept


cdef struct Meeting:
    double since
    int arrived
    int kind
    int head
    int last
    int number
    int unused


cdef class Engine:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef readonly LaneStates lanes
    cdef readonly LinkActivities links
    cdef readonly RankActivities ranks
    cdef RoundsUnderWay rounds
    cdef readonly double now
    cdef readonly long long events
    cdef readonly int change
    cdef int _changes
    cdef bint _more_changes
    cdef double* _change_time
    cdef int* _change_of
    cdef double* _change_factor
    cdef double _until
    cdef double _ticks
    cdef int* _slots
    cdef int* _position
    cdef int _group_count
    cdef int _position_count
    cdef int* _own_seconds
    cdef double* _own
    cdef int* _number
    cdef double* _slowness
    cdef int* _kinds
    cdef int* _parties
    cdef int* _traffic_first
    cdef int* _traffic
    cdef int* _in_rounds
    cdef Meeting* _meetings
    cpdef object load_changes(self, object times, object of, object factors, bint more)
    cpdef int run(self, long long events)
    cpdef object kept_times(self)
    cpdef tuple arrived(self, int meeting)
    cdef object _use_tables(self, object tables)
    cpdef double next_event(self) noexcept
    cdef double _next_time(self) noexcept
    cdef void _apply_changes(self) noexcept
    cdef void _finish_instant(self) noexcept
    cdef void _take_event(self) noexcept
    cdef void _fetch(self, int lane) noexcept
    cdef void _begin(self, int lane, int op) noexcept
    cdef void _meet(self, int lane, int op) noexcept
    cdef void _note_arrival(self, int meeting, int op, int number) noexcept
    cdef void _arrive_in_rounds(self, int lane, int place, int meeting, int kind) noexcept
    cdef void _all_there(self, int meeting, int kind) noexcept
    cdef void _advance_activity(self, int activity) noexcept
    cdef void _end_meeting(self, int meeting) noexcept
    cdef void _drain_rounds(self) noexcept
