"""Results as traces that Perfetto and HolisticTraceAnalysis open, and that ``simcluster replay`` plays again."""
