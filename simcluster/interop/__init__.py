"""Traces of training steps: PyTorch and Nsight profiles, Chakra, replay of recorded jobs, export."""
