from simcluster.base.pointers cimport doubles, ints
from simcluster.longrun.simulation.aging_parts cimport AgingParts
from simcluster.longrun.simulation.draws cimport Draws

cdef double _INF

cdef class Hazards:
    cdef int count, causes, machines, next_loaded, next_trained
    cdef Draws draws
    cdef list aged, struck, batches
    cdef object rates, integers
    cdef double* rate
    cdef double* when
    cdef int* cause
    cdef int* stops
    cdef int* unit
    cdef int* seen
    cdef int* batch
    cdef double loaded, trained, share

    cdef void clear(self) except *
    cdef void give(self, int column) except *
    cdef void find_next(self) noexcept
    cdef double until_strike(self) noexcept
    cdef double until_stop(self) noexcept
    cdef void train(self, double seconds) noexcept
    cdef void load(self, double seconds) noexcept
    cdef int strike(self) except -1
    cdef bint hit_bad(self, int column, int occurrence, double now) except -1

cdef class DefectiveMachines:
    cdef object batch, times
    cdef int column, left
    cdef double each
    cdef int which, on, cures

    cdef bint hit(self, double which, double cures, double now) except -1
