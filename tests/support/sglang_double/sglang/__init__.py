"""A double of SGLang 0.5.23, as far as Soup's backend sees it: what starts its server, and what
that server says over HTTP. It stands on ``PYTHONPATH`` of the server process in place of the
package.

Recorded from the real server, run on a CPU without its kernels: the shapes of its answers and its
sentences are its own, and ``tests/sglang_cpu`` holds the names below to the real package. Only
the tokens are the double's: an answer repeats its prompt.
"""
