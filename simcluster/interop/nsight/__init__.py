"""Reports of Nsight Systems, exported to SQLite, as profiles of ranks."""
