from simcluster.base.pointers cimport Buffers


cdef struct LaneState:
    int op
    int at
    int stop
    int base
    int shift
    int instance
    int first
    int rank
    int waits_from
    int awaited
    int waiters
    int following


cdef struct TemplateOp:
    double seconds
    double sensitivity
    int slot
    int work
    int place
    int wait_first
    int lane
    int at


cdef class LaneStates:
    cdef readonly Buffers buffers
    cdef readonly int count
    cdef readonly int lanes_over
    cdef readonly int ops_over
    cdef bint keeps_times
    cdef LaneState* state
    cdef TemplateOp* ops
    cdef int* ready_lanes
    cdef int ready_count
    cdef double* end
    cdef int* _lane_op
    cdef double* _lane_end
    cdef int* _wait_op
    cdef int* _wait_peer
    cdef int* _peer
    cdef int _peers
    cdef int* _lane_first
    cdef int* _template_first
    cdef object _put_at_first_ops(self, object tables)
    cdef object _read_ops(self, object tables)
    cdef int next_op(self, int lane) noexcept
    cdef void end_op(self, int lane, double now) noexcept
    cdef bint _has_to_wait(self, int lane) noexcept
    cdef void _join_waiters(self, int lane, int awaited_lane, int at) noexcept
    cdef void _wake(self, int ended) noexcept
    cpdef int op_at(self, int lane)
    cpdef bint is_over(self, int instance, int number)
