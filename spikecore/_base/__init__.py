"""What needs nothing else of spikecore: locks, bounded caches, nested structures."""
