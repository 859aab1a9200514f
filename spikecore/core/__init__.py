"""What a neuron is between its dynamics and a runner: binding, state, parameters and their ranges, checks."""
