from simcluster.base.pointers cimport Buffers
from simcluster.longrun.simulation.draws cimport Draws

cdef double _INF

cdef class Hazards:
    cdef int count, causes, machines, stopping, other
    cdef double loaded, trained, share, stop_at, other_at
    cdef Draws draws
    cdef Buffers buffers
    cdef list struck, aged, batches
    cdef int* cause
    cdef int* stops
    cdef int* unit
    cdef int* seen
    cdef double* rate
    cdef double* when

    cdef void begin_run(self) except *
    cdef void draw_next(self, int column) except *
    cdef void find_next(self) noexcept
    cdef double time_to_failure(self) noexcept
    cdef int next_column(self) noexcept
    cdef bint record_failure(self, int column, int occurrence, double now) except -1
    cdef bint hit_defective(self, int column, int occurrence, double now) except -1

cdef class DefectiveMachines:
    cdef object batch
    cdef Draws draws
    cdef list times
    cdef double each
    cdef int column, left, on, which, cures

    cdef void begin_run(self) except *
    cdef bint record_hit(self, int occurrence, double now) except -1

cdef class AgingParts:
    cdef int life, failed, parts
    cdef bint closed, drawn
    cdef double scale, shape, age, at, first
    cdef object one
    cdef list seconds, hazards, ends

    cdef void begin_run(self) except *
    cdef double next_gap(self, double unit) except? -1.0
    cdef void replace(self, double life) except *
    cdef double time_at_hazard(self, double hazard) except? -1.0
    cdef double power(self, double base, double exponent) except? -1.0
    cdef double interpolate(self, double x, list[double] known, list[double] values) except? -1.0
