"""One step of reinforcement learning: rollouts, reward, log-probabilities, training and weight updates, composed."""
