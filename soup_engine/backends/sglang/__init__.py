"""SGLang behind the face of ``backends.base``: its own server as a child process.

``sglang.Engine`` cannot share this process: when one of its processes fails it sends SIGQUIT to the
one that started it, ``shutdown`` kills every child of the process that it lives in, and importing
it changes the policy of event loops for everybody. So it lives behind SGLang's HTTP interface, on
a port of the loopback address that nobody else has the key to.
"""
