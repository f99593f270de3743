"""Export of results as traces for Perfetto, HolisticTraceAnalysis and ``simcluster replay``."""
