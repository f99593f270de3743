cimport cython

from simcluster.base.pointers cimport Buffers


cdef struct TemplateOp:
    double seconds
    double sensitivity
    int slot
    int work
    int place
    int wait_first
    int wait_end
    int lane
    int at
    int run
    int open


@cython.final
cdef class TemplateOps:
    cdef Buffers buffers
    cdef TemplateOp* ops
    cdef int* wait_op
    cdef int* wait_peer
    cdef int* _peer
    cdef int _peers
    cdef int whose(self, int instance, int wait) noexcept
    cdef object _close(self, object templates, object instances)
    cdef object _find_runs(self, object templates)
    cdef bint _computes(self, int place) noexcept
