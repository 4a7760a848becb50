"""What many adapters cost, and what changing them costs those that run.

``python -m benchmarks.adapters --help`` says what can be measured.
"""
