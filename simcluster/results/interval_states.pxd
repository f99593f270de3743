from simcluster.base.pointers cimport Buffers
