"""The version of spikecore, which every module can read without importing the rest."""

__version__ = "0.1.0"
