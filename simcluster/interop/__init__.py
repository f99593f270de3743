"""Traces of training steps: read PyTorch, Nsight and Chakra files, replay recorded jobs, export simulated ones."""
