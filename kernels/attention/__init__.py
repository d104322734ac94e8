"""Parametric attention-forward kernels: problem, reference, templates and their registry.

Knows nothing of tuning or databases. Importing it loads neither Triton nor torch.
"""
