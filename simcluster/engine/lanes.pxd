from simcluster.base.pointers cimport Buffers


cdef class LaneStates:
    cdef readonly Buffers buffers
    cdef readonly int count
    cdef readonly int lanes_over
    cdef readonly int ops_over
    cdef bint keeps_times
    cdef int* instance
    cdef int* base
    cdef int* shift
    cdef int* rank
    cdef int* op
    cdef int* following
    cdef int* ready_lanes
    cdef int ready_count
    cdef double* ready
    cdef double* start
    cdef double* end
    cdef int* last
    cdef int* _at
    cdef int* _stop
    cdef int* _lane_op
    cdef double* _lane_end
    cdef int* _wait_first
    cdef int* _wait_op
    cdef int* _wait_peer
    cdef int* _peer
    cdef int _peers
    cdef int* _op_first
    cdef int* _waits_from
    cdef int* _awaited
    cdef int* _bucket
    cdef long long _buckets
    cdef unsigned char* _over
    cdef int next_op(self, int lane, double now) noexcept
    cdef void end_op(self, int lane, double now) noexcept
    cpdef int op_at(self, int lane)
    cpdef bint is_over(self, int op)
    cdef bint _has_to_wait(self, int lane) noexcept
    cdef int _bucket_of(self, long long op) noexcept
    cdef void _wake(self, int op) noexcept
