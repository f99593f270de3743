"""What a training run costs and what it buys, from counts alone: memory, time and cost, and the loss reached.  Pure."""
