"""The version of the distribution, written down once; the build reads it from here."""

__version__ = "0.1.0"
