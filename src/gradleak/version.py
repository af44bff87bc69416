"""The package's version, alone in a file so that it can be read without importing anything."""

__version__ = "0.1.0"
