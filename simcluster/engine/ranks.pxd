from libc.math cimport rint

from simcluster.base.pointers cimport Buffers
from simcluster.base.event_queue cimport EventQueue
from simcluster.engine.links cimport LinkActivities
from simcluster.engine.memberships cimport Memberships


cdef struct Computation:
    double due
    int rank
    int following
    int previous
    int unused
    double left
    double since
    double factor
    double sensitivity
    double left_before
    double since_before
    double factor_before
    double settled


cdef struct RankState:
    double speed
    int computing
    int lane
    int is_changed
    int unused


cdef class RankActivities:
    cdef Buffers buffers
    cdef EventQueue queue
    cdef LinkActivities links
    cdef Memberships flights
    cdef double ticks
    cdef Computation* computation
    cdef readonly int computing_lanes
    cdef readonly int changed
    cdef int* _changed
    cdef RankState* _state
    cdef double* _pressure
    cdef double* _drag
    cdef int* _rank_first
    cdef int* _kind_rank
    cdef unsigned char* dragged
    cdef int _room
    cdef void wait(self, int lane, double seconds, double now) noexcept
    cdef void compute(self, int lane, int rank, double seconds, double sensitivity, double now) noexcept
    cdef void advance(self, int lane) noexcept
    cdef void _make_room(self) noexcept
    cdef void take_off(self, int flight, int kind) noexcept
    cdef void land(self, int flight, int kind) noexcept
    cdef double drag_of(self, int flight, int kind) noexcept
    cdef void set_speed(self, int rank, double factor) noexcept
    cdef void settle(self, double now) noexcept
    cdef void _change(self, int rank) noexcept
    cdef void _settle_lanes(self, int rank, double now) noexcept
    cdef void _settle_lane(self, int lane, double factor, double now) noexcept
    cdef double _end_of(self, int lane) noexcept
    cdef void _settle_flights(self, int rank, double now) noexcept
