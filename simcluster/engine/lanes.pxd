from simcluster.base.pointers cimport Buffers


cdef struct LaneState:
    int op
    int at
    int stop
    int base
    int shift
    int instance
    int rank
    int waits_from
    int awaited
    int waiters
    int following


cdef class LaneStates:
    cdef readonly Buffers buffers
    cdef readonly int count
    cdef readonly int lanes_over
    cdef readonly int ops_over
    cdef bint keeps_times
    cdef int* ready_lanes
    cdef int ready_count
    cdef double* ready
    cdef double* start
    cdef double* end
    cdef int* last
    cdef int* _lane_op
    cdef double* _lane_end
    cdef int* _wait_first
    cdef int* _wait_op
    cdef int* _wait_peer
    cdef int* _peer
    cdef int _peers
    cdef int* _op_first
    cdef int* _bucket
    cdef long long _buckets
    cdef int* _op_lane
    cdef int* _op_at
    cdef int* _lane_first
    cdef int* _template_first
    cdef LaneState* state
    cdef object _find_ops(self, object tables)
    cdef int _lane_of(self, int instance, int number) noexcept
    cdef bint _has_ended(self, int instance, int number) noexcept
    cdef int next_op(self, int lane, double now) noexcept
    cdef void end_op(self, int lane, double now) noexcept
    cpdef int op_at(self, int lane)
    cpdef bint is_over(self, int instance, int number)
    cdef bint _has_to_wait(self, int lane) noexcept
    cdef int _bucket_of(self, long long op) noexcept
    cdef void _wake(self, int op, int ended) noexcept
