cimport cython

from simcluster.base.pointers cimport Buffers
from simcluster.base.event_queue cimport EventQueue
from simcluster.engine.memberships cimport Memberships


@cython.final
cdef class LinkFill:
    cdef Buffers buffers
    cdef double* want
    cdef double* flows
    cdef double* _partial
    cdef void make_room(self, int room) noexcept
    cdef double level(self, double capacity, int count) noexcept
    cdef double _sum(self, int count, double low, double high) noexcept


@cython.final
cdef class MaxMin:
    cdef Buffers buffers
    cdef Memberships users
    cdef EventQueue queue
    cdef LinkFill fill
    cdef double* capacity
    cdef double* level
    cdef double* rate
    cdef double* bound
    cdef double* before
    cdef int* usage
    cdef int* usage_first
    cdef int* usage_link
    cdef double* usage_flows
    cdef int* owner
    cdef unsigned char* is_due
    cdef unsigned char* is_waiting
    cdef unsigned char* is_touched
    cdef int* due
    cdef int* touched
    cdef readonly int due_count
    cdef readonly int touched_count
    cdef void make_room(self, int room) noexcept
    cdef void join(self, int activity, int traffic, double bound) noexcept
    cdef double reserve(self, int activity, int traffic, double bound) noexcept
    cdef void cancel(self, int traffic) noexcept
    cdef void leave(self, int activity) noexcept
    cdef void set_capacity(self, int link, double capacity) noexcept
    cdef void solve(self) noexcept
    cdef void _touch(self, int activity) noexcept
    cdef void _look_again(self, int link) noexcept
    cdef void _visit(self, int link) noexcept
    cdef void _update(self, int activity, int link) noexcept
    cdef double _level_of(self, int link) noexcept
