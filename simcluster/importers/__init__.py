"""Other tools' files as documents: topologies, model configurations, launch scripts."""
