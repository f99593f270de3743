from simcluster.base.event_queue cimport EventQueue
from simcluster.base.pointers cimport doubles

cdef double _INF

cdef class AgingParts:
    cdef int life, length
    cdef bint closed, drawn
    cdef double scale, shape, age, parts
    cdef double at, failed, first
    cdef object one, table
    cdef EventQueue ends
    cdef double* seconds
    cdef double* hazards

    cdef void clear(self) noexcept
    cdef double next_gap(self, double unit) except? -1.0
    cdef void replace(self, double life) except *
    cdef double later(self, double hazard) except? -1.0
    cdef double power(self, double base, double exponent) except? -1.0
    cdef double interpolate(self, double x, double* known, double* values) noexcept
