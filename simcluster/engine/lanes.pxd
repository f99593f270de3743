cimport cython
from libc.math cimport rint

from simcluster.base.event_queue cimport EventQueue
from simcluster.base.pointers cimport Buffers, prefetch
from simcluster.engine.template_ops cimport TemplateOp, TemplateOps


cdef struct LaneState:
    double due
    double since
    double left
    double factor
    double changed
    double pressure
    double speed
    double slowness
    int last
    int stop
    int base
    int template
    int instance
    int own
    int rank
    int number
    int waits_from
    int awaited
    int waiters
    int meeting
    int joined
    int next


@cython.final
cdef class LaneStates:
    cdef readonly Buffers buffers
    cdef EventQueue queue
    cdef readonly int count
    cdef readonly int lanes_over
    cdef bint keeps_times
    cdef LaneState* state
    cdef TemplateOps _templates
    cdef TemplateOp* ops
    cdef int* at
    cdef int* following
    cdef readonly long long events
    cdef int* ready_lanes
    cdef int ready_count
    cdef double* end
    cdef int* _lane_op
    cdef double* _own
    cdef double* _lane_end
    cdef int* _lane_first
    cdef int* _template_first
    cdef object _put_at_first_ops(self, object tables)
    cdef int place(self, int lane, int at) noexcept
    cdef int op(self, int lane, int at) noexcept
    cdef void keep(self, int lane, int at, double end) noexcept
    cdef bint begins(self, int lane) noexcept
    cdef int run_ahead(self, int lane) noexcept
    cdef double seconds(self, int lane, int at) noexcept
    cdef bint end_run(self, int lane) noexcept
    cdef bint settle(self, int lane, double pressure, double speed) noexcept
    cdef void _come_to_now(self, int lane) noexcept
    cdef double _end_of_run(self, int lane) noexcept
    cdef double _factor(self, int lane, int at) noexcept
    cdef double _left(self, int lane, double time) noexcept
    cdef double _rounded(self, double seconds) noexcept
    cdef void end_op(self, int lane) noexcept
    cdef int _awaited_lane(self, int lane, int place) noexcept
    cdef void _join_waiters(self, int lane, int awaited_lane, int at) noexcept
    cdef void _wake(self, int ended) noexcept
    cpdef int op_at(self, int lane)
    cpdef bint is_over(self, int instance, int number)
