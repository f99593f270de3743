cimport cython

from simcluster.base.pointers cimport Buffers


@cython.final
cdef class OpTimesReader:
    cdef readonly Buffers buffers
    cdef double* _end
    cdef double* _since
    cdef int* _last
    cdef int* _number
    cdef int* _rank
    cdef int* _slot
    cdef int* _place
    cdef int* _before
    cdef int* _wait_first
    cdef int* _wait_op
    cdef int* _wait_peer
    cdef int* _peer
    cdef int _peers
    cdef int* _meeting_first
    cdef int _slots
    cdef int* _op_first
    cdef int* _template_first
    cdef double* _ready
    cdef double* _start
    cdef double* _over
    cdef int* _op
    cdef int* _whose
    cpdef int read_instance(self, int instance, int at)
    cpdef int read_received_messages(self, int instance, int at)
    cpdef tuple time_columns(self, int many)
    cdef int _rendezvous_of(self, int instance, int number) noexcept
    cdef double _start_time(self, int instance, int number) noexcept
    cdef double _ready_time(self, int instance, int number) noexcept
