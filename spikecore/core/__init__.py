"""Core of a neuron, between its dynamics and a runner: dispatch, state, parameters and their ranges, checks."""
