"""Side-by-side load runs of this program and its peers, from a checkout.

``python -m benchmarks.serving --help`` says what can be measured. Absolute figures drift with
the machine and with what else runs on it; only the ratios taken in one run are worth quoting.
"""
