"""Standalone files: a kernel with its tuned configs in one Python file, for people who vendor."""
